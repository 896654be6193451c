//! Sites with networks of their own, such as datacenters, which reach each other through a router. It lets through
//! connections to some ports only, and loses everything between two sites while they are cut off from each other.
//!
//! Each network is a network namespace, so loopback addresses are those of a site. A future that runs within a site
//! opens its sockets and starts its processes there. This requires root, `ip` of iproute2 and `nft` of nftables.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};

use nix::sched::{CloneFlags, setns, unshare};

/// The port that other sites reach.
pub const OPEN: u16 = 8443;

/// The namespace of the network of this thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// All addresses of a site are its own, so that none has to be configured.
const SITE: &str = "
ip link set lo up
ip address add $LINK.2/30 dev wan
ip link set wan up
ip route add local $SITE.0/24 dev lo
ip route add default via $LINK.1
";

const LINK: &str = "
ip link add $NAME type veth peer name wan netns $NAMESPACE
ip address add $LINK.1/30 dev $NAME
ip link set $NAME up
ip route add $SITE.0/24 via $LINK.2
";

/// Whoever connects to another port is refused at once. What is cut is lost without a trace.
const ROUTER: &str = "
echo 1 > /proc/sys/net/ipv4/ip_forward
nft -f - <<END
table ip wan {
  set cut { type ifname . ifname; }
  chain forward {
    type filter hook forward priority 0; policy accept
    iifname . oifname @cut drop
    tcp dport $OPEN accept
    tcp sport $OPEN accept
    reject
  }
}
END
";

/// Sites and the router between them, which last as long as their processes.
pub struct Sites {
    router: Namespace,
    sites: Vec<Namespace>,
}

/// The network of a site. Clones are the same.
#[derive(Clone)]
pub struct Namespace(Arc<File>);

/// A future that runs in the network of a site.
pub struct Within<F> {
    network: Namespace,
    future: Pin<Box<F>>,
}

/// Leaves a network when dropped.
struct Entered {
    before: Namespace,
}

impl Sites {
    /// Creates this many sites, which reach each other.
    ///
    /// # Panics
    ///
    /// If the machine cannot have them; see `legate_testkit::requirement`.
    #[must_use]
    pub fn new(count: u8) -> Self {
        Self::open(count, &[OPEN])
    }

    /// The same with these ports instead of [`OPEN`].
    ///
    /// # Panics
    ///
    /// As [`Self::new`].
    #[must_use]
    pub fn open(count: u8, ports: &[u16]) -> Self {
        let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
        let router = Namespace::new();
        router.run("ip link set lo up");
        router.run(&ROUTER.replace("$OPEN", &format!("{{ {} }}", ports.join(", "))));
        let site = |n: u8| {
            let site = Namespace::new();
            let path = site.path();
            let fill = |script: &str| {
                script
                    .replace("$NAMESPACE", &path)
                    .replace("$NAME", &interface(n))
                    .replace("$LINK", &format!("10.81.{n}"))
                    .replace("$SITE", &format!("10.80.{n}"))
            };
            router.run(&fill(LINK));
            site.run(&fill(SITE));
            site
        };
        let sites = (0..count).map(site).collect();
        Self { router, sites }
    }

    /// The network of the n-th site.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    #[must_use]
    pub fn site(&self, n: usize) -> Namespace {
        self.sites[n].clone()
    }

    /// Loses all packets between two sites.
    pub fn cut(&self, sites: [u8; 2]) {
        self.change("add", sites);
    }

    /// Ends [`Self::cut`].
    pub fn mend(&self, sites: [u8; 2]) {
        self.change("delete", sites);
    }

    fn change(&self, how: &str, sites: [u8; 2]) {
        let [a, b] = sites.map(interface);
        self.router.run(&format!(
            "nft {how} element ip wan cut '{{ {a} . {b}, {b} . {a} }}'"
        ));
    }
}

fn interface(site: u8) -> String {
    format!("site{site}")
}

/// The address of a host of a site.
#[must_use]
pub fn address(site: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(10, 80, site, host).into()
}

impl Namespace {
    fn current() -> Self {
        Self(Arc::new(File::open(OWN).expect("a thread has a network")))
    }

    fn new() -> Self {
        let _leaves = Entered {
            before: Self::current(),
        };
        unshare(CloneFlags::CLONE_NEWNET).expect("this is root");
        Self::current()
    }

    /// Until the result is dropped, this thread is in this network.
    fn enter(&self) -> Entered {
        let entered = Entered {
            before: Self::current(),
        };
        self.set();
        entered
    }

    fn set(&self) {
        setns(&*self.0, CloneFlags::CLONE_NEWNET).expect("this is root");
    }

    /// Runs a future in this network. Tasks that it spawns are not.
    pub fn within<F: Future>(&self, future: F) -> Within<F> {
        Within {
            network: self.clone(),
            future: Box::pin(future),
        }
    }

    /// The file by which programs find it as long as this process runs.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Gives this machine an address that it has already as one of its site, on an interface, for programs that want to
    /// see it there.
    ///
    /// # Panics
    ///
    /// If this is not root.
    pub fn assign(&self, address: IpAddr) {
        self.run(&format!("ip address add {address}/32 dev lo"));
    }

    /// Runs a script in this network.
    fn run(&self, script: &str) {
        let _leaves = self.enter();
        let mut command = Command::new("sh");
        command.args(["-e", "-c", script]).stdin(Stdio::null());
        let done = command.output().expect("there is a shell");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{script}: {said}");
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _leaves = self.network.enter();
        self.future.as_mut().poll(context)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.before.set();
    }
}
