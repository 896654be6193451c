//! Programs on this machine, outside of the cluster, that are reachable from pods.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use crate::cluster::Cluster;

/// A program that is stopped on drop.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it; its output is written to a file in `folder`.
    pub(crate) fn start(program: Command, folder: &Path) -> anyhow::Result<Self> {
        let log = folder.join("log");
        let file = File::create(&log)?;
        // The kernel kills it when this program dies.
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

    /// The last lines of its output.
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

/// The address of the API server, from pods and from this machine.
pub(crate) fn api_server(cluster: &Cluster) -> anyhow::Result<SocketAddr> {
    let slice = cluster.json(&["get", "endpointslice", "kubernetes", "--namespace=default"])?;
    let address = slice["endpoints"][0]["addresses"][0].as_str();
    let port = slice["ports"][0]["port"].as_u64();
    let port = port.and_then(|port| u16::try_from(port).ok());
    let (address, port) = address.zip(port).with_context(|| slice.to_string())?;
    Ok(SocketAddr::new(address.parse()?, port))
}

/// The local address used to reach another machine, by which the other reaches this one.
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

/// Unused ports.
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
