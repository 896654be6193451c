//! Pairs of programs of which one is HashiCorp's: `legate-dataplane` with a real Consul server, and
//! a real `consul-dataplane` with Legate's server.
//!
//! These programs are not part of the workspace and nothing fetches them. Where one is missing, the
//! scenarios that need it are left out, and standard error says so.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Once;

use tokio::net::TcpStream;

use crate::mesh::{Mesh, MeshOptions, ServiceSpec};
use crate::sidecar::{Sidecar, SidecarFlags};
use crate::wait::eventually;

/// Which programs meet in a scenario, and how they talk.
#[derive(Debug, Clone)]
pub struct Pair {
    /// A real Consul as the control plane; Legate's server when `None`.
    pub consul: Option<PathBuf>,
    /// A real `consul-dataplane` beside applications; `legate-dataplane` when `None`.
    pub consul_dataplane: Option<PathBuf>,
    /// Whether sidecars talk to the server over TLS.
    pub tls: bool,
}

impl Pair {
    /// `legate-dataplane` with a real Consul, over TLS; `None` where there is no Consul.
    #[must_use]
    pub fn legate_dataplane() -> Option<Self> {
        Some(Self {
            consul: Some(consul()?),
            consul_dataplane: None,
            tls: true,
        })
    }

    /// Legate's server with a real `consul-dataplane`; `None` where there is none.
    #[must_use]
    pub fn legate_server(tls: bool) -> Option<Self> {
        Some(Self {
            consul: None,
            consul_dataplane: Some(consul_dataplane()?),
            tls,
        })
    }

    /// A real `consul-dataplane` with a real Consul, to replace one of them; `None` where either
    /// is missing.
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

    /// The flags of the sidecar of an instance, and the program that gets them.
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
            // Envoy says that it is ready a moment before it listens.
            let public = mesh.public(instance);
            let listens = || async move { TcpStream::connect(public).await.is_ok() };
            eventually("the sidecar listens", listens, |listens| *listens).await;
        }
        sidecar
    }
}

fn consul() -> Option<PathBuf> {
    static TOLD: Once = Once::new();
    find("consul", "LEGATE_CONSUL", &TOLD)
}

fn consul_dataplane() -> Option<PathBuf> {
    static TOLD: Once = Once::new();
    find("consul-dataplane", "LEGATE_CONSUL_DATAPLANE", &TOLD)
}

/// The program that the variable names, or the first on `PATH`.
#[expect(
    clippy::disallowed_methods,
    reason = "tests are told by the environment which programs to run"
)]
fn find(name: &str, variable: &str, told: &Once) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(variable).filter(|named| !named.is_empty()) {
        let file = PathBuf::from(named);
        assert!(
            file.is_file(),
            "{variable} is {}, which is not a file",
            file.display()
        );
        return Some(file);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        told.call_once(|| {
            // Past what the test harness captures of tests that pass.
            let _ = writeln!(
                std::io::stderr(),
                "\nNOT RUN: every scenario with a real {name}, because there is none: \
                 put {name} on PATH, or set {variable} to the program\n"
            );
        });
    }
    found
}
