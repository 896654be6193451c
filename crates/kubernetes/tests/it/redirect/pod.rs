//! Network namespaces of a pod and a peer, connected by a pair of virtual interfaces as the
//! container runtime does. Sockets are opened by threads that enter a namespace as a given user.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use legate_testkit::requirement::{self, IP, IPTABLES, NFT, ROOT};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Uid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_thread_uid};
use socket2::SockRef;

/// The user of the sidecar, and one of an application.
pub(super) const SIDECAR: u32 = 5995;
pub(super) const APPLICATION: u32 = 1000;

/// The deadline for operations that should complete at once.
const LIMIT: Duration = Duration::from_secs(5);

/// Whether this machine can have pods with redirected traffic. Otherwise the calling test is left out.
pub(super) fn possible() -> bool {
    requirement::met(&[ROOT, IP, NFT, IPTABLES])
}

/// The program that applies the rules.
#[derive(Debug, Clone, Copy)]
pub(super) enum Method {
    /// `nft`.
    Nftables,
    /// `iptables-restore`, because `nft` fails.
    Iptables,
}

impl Method {
    pub(super) const BOTH: [Method; 2] = [Method::Nftables, Method::Iptables];

    /// The minimal capabilities that it requires.
    pub(super) fn capabilities(self) -> &'static str {
        match self {
            Method::Nftables => "+net_admin",
            Method::Iptables => "+net_admin,+net_raw",
        }
    }
}

/// A network namespace.
struct Namespace {
    /// A process that keeps the namespace alive.
    holder: Child,
    /// The id of that process.
    name: String,
}

impl Namespace {
    fn new() -> Namespace {
        let mut holder = Command::new("unshare")
            .args([
                "--net",
                "sh",
                "-c",
                "ip link set lo up && echo ready && exec sleep 300",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare (Debian: util-linux) can be started");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("it is readable");
        assert_eq!(
            line, "ready\n",
            "root and ip (Debian: iproute2) make a namespace"
        );
        let name = holder.id().to_string();
        Namespace { holder, name }
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.name)
    }

    /// Runs a program in the namespace.
    fn call(&self, command: &[&str]) -> Output {
        Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .args(command)
            .output()
            .expect("nsenter (Debian: util-linux) can be started")
    }

    fn must(&self, command: &[&str]) -> String {
        let output = self.call(command);
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).expect("it is text")
    }

    /// Runs a closure in the namespace as a user.
    fn inside<T: Send>(&self, user: u32, task: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.path()).expect("the namespace is there");
        let work = move || {
            move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(LinkNameSpaceType::Network),
            )
            .expect("root may enter namespaces");
            set_thread_uid(Uid::from_raw(user)).expect("root may become anyone");
            task()
        };
        std::thread::scope(|scope| scope.spawn(work).join().expect("the task is done"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A pod with 10.99.0.2 and fd99::2, and a peer with 10.99.0.1, 10.98.0.1, fd99::1 and fd98::1.
pub(super) struct Pod {
    own: Namespace,
    peer: Namespace,
    /// A folder in which `nft` always fails.
    without_nft: tempfile::TempDir,
}

/// The location of a socket.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Pod,
    Peer,
}

/// The listener that a connection reached.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The address of the listener.
    pub(super) at: SocketAddr,
    /// The original destination, by the kernel's record.
    pub(super) addressed_to: SocketAddr,
}

impl Pod {
    pub(super) fn new() -> Pod {
        let (own, peer) = (Namespace::new(), Namespace::new());
        let link = "link add eth0 type veth peer name eth0 netns";
        let link: Vec<&str> = link.split(' ').collect();
        own.must(&[&["ip"], &link[..], &[&peer.name]].concat());
        for (side, addresses) in [
            (&own, ["10.99.0.2/24", "fd99::2/64"].as_slice()),
            (
                &peer,
                &["10.99.0.1/24", "10.98.0.1/32", "fd99::1/64", "fd98::1/128"],
            ),
        ] {
            side.must(&["ip", "link", "set", "eth0", "up"]);
            for address in addresses {
                let mut add = vec!["ip", "address", "add", address, "dev", "eth0"];
                add.extend(address.contains(':').then_some("nodad"));
                side.must(&add);
            }
        }
        own.must(&["ip", "route", "add", "default", "via", "10.99.0.1"]);
        own.must(&["ip", "-6", "route", "add", "default", "via", "fd99::1"]);
        let without_nft = tempfile::tempdir().expect("folders can be made");
        symlink("/bin/false", without_nft.path().join("nft")).expect("links can be made");
        Pod {
            own,
            peer,
            without_nft,
        }
    }

    fn side(&self, side: Side) -> &Namespace {
        match side {
            Side::Pod => &self.own,
            Side::Peer => &self.peer,
        }
    }

    /// Runs a program in the pod, which must succeed.
    pub(super) fn must(&self, command: &[&str]) -> String {
        self.own.must(command)
    }

    /// Runs `legate-k8s redirect` as the init container does: root with minimal capabilities, no
    /// privilege escalation, and a read-only file system.
    pub(super) fn redirect(&self, method: Method, config: &str) -> Output {
        self.redirect_with(method, method.capabilities(), config)
    }

    /// The same with other capabilities.
    pub(super) fn redirect_with(&self, method: Method, capabilities: &str, config: &str) -> Output {
        let path = std::env!("PATH");
        let folder = self.without_nft.path().display();
        let path = match method {
            Method::Nftables => format!("PATH=/usr/sbin:{path}"),
            Method::Iptables => format!("PATH={folder}:/usr/sbin:{path}"),
        };
        let read_only =
            "mount -o remount,bind,ro / && mount -t tmpfs -o ro none /run && exec \"$@\"";
        let bounding = format!("--bounding-set=-all,{capabilities}");
        let config = format!("CONSUL_REDIRECT_TRAFFIC_CONFIG={config}");
        self.own.call(&[
            "unshare",
            "--mount",
            "sh",
            "-c",
            read_only,
            "sh",
            "setpriv",
            &bounding,
            "--inh-caps=-all",
            "--no-new-privs",
            "env",
            "-i",
            &path,
            &config,
            env!("CARGO_BIN_EXE_legate-k8s"),
            "redirect",
        ])
    }

    /// A pod with a successful redirection.
    pub(super) fn redirected(method: Method, config: &str) -> Pod {
        let pod = Pod::new();
        let output = pod.redirect(method, config);
        assert!(output.status.success(), "{method:?}: {output:?}");
        pod
    }

    /// All rules of the pod.
    pub(super) fn rules(&self) -> String {
        let mut rules = self.must(&["nft", "list", "ruleset"]);
        for program in ["iptables-legacy-save", "ip6tables-legacy-save"] {
            let saved = self.must(&[program, "-t", "nat"]);
            let rule = |line: &&str| line.starts_with('-');
            rules.extend(saved.lines().filter(rule).map(|line| format!("{line}\n")));
        }
        rules
    }

    /// A listening TCP socket.
    pub(super) fn listen(&self, side: Side, user: u32, at: &str) -> TcpListener {
        let bind = || TcpListener::bind(at).expect("the address is free");
        self.side(side).inside(user, bind)
    }

    /// A UDP socket.
    pub(super) fn udp(&self, side: Side, user: u32, at: &str) -> UdpSocket {
        let socket = self
            .side(side)
            .inside(user, || UdpSocket::bind(at).expect("the address is free"));
        socket
            .set_read_timeout(Some(LIMIT))
            .expect("sockets take it");
        socket
    }

    /// The listener that a connection to an address reaches; an error if it is refused.
    pub(super) fn connect(
        &self,
        side: Side,
        user: u32,
        to: &str,
        listeners: &[&TcpListener],
    ) -> std::io::Result<Arrival> {
        let to: SocketAddr = to.parse().expect("it is an address");
        let connect = || TcpStream::connect_timeout(&to, LIMIT);
        let _connection = self.side(side).inside(user, connect)?;
        let mut polled: Vec<PollFd<'_>> = listeners
            .iter()
            .map(|listener| PollFd::new(*listener, PollFlags::IN))
            .collect();
        let limit = rustix::time::Timespec::try_from(LIMIT).expect("it is short");
        poll(&mut polled, Some(&limit)).expect("sockets can be polled");
        let reached = polled.iter().position(|fd| !fd.revents().is_empty());
        let listener = listeners[reached.expect("one of the listeners was reached")];
        let (stream, _) = listener.accept()?;
        let at = listener.local_addr()?;
        let socket = SockRef::from(&stream);
        let original = match to.ip() {
            IpAddr::V4(_) => socket.original_dst_v4(),
            IpAddr::V6(_) => socket.original_dst_v6(),
        };
        // Without a matching rule there is no such record for IPv6.
        let addressed_to = original.ok().and_then(|address| address.as_socket());
        let addressed_to = addressed_to.unwrap_or(stream.local_addr()?);
        Ok(Arrival { at, addressed_to })
    }
}
