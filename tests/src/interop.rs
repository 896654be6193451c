//! Pairs of programs with one of HashiCorp's: `legate-dataplane` with a real Consul server, and a real
//! `consul-dataplane` with Legate's server.
//!
//! These programs are not part of the workspace and must be installed, except for Vault, which `cargo xtask
//! vault` builds. If one is missing, the scenarios that need it are left out as
//! [`requirement`](legate_testkit::requirement) describes.

use std::path::PathBuf;

use legate_testkit::requirement::{CONSUL, CONSUL_DATAPLANE, VAULT, program};
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
    /// `legate-dataplane` with a real Consul, over TLS; `None` if the calling test is left out.
    #[must_use]
    pub fn legate_dataplane() -> Option<Self> {
        Some(Self {
            consul: Some(program(CONSUL)?),
            consul_dataplane: None,
            tls: true,
        })
    }

    /// Legate's server with a real `consul-dataplane`; `None` if the calling test is left out.
    #[must_use]
    pub fn legate_server(tls: bool) -> Option<Self> {
        Some(Self {
            consul: None,
            consul_dataplane: Some(program(CONSUL_DATAPLANE)?),
            tls,
        })
    }

    /// A real `consul-dataplane` with a real Consul, one of which is replaced later; `None` if the calling test is left out.
    #[must_use]
    pub fn original() -> Option<Self> {
        Some(Self {
            consul: Some(program(CONSUL)?),
            consul_dataplane: Some(program(CONSUL_DATAPLANE)?),
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

/// A real Vault; `None` if the calling test is left out because there is none.
#[must_use]
pub fn vault() -> Option<PathBuf> {
    program(VAULT)
}
