//! Programs on this machine, outside of the cluster, that pods reach.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use crate::cluster::Cluster;

/// A program that ends when this is dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it; what it prints goes to a file in `folder`.
    pub(crate) fn start(program: Command, folder: &Path) -> anyhow::Result<Self> {
        let log = folder.join("log");
        let file = File::create(&log)?;
        // With this program the kernel ends it, however this program ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(program.get_program())
            .args(program.get_args())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = command
            .spawn()
            .context("cannot start setpriv (Debian: util-linux)")?;
        Ok(Self { child, log })
    }

    /// The last lines of what it printed.
    pub(crate) fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the API server is, for pods and for this machine.
pub(crate) fn api_server(cluster: &Cluster) -> anyhow::Result<SocketAddr> {
    let slice = cluster.json(&["get", "endpointslice", "kubernetes", "--namespace=default"])?;
    let address = slice["endpoints"][0]["addresses"][0].as_str();
    let port = slice["ports"][0]["port"].as_u64();
    let port = port.and_then(|port| u16::try_from(port).ok());
    let (address, port) = address.zip(port).with_context(|| slice.to_string())?;
    Ok(SocketAddr::new(address.parse()?, port))
}

/// The address of this machine from which it reaches another, which therefore reaches it there.
pub(crate) fn address_towards(other: SocketAddr) -> anyhow::Result<IpAddr> {
    let any = match other {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(other)?;
    let address = socket.local_addr()?.ip();
    ensure!(
        !address.is_loopback(),
        "pods do not reach this machine at {address}, from where it reaches the API server at {other}"
    );
    Ok(address)
}

/// Ports that nobody listens at.
pub(crate) fn free_ports<const N: usize>(address: IpAddr) -> anyhow::Result<[u16; N]> {
    let mut listeners = Vec::new();
    for _ in 0..N {
        listeners.push(TcpListener::bind((address, 0))?);
    }
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
