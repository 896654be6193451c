//! Three datacenters whose networks see nothing of each other but their mesh gateways, while instances, gateways,
//! servers and connections fail. Each has a network of its own, and its server and its gateways are processes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use http::Method;
use legate_identity::tls::ServerPolicy;
use legate_identity::verify_chain;
use legate_server::AgentFiles;
use legate_testkit::certs::{CertFiles, TestCa};
use legate_testkit::requirement::{self, IP, NFT, ROOT};
use legate_tests::client;
use legate_tests::load::{Load, LoadResults};
use legate_tests::sites::{self, Namespace, OPEN, Sites};
use legate_tests::wait::eventually_within;
use legate_tests::{Datacenter, Mesh, MeshOptions, ServiceSpec, Sidecar};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::chains::resolver;

/// The hosts of a site: the server, and the first of its gateways.
const SERVER: u8 = 10;
const GATEWAY: u8 = 21;

const fn instance(service: &'static str, instance: &'static str) -> ServiceSpec {
    ServiceSpec {
        service,
        instance,
        protocol: "http",
        upstreams: &[],
    }
}

/// The caller, which is in several datacenters.
const fn web(instance: &'static str) -> ServiceSpec {
    ServiceSpec {
        service: "web",
        instance,
        protocol: "http",
        upstreams: &SERVICES,
    }
}

/// The upstreams of the caller.
const SERVICES: [&str; 4] = ["store", "pay", "api", "depot"];
const STORE: u16 = 0;
const PAY: u16 = 1;
const API: u16 = 2;
const DEPOT: u16 = 3;

/// A datacenter with a network of its own.
struct Site {
    network: Namespace,
    mesh: Mesh,
    sidecars: BTreeMap<&'static str, Sidecar>,
}

impl Site {
    /// Starts its servers: several share an etcd.
    async fn start(ca: &TestCa, networks: &Sites, n: u8, servers: u8) -> Self {
        let name = ["dc1", "dc2", "dc3"][usize::from(n)];
        let mut names = vec![
            format!("server.{name}.consul"),
            format!("server.server.{name}.consul"),
        ];
        names.extend((0..servers).map(|n| format!("server-{n}.server.{name}.consul")));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let CertFiles { cert, key, .. } = ca.agent(&names);
        let options = MeshOptions {
            datacenter: Some(Datacenter {
                name,
                primary: "dc1",
                files: AgentFiles {
                    certificate: cert,
                    key,
                    policy: ServerPolicy {
                        client_authorities: vec![ca.ca_file()],
                        ..ServerPolicy::default()
                    },
                },
                join: None,
                gateways: Some(vec![SocketAddr::new(sites::address(0, GATEWAY), OPEN)]),
                node: (servers == 1).then(|| sites::address(n, SERVER)),
            }),
            servers,
            ..MeshOptions::default()
        };
        let network = networks.site(usize::from(n));
        let mesh = network.within(Mesh::start(options)).await;
        Self {
            network,
            mesh,
            sidecars: BTreeMap::new(),
        }
    }

    /// Does something with the mesh in its network.
    async fn run<T>(&mut self, action: impl AsyncFnOnce(&mut Mesh) -> T) -> T {
        let network = self.network.clone();
        network.within(action(&mut self.mesh)).await
    }

    /// Adds a gateway that leads to servers, and that other sites reach at a host. Its check passes when it listens.
    async fn add_gateway(&mut self, name: &'static str, site: u8, host: u8) {
        let fields = json!({
            "Meta": {"consul-wan-federation": "1"},
            "TaggedAddresses": {"wan": {"Address": sites::address(site, host), "Port": OPEN}},
            "Proxy": {"Config": {"envoy_mesh_gateway_bind_tagged_addresses": true}},
        });
        let added =
            async |mesh: &mut Mesh| mesh.add_checked_gateway("mesh-gateway", name, fields).await;
        let gateway = self.run(added).await;
        self.sidecars.insert(name, gateway);
    }

    async fn add(&mut self, spec: &ServiceSpec) {
        let sidecar = self.run(async |mesh| mesh.add(spec).await).await;
        self.sidecars.insert(spec.instance, sidecar);
    }

    /// Kills the proxy of an instance or gateway (SIGKILL); the catalog still has it.
    fn kill(&mut self, instance: &str) {
        self.sidecars.remove(instance).expect("it runs");
    }

    /// Adds an instance that gets no requests until [`Self::pass`].
    async fn add_critical(&mut self, spec: &ServiceSpec) {
        self.run(async |mesh| mesh.register_critical(spec).await)
            .await;
        let sidecar = self.run(async |mesh| mesh.join(spec).await).await;
        self.sidecars.insert(spec.instance, sidecar);
    }

    async fn pass(&mut self, instance: &str) {
        self.run(async |mesh| mesh.check(instance, "passing").await)
            .await;
    }

    /// Adds the caller. An endpoint that has failed gets no requests for a while.
    async fn add_web(&mut self, instance: &'static str) {
        self.add(&web(instance)).await;
        let check = json!({
            "MaxFailures": 1, "MaxEjectionPercent": 100, "EnforcingConsecutive5xx": 100,
            "Interval": "1s", "BaseEjectionTime": "3s",
        });
        let defaults = json!({
            "Kind": "service-defaults", "Name": "web", "Protocol": "http",
            "UpstreamConfig": {"Defaults": {"PassiveHealthCheck": check}},
        });
        self.run(async |mesh| mesh.entry(defaults).await).await;
        let admin = self.sidecars[instance].admin();
        let path = "/config_dump?resource=dynamic_active_clusters";
        let text = "\"max_ejection_percent\": 100";
        self.has(admin, path, text).await;
    }

    async fn intend(&mut self, service: &str, action: &str) {
        self.run(async |mesh| mesh.intend("web", service, action).await)
            .await;
    }

    /// Removes an instance or a gateway from the catalog.
    async fn forget(&mut self, id: &'static str) {
        self.run(async |mesh| mesh.deregister(id).await).await;
    }

    /// Calls an upstream of the caller until an instance whose name begins so answers, or this status.
    async fn answers(&mut self, web: &str, upstream: u16, expected: &str) {
        let address = self.mesh.upstream(web, upstream);
        let call = || async move {
            let answer = client::get(address, "/").await;
            answer
                .map(|(status, body)| match status.as_u16() {
                    200 => body,
                    _ => status.to_string(),
                })
                .map_err(|error| error.to_string())
        };
        let answered = format!("\"instance\":\"{expected}");
        let reached = |answer: &Result<String, String>| {
            answer
                .as_ref()
                .is_ok_and(|text| text.contains(&answered) || text.starts_with(expected))
        };
        let name = format!("{web} gets an answer of {expected}");
        let waiting = eventually_within(RECOVERY, &name, call, reached);
        let _answer = self.network.within(waiting).await;
    }

    /// The status and body of an answer of the API; fails if there is none.
    async fn ask(&mut self, method: Method, path: &str, body: Option<Value>) -> client::Answer {
        let http = self.mesh.http();
        let asked = client::send(method, http, path, None, body.as_ref());
        self.network.within(asked).await.expect("an answer")
    }

    /// Writes what only the primary can until that is refused, because it is away.
    async fn refuses(&mut self, path: &str, body: &Value) {
        let text = "No path to datacenter \"dc1\"";
        let refused = |answer: &Result<client::Answer, String>| matches!(answer, Ok((status, got)) if status.as_u16() == 500 && got.contains(text));
        self.put(path, body, "it is refused", refused).await;
    }

    /// Writes until that succeeds.
    async fn writes(&mut self, path: &str, body: &Value) {
        let written = |answer: &Result<client::Answer, String>| matches!(answer, Ok((status, _)) if status.is_success());
        self.put(path, body, "it is written", written).await;
    }

    async fn put(
        &mut self,
        path: &str,
        body: &Value,
        what: &str,
        reached: impl Fn(&Result<client::Answer, String>) -> bool,
    ) {
        let http = self.mesh.http();
        let put = || async move {
            let answer = client::send(Method::PUT, http, path, None, Some(body)).await;
            answer.map_err(|error| error.to_string())
        };
        let waiting = eventually_within(RECOVERY, what, put, reached);
        let _answer = self.network.within(waiting).await;
    }

    /// Reads the API until the answer contains a text.
    async fn reads(&mut self, path: &str, text: &str) {
        let http = self.mesh.http();
        self.has(http, path, text).await;
    }

    /// Reads until the answer contains a text.
    async fn has(&self, http: SocketAddr, path: &str, text: &str) {
        let read = || async move {
            client::get(http, path)
                .await
                .map_err(|error| error.to_string())
        };
        let reached = |answer: &Result<client::Answer, String>| matches!(answer, Ok((status, got)) if status.is_success() && got.contains(text));
        let name = format!("{path} has {text}");
        let waiting = eventually_within(RECOVERY, &name, read, reached);
        let _answer = self.network.within(waiting).await;
    }

    async fn stop(mut self) {
        for (_, mut sidecar) in std::mem::take(&mut self.sidecars) {
            let stopped = self.network.within(sidecar.stop()).await;
            assert!(stopped.success(), "{}", sidecar.log());
        }
        self.network.clone().within(self.mesh.stop()).await;
    }
}

/// What is retried of the requests to a service, and the time for each.
fn router(service: &str, timeout: &str) -> Value {
    let destination = json!({
        "NumRetries": 5, "RetryOn": ["reset", "connect-failure", "refused-stream"],
        "RequestTimeout": timeout,
    });
    json!({"Kind": "service-router", "Name": service, "Routes": [{"Destination": destination}]})
}

/// The time in which everything is as before after a failure has ended.
const RECOVERY: Duration = Duration::from_secs(60);

/// Three datacenters, of which the first is the primary and the second has two gateways.
struct Three {
    _ca: TestCa,
    networks: Sites,
    one: Site,
    two: Site,
    three: Site,
}

impl Three {
    async fn start() -> Self {
        Self::start_with(1).await
    }

    /// The same with this many servers in the second datacenter.
    async fn start_with(servers: u8) -> Self {
        let ca = TestCa::new();
        let networks = Sites::new(3);
        let mut one = Site::start(&ca, &networks, 0, 1).await;
        one.add_gateway("gateway-1", 0, GATEWAY).await;
        let mut two = Site::start(&ca, &networks, 1, servers).await;
        two.add_gateway("gateway-2a", 1, GATEWAY).await;
        two.add_gateway("gateway-2b", 1, GATEWAY + 1).await;
        let mut three = Site::start(&ca, &networks, 2, 1).await;
        three.add_gateway("gateway-3", 2, GATEWAY).await;
        let mut all = Self {
            _ca: ca,
            networks,
            one,
            two,
            three,
        };
        all.configure().await;
        for site in [&mut all.one, &mut all.two, &mut all.three] {
            for gateway in ["gateway-1", "gateway-2a", "gateway-2b", "gateway-3"] {
                site.reads("/v1/internal/federation-states", gateway).await;
            }
        }
        all
    }

    /// What callers do when something fails.
    async fn configure(&mut self) {
        let mut entries = vec![json!({
            "Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"},
            "MeshGateway": {"Mode": "local"},
        })];
        for service in SERVICES {
            let failover = json!({"*": {"Datacenters": ["dc1", "dc2", "dc3"]}});
            entries.push(resolver(
                service,
                json!({"ConnectTimeout": "1s", "Failover": failover}),
            ));
            entries.push(router(service, "15s"));
        }
        for entry in entries {
            self.one.run(async |mesh| mesh.entry(entry).await).await;
        }
        for service in SERVICES {
            self.one
                .run(async |mesh| mesh.intend("web", service, "allow").await)
                .await;
        }
    }

    /// Another site reaches gateways only.
    async fn is_isolated(&self) {
        let connect = async |from: &Site, host, port| {
            let to = SocketAddr::new(sites::address(1, host), port);
            let connecting = timeout(Duration::from_secs(3), TcpStream::connect(to));
            from.network
                .within(connecting)
                .await
                .is_ok_and(|connected| connected.is_ok())
        };
        assert!(connect(&self.two, SERVER, 8300).await);
        assert!(!connect(&self.one, SERVER, 8300).await);
        assert!(connect(&self.one, GATEWAY, OPEN).await);
    }

    async fn stop(self) {
        for site in [self.one, self.two, self.three] {
            site.stop().await;
        }
    }
}

/// Several loads of one upstream, so that there are several connections.
struct Loads(Vec<Load>);

impl Loads {
    fn of(site: &Site, web: &str, upstream: u16) -> Self {
        let address = site.mesh.upstream(web, upstream);
        let load = |_| Load::start_within(&site.network, address);
        Self((0..2).map(load).collect())
    }

    fn seen(&self) -> LoadResults {
        of_all(self.0.iter().map(Load::seen))
    }

    /// Waits until a hundred more requests were answered by one of these instances, or by any.
    async fn go_on(&self, instances: &[&str]) {
        let of = |seen: &LoadResults| match instances {
            [] => seen.answers.values().sum::<usize>(),
            _ => instances.iter().map(|instance| seen.of(instance)).sum(),
        };
        let (before, seen) = (of(&self.seen()), || async { self.seen() });
        let reached = |seen: &LoadResults| of(seen) > before + 100;
        let name = format!("requests are answered by {instances:?}");
        eventually_within(RECOVERY, &name, seen, reached).await;
    }

    /// Stops, and checks that no request has failed.
    async fn finish(self) {
        let finished = join_all(self.0.into_iter().map(Load::finish)).await;
        let seen = of_all(finished);
        assert_eq!(seen.failures, Vec::<String>::new(), "{:?}", seen.answers);
    }
}

fn of_all(results: impl IntoIterator<Item = LoadResults>) -> LoadResults {
    let mut all = LoadResults::default();
    for seen in results {
        for (instance, count) in seen.answers {
            *all.answers.entry(instance).or_default() += count;
        }
        all.failures.extend(seen.failures);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_instances_and_gateways_fail_no_request() {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let mut all = Three::start().await;
    all.is_isolated().await;
    for store in ["store-2a", "store-2b"] {
        all.two.add(&instance("store", store)).await;
    }
    all.three.add(&instance("store", "store-3")).await;
    all.one.add(&instance("pay", "pay-1")).await;
    all.three.add(&instance("pay", "pay-3")).await;
    all.one.add_web("web-1").await;
    all.two.add_web("web-2").await;
    all.one.answers("web-1", STORE, "store-2").await;
    all.two.answers("web-2", PAY, "pay-1").await;

    // What the primary allows, the proxies of another datacenter decide.
    all.one.intend("store", "deny").await;
    all.one.answers("web-1", STORE, "403").await;
    all.two.answers("web-2", STORE, "403").await;
    all.two.answers("web-2", PAY, "pay-1").await;
    all.one.intend("store", "allow").await;
    all.one.answers("web-1", STORE, "store-2").await;

    let store = Loads::of(&all.one, "web-1", STORE);
    let pay = Loads::of(&all.two, "web-2", PAY);
    store.go_on(&["store-2a", "store-2b"]).await;
    pay.go_on(&["pay-1"]).await;
    all.two.kill("store-2a");
    store.go_on(&["store-2b"]).await;
    all.two.forget("store-2a").await;
    for (gateway, next, host) in [
        ("gateway-2a", "gateway-2c", GATEWAY + 2),
        ("gateway-2b", "gateway-2d", GATEWAY + 3),
    ] {
        all.two.kill(gateway);
        store.go_on(&["store-2b"]).await;
        pay.go_on(&["pay-1"]).await;
        all.two.forget(gateway).await;
        all.two.add_gateway(next, 1, host).await;
    }
    // The last instances in a datacenter: callers fail over to another one.
    all.one.kill("pay-1");
    pay.go_on(&["pay-3"]).await;
    all.two.kill("store-2b");
    store.go_on(&["store-3"]).await;
    store.finish().await;
    pay.finish().await;
    all.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_that_are_all_replaced_are_found_again() {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let mut all = Three::start().await;
    all.two.add(&instance("store", "store-2")).await;
    all.one.add_web("web-1").await;
    all.three.add_web("web-3").await;
    all.one.answers("web-1", STORE, "store-2").await;
    all.three.answers("web-3", STORE, "store-2").await;
    for gateway in ["gateway-2a", "gateway-2b"] {
        all.two.kill(gateway);
        all.two.forget(gateway).await;
    }
    all.two.add_gateway("gateway-2c", 1, GATEWAY + 2).await;
    all.one.answers("web-1", STORE, "store-2").await;
    all.three.answers("web-3", STORE, "store-2").await;
    // The servers reach those there, too: callers fail over when there is no instance any more, and back.
    all.three.add(&instance("store", "store-3")).await;
    all.two.kill("store-2");
    all.two.forget("store-2").await;
    all.one.answers("web-1", STORE, "store-3").await;
    all.two.add(&instance("store", "store-new")).await;
    all.one.answers("web-1", STORE, "store-new").await;
    all.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_servers_calls_go_on_and_nothing_is_stale_when_they_are_back() {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let mut all = Three::start().await;
    all.two.add(&instance("store", "store-2")).await;
    for pay in [instance("pay", "pay-1"), instance("api", "api-1")] {
        all.one.add(&pay).await;
    }
    for far in [instance("pay", "pay-3"), instance("api", "api-3")] {
        all.three.add(&far).await;
    }
    all.one.add_web("web-1").await;
    all.two.add_web("web-2").await;
    all.one.answers("web-1", STORE, "store-2").await;
    all.two.answers("web-2", PAY, "pay-1").await;
    all.two.answers("web-2", API, "api-1").await;

    let loads = [
        Loads::of(&all.one, "web-1", STORE),
        Loads::of(&all.two, "web-2", STORE),
        Loads::of(&all.two, "web-2", PAY),
    ];
    all.two.run(async |mesh| mesh.stop_server().await).await;
    for load in &loads {
        load.go_on(&[]).await;
    }
    // Meanwhile an intention, an entry and an instance change.
    all.one.intend("store", "deny").await;
    let elsewhere = resolver("pay", json!({"Redirect": {"Datacenter": "dc3"}}));
    all.one.run(async |mesh| mesh.entry(elsewhere).await).await;
    all.one.forget("api-1").await;
    for load in loads {
        load.go_on(&[]).await;
        load.finish().await;
    }
    all.two.run(async |mesh| mesh.start_server().await).await;
    all.one.answers("web-1", STORE, "403").await;
    all.two.answers("web-2", STORE, "403").await;
    all.two.answers("web-2", PAY, "pay-3").await;
    all.two.answers("web-2", API, "api-3").await;
    all.one.intend("store", "allow").await;
    all.one.answers("web-1", STORE, "store-2").await;

    all.two.add_critical(&instance("api", "api-2")).await;
    without_the_primary(&mut all).await;
    all.stop().await;
}

/// Kills the server of the primary, and starts it again.
async fn without_the_primary(all: &mut Three) {
    let loads = [
        Loads::of(&all.one, "web-1", STORE),
        Loads::of(&all.two, "web-2", PAY),
    ];
    all.one.run(async |mesh| mesh.stop_server().await).await;
    let entry = json!({"Kind": "service-defaults", "Name": "late", "Protocol": "http"});
    all.two.refuses("/v1/config", &entry).await;
    let path = "/v1/connect/intentions/exact?source=web&destination=late";
    all.two.refuses(path, &json!({"Action": "allow"})).await;
    // What is replicated is read, what is local is written, and certificates are signed.
    all.two
        .reads("/v1/config/service-router/pay", "NumRetries")
        .await;
    all.two.reads("/v1/connect/intentions", "store").await;
    let (status, _) = all.two.ask(Method::PUT, "/v1/kv/a", Some(json!(1))).await;
    assert!(status.is_success());
    let (_, roots) = all
        .two
        .ask(Method::GET, "/v1/connect/ca/roots?pem=true", None)
        .await;
    let (_, leaf) = all
        .two
        .ask(Method::GET, "/v1/agent/connect/ca/leaf/late", None)
        .await;
    let leaf: Value = serde_json::from_str(&leaf).expect("a leaf");
    let chain = leaf["CertPEM"].as_str().expect("a certificate");
    verify_chain(chain, &roots, SystemTime::now()).expect("a leaf of the mesh");
    all.two.pass("api-2").await;
    all.two.answers("web-2", API, "api-2").await;
    for load in loads {
        load.go_on(&[]).await;
        load.finish().await;
    }

    all.one.run(async |mesh| mesh.start_server().await).await;
    all.two.writes("/v1/config", &entry).await;
    for site in [&mut all.one, &mut all.two, &mut all.three] {
        site.reads("/v1/config/service-defaults/late", "http").await;
    }
}

/// The number of servers of a datacenter that loses one of them.
const REPLICAS: u8 = 3;

/// Each of the servers once, so also the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_of_three_fails_no_request_and_the_others_take_its_part() {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let mut all = Three::start_with(REPLICAS).await;
    all.two.add(&instance("store", "store-2")).await;
    all.one.add(&instance("pay", "pay-1")).await;
    for far in [
        instance("store", "store-3"),
        instance("pay", "pay-3"),
        instance("api", "api-3"),
    ] {
        all.three.add(&far).await;
    }
    all.one.add_web("web-1").await;
    all.two.add_web("web-2").await;
    all.one.answers("web-1", STORE, "store-2").await;
    all.two.answers("web-2", PAY, "pay-1").await;
    all.two.answers("web-2", STORE, "store-2").await;
    all.one.answers("web-1", API, "api-3").await;
    all.two.add_critical(&instance("api", "api-2")).await;
    for killed in 0..usize::from(REPLICAS) {
        let loads = [
            (Loads::of(&all.one, "web-1", STORE), "store-2"),
            (Loads::of(&all.two, "web-2", PAY), "pay-1"),
            (Loads::of(&all.two, "web-2", STORE), "store-2"),
        ];
        for (load, instance) in &loads {
            load.go_on(&[instance]).await;
        }
        all.two
            .run(async |mesh| {
                mesh.use_server((killed + 1) % usize::from(REPLICAS));
                mesh.replicas().kill(killed).await;
            })
            .await;
        for (load, instance) in &loads {
            load.go_on(&[instance]).await;
        }
        // An instance of the datacenter that has lost a server, on both sides.
        all.two.pass("api-2").await;
        all.one.answers("web-1", API, "api-2").await;
        all.two.answers("web-2", API, "api-2").await;
        // An intention of the primary, on both sides.
        all.one.intend("api", "deny").await;
        all.one.answers("web-1", API, "403").await;
        all.two.answers("web-2", API, "403").await;
        // A write of the secondary, which its servers pass on.
        all.two.intend("api", "allow").await;
        all.two.answers("web-2", API, "api-2").await;
        all.one.answers("web-1", API, "api-2").await;
        all.two
            .run(async |mesh| mesh.check("api-2", "critical").await)
            .await;
        all.one.answers("web-1", API, "api-3").await;
        for (load, instance) in loads {
            load.go_on(&[instance]).await;
            load.finish().await;
        }
        all.two
            .run(async |mesh| mesh.replicas().start(killed).await)
            .await;
    }
    all.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_of_a_cut_serve_their_callers_and_catch_up() {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let mut all = Three::start().await;
    // What was sent before the cut is never answered.
    for service in ["store", "pay", "depot"] {
        let soon = router(service, "3s");
        all.one.run(async |mesh| mesh.entry(soon).await).await;
    }
    all.one.add(&instance("api", "api-1")).await;
    all.two.add(&instance("api", "api-2")).await;
    all.two.add(&instance("store", "store-2")).await;
    all.two.add_critical(&instance("depot", "depot-2")).await;
    all.three.add(&instance("depot", "depot-3")).await;
    all.one.add(&instance("pay", "pay-1")).await;
    all.three.add(&instance("store", "store-3")).await;
    all.three.add(&instance("pay", "pay-3")).await;
    all.one.add_web("web-1").await;
    all.two.add_web("web-2").await;
    all.one.answers("web-1", STORE, "store-2").await;
    all.one.answers("web-1", DEPOT, "depot-3").await;
    all.two.answers("web-2", PAY, "pay-1").await;
    let own = Loads::of(&all.one, "web-1", API);
    let own_of_two = Loads::of(&all.two, "web-2", API);
    own.go_on(&["api-1"]).await;

    all.networks.cut([0, 1]);
    all.one.answers("web-1", STORE, "store-3").await;
    all.two.answers("web-2", PAY, "pay-3").await;
    let entry = json!({"Kind": "service-defaults", "Name": "late", "Protocol": "http"});
    all.two.refuses("/v1/config", &entry).await;
    let status = "/v1/internal/legate/status";
    let unreachable = "No path to datacenter \\\"dc2\\\"";
    all.one.reads(status, unreachable).await;
    own.go_on(&["api-1"]).await;
    own.finish().await;
    // The other side does not learn of these changes yet.
    all.two.pass("depot-2").await;
    all.one.intend("api", "deny").await;
    all.one.answers("web-1", API, "403").await;
    all.one.answers("web-1", DEPOT, "depot-3").await;
    own_of_two.go_on(&["api-2"]).await;
    own_of_two.finish().await;

    all.networks.mend([0, 1]);
    all.one.answers("web-1", STORE, "store-2").await;
    all.one.answers("web-1", DEPOT, "depot-2").await;
    all.two.answers("web-2", PAY, "pay-1").await;
    all.two.answers("web-2", API, "403").await;
    all.two.writes("/v1/config", &entry).await;
    all.three
        .reads("/v1/config/service-defaults/late", "http")
        .await;
    all.stop().await;
}
