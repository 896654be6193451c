//! The network between servers and sidecars: a namespace for the sidecars, with one link to each server,
//! so that one server can be lost.
//!
//! This requires root, `unshare` and `nsenter` of util-linux, `ip` of iproute2 and `nft` of nftables.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

/// The number of servers.
pub(crate) const SERVERS: u8 = 3;

/// The address of the first server; the others follow.
pub(crate) const FIRST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// The address of the sidecars' namespace for everything that is measured.
pub(crate) const CONTROL: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 2);

/// What happens to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Its process is killed: connections are closed, new ones are refused.
    Killed,
    /// Packets to and from its gRPC port are dropped.
    PortDropped,
    /// Its host is disconnected behind a switch, so that its address cannot be resolved any more.
    HostGone,
}

impl Failure {
    pub(crate) const ALL: [Self; 3] = [Self::Killed, Self::PortDropped, Self::HostGone];

    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Killed => "server killed",
            Self::PortDropped => "port dropped",
            Self::HostGone => "host gone",
        }
    }
}

/// Links of the servers' end. The control link has no switch.
const SERVERS_END: &str = "
ip link add c0 type veth peer name c1 netns $1
ip address add 10.9.1.1/24 dev c0
ip link set c0 up
for n in 1 2 3; do
  ip link add a$n type veth peer name p$n netns $1
  ip address add 10.9.0.$n peer 10.9.0.10$n dev a$n
  ip link set a$n up
done
";

/// Links of the sidecars' end. Each server is behind a switch of its own, whose second port keeps it up
/// when the server is disconnected.
const SIDECARS_END: &str = "
ip address add 10.9.1.2/24 dev c1
ip link set c1 up
for n in 1 2 3; do
  ip link add s$n type bridge
  ip link add x$n type veth peer name y$n
  for port in p$n x$n; do ip link set $port master s$n; done
  for link in p$n x$n y$n s$n; do ip link set $link up; done
  ip address add 10.9.0.10$n peer 10.9.0.$n dev s$n
done
";

/// The namespace of the sidecars. Dropping it removes its links, once nothing runs in it.
pub(crate) struct Network {
    /// A process that keeps the namespace alive. It ends with this program.
    holder: Child,
}

impl Network {
    /// Creates the namespace and its links to this one.
    pub(crate) fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .arg("ip link set lo up && echo ready && exec cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare (Debian: util-linux) can be started");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("it is readable");
        assert_eq!(line, "ready\n", "root and ip (Debian: iproute2) are needed");
        let network = Self { holder };
        let pid = network.holder.id().to_string();
        script(&mut Command::new("sh"), SERVERS_END, &pid);
        script(&mut network.command("sh"), SIDECARS_END, &pid);
        network
    }

    /// The arguments of `nsenter` that run a program in the namespace, under the same process id.
    pub(crate) fn enter(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.holder.id())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args([&self.enter(), program]);
        command
    }

    /// Makes the server unreachable. A server that is killed is not a matter of the network.
    pub(crate) fn fail(&self, failure: Failure, server: u8, port: u16) {
        let server = server + 1;
        match failure {
            Failure::Killed => {}
            Failure::PortDropped => {
                let rules = format!(
                    "nft -f - <<END
table ip dropped {{
  chain arriving {{
    type filter hook input priority 0
    ip saddr 10.9.0.{server} tcp sport {port} drop
  }}
  chain leaving {{
    type filter hook output priority 0
    ip daddr 10.9.0.{server} tcp dport {port} drop
  }}
}}
END"
                );
                script(&mut self.command("sh"), &rules, "");
            }
            Failure::HostGone => {
                let down = format!("ip link set a{server} down");
                script(&mut Command::new("sh"), &down, "");
            }
        }
    }

    /// Ends a failure.
    pub(crate) fn heal(&self, failure: Failure, server: u8) {
        let server = server + 1;
        match failure {
            Failure::Killed => {}
            Failure::PortDropped => {
                script(&mut self.command("sh"), "nft delete table ip dropped", "");
            }
            Failure::HostGone => {
                let up = format!("ip link set a{server} up");
                script(&mut Command::new("sh"), &up, "");
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // It reads its input, which ends here.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn script(shell: &mut Command, text: &str, argument: &str) {
    let shell = shell.args(["-e", "-c", text, "sh", argument]);
    let output = shell.output().expect("sh can be started");
    assert!(
        output.status.success(),
        "{text}: {output:?}; it takes root, ip (Debian: iproute2) and nft (Debian: nftables)"
    );
}
