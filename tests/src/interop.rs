//! Pairs of programs with one of HashiCorp's: `legate-dataplane` with a real Consul server, and a real
//! `consul-dataplane` with Legate's server.
//!
//! These programs are not part of the workspace and must be installed, except for Vault, which `cargo xtask
//! vault` builds. If one is missing, the scenarios that need it fail, unless `LEGATE_INTEROP=off` skips
//! them, which is reported on standard error.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Once;

use tokio::net::TcpStream;

use crate::mesh::{Mesh, MeshOptions, ServiceSpec};
use crate::sidecar::{Sidecar, SidecarFlags};
use crate::wait::eventually;

/// The programs of a scenario and their connection.
#[derive(Debug, Clone)]
pub struct Pair {
    /// A real Consul as the control plane; Legate's server if `None`.
    pub consul: Option<PathBuf>,
    /// A real `consul-dataplane` for applications; `legate-dataplane` if `None`.
    pub consul_dataplane: Option<PathBuf>,
    /// Whether sidecars use TLS to the server.
    pub tls: bool,
}

impl Pair {
    /// `legate-dataplane` with a real Consul, over TLS; `None` if disabled.
    ///
    /// # Panics
    ///
    /// If a program is missing, with the ways to select it.
    #[must_use]
    pub fn legate_dataplane() -> Option<Self> {
        Some(Self {
            consul: Some(consul()?),
            consul_dataplane: None,
            tls: true,
        })
    }

    /// Legate's server with a real `consul-dataplane`; `None` if disabled.
    ///
    /// # Panics
    ///
    /// If a program is missing, with the ways to select it.
    #[must_use]
    pub fn legate_server(tls: bool) -> Option<Self> {
        Some(Self {
            consul: None,
            consul_dataplane: Some(consul_dataplane()?),
            tls,
        })
    }

    /// A real `consul-dataplane` with a real Consul, one of which is replaced later; `None` if disabled.
    ///
    /// # Panics
    ///
    /// If a program is missing, with the ways to select it.
    #[must_use]
    pub fn original() -> Option<Self> {
        Some(Self {
            consul: Some(consul()?),
            consul_dataplane: Some(consul_dataplane()?),
            tls: true,
        })
    }

    /// A control plane without sidecars.
    pub async fn mesh(&self, options: MeshOptions) -> Mesh {
        Mesh::start(MeshOptions {
            consul: self.consul.clone(),
            ..options
        })
        .await
    }

    /// The flags of an instance's sidecar, with its program.
    #[must_use]
    pub fn flags(&self, mesh: &mut Mesh, instance: &'static str) -> SidecarFlags {
        let flags = mesh.flags(instance);
        let mut flags = if self.tls { flags } else { flags.plaintext() };
        flags.program.clone_from(&self.consul_dataplane);
        flags
    }

    /// Registers an instance, starts its sidecar and waits until it is ready.
    pub async fn add(&self, mesh: &mut Mesh, spec: &ServiceSpec) -> Sidecar {
        mesh.register(spec).await;
        let flags = self.flags(mesh, spec.instance);
        self.start(mesh, spec.instance, &flags).await
    }

    /// Starts the sidecar of an instance and waits until it is ready.
    pub async fn start(
        &self,
        mesh: &Mesh,
        instance: &'static str,
        flags: &SidecarFlags,
    ) -> Sidecar {
        let mut sidecar = mesh.sidecar(instance, flags);
        sidecar.ready().await;
        if flags.program.is_some() {
            // Envoy reports ready slightly before it listens.
            let public = mesh.public(instance);
            let listens = || async move { TcpStream::connect(public).await.is_ok() };
            eventually("the sidecar listens", listens, |listens| *listens).await;
        }
        sidecar
    }
}

fn consul() -> Option<PathBuf> {
    static REPORTED: Once = Once::new();
    program("consul", "LEGATE_CONSUL", &REPORTED)
}

fn consul_dataplane() -> Option<PathBuf> {
    static REPORTED: Once = Once::new();
    program("consul-dataplane", "LEGATE_CONSUL_DATAPLANE", &REPORTED)
}

/// A real Vault; `None` if disabled. `cargo xtask interop --only vault` sets the one that it builds.
///
/// # Panics
///
/// If there is none, with the ways to select one.
#[must_use]
pub fn vault() -> Option<PathBuf> {
    static REPORTED: Once = Once::new();
    program("vault", "LEGATE_VAULT", &REPORTED)
}

/// Skips everything that needs a foreign program if its value is `off`.
const SWITCH: &str = "LEGATE_INTEROP";

#[expect(
    clippy::disallowed_methods,
    reason = "the environment selects the programs of tests"
)]
fn program(name: &str, variable: &str, said: &Once) -> Option<PathBuf> {
    let found = find(name, variable, |variable| std::env::var_os(variable));
    let found = found.unwrap_or_else(|error| panic!("{error}"));
    if found.is_none() {
        said.call_once(|| {
            // Bypasses the test harness, which captures the output of passing tests.
            let _ = writeln!(
                std::io::stderr(),
                "\nNOT RUN: every scenario with a real {name}, because {SWITCH} is off\n"
            );
        });
    }
    found
}

/// The program in the variable, or the first on `PATH`; `None` if these scenarios are disabled.
fn find(
    name: &str,
    variable: &str,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<PathBuf>, String> {
    let set = |variable| environment(variable).filter(|value| !value.is_empty());
    match set(SWITCH) {
        Some(value) if value == "off" => return Ok(None),
        Some(value) => {
            return Err(format!(
                "{SWITCH} is {value:?}: set it to off, or not at all"
            ));
        }
        None => {}
    }
    if let Some(named) = set(variable).map(PathBuf::from) {
        return match named.is_file() {
            true => Ok(Some(named)),
            false => Err(format!(
                "{variable} is {}, which is not a file",
                named.display()
            )),
        };
    }
    let path = set("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    found.map(Some).ok_or_else(|| {
        format!(
            "there is no {name} to run this scenario with: put {name} on PATH, set {variable} to the \
             program, or leave these scenarios out with {SWITCH}=off"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(variables: &[(&str, &str)]) -> Result<Option<PathBuf>, String> {
        find("consul", "LEGATE_CONSUL", |name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn a_missing_program_is_a_failure_unless_disabled() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("consul");
        let path = ("PATH", folder.path().to_str().unwrap());
        let named = ("LEGATE_CONSUL", program.to_str().unwrap());
        let error = search(&[path]).unwrap_err();
        for part in ["no consul", "LEGATE_CONSUL", "LEGATE_INTEROP=off"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(search(&[named]).unwrap_err().contains("is not a file"));
        assert_eq!(search(&[named, (SWITCH, "off")]), Ok(None));

        std::fs::write(&program, "").unwrap();
        assert_eq!(search(&[path]), Ok(Some(program.clone())));
        assert_eq!(search(&[named, (SWITCH, "")]), Ok(Some(program.clone())));
        assert_eq!(search(&[named, (SWITCH, "off")]), Ok(None));
        assert!(
            search(&[named, (SWITCH, "no")])
                .unwrap_err()
                .contains("\"no\"")
        );
    }
}
