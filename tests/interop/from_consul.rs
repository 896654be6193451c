//! `docs/from-consul.md` as it is written: services move from a real Consul to Legate while requests go on, none of which
//! fails. Each cluster has a network of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use legate_runtime::Scope;
use legate_testkit::document::{Document, Step};
use legate_testkit::envoy::workspace_binary;
use legate_testkit::requirement::{self, CONSUL, IP, NFT, ROOT};
use legate_tests::load::Load;
use legate_tests::sites::{self, Namespace, Sites};
use legate_tests::steps::{Shell, Started};
use legate_tests::wait::{LIMIT, eventually_within};
use legate_tests::{app, client};
use serde_json::json;
use tempfile::TempDir;

const DOCUMENT: Document = Document {
    path: "docs/from-consul.md",
    text: include_str!("../../docs/from-consul.md"),
    section: None,
};
/// What the other cluster reaches, as the page says, and what people reach.
const PORTS: [u16; 3] = [8443, 8503, 8080];
/// The sites of the clusters.
const OLD: u8 = 0;
const NEW: u8 = 1;
/// The services of the page, in the order of calls: the ports of the application and of its upstream.
const SERVICES: [(&str, u16, Option<u16>); 3] = [
    ("web", 8080, Some(9191)),
    ("api", 8081, Some(9192)),
    ("auth", 8082, None),
];

const ALL_OLD: &str = "old-web > old-api > old-auth";
const API_MOVED: &str = "old-web > new-api > old-auth";
const WEB_MOVED: &str = "new-web > new-api > old-auth";
const ALL_MOVED: &str = "new-web > new-api > new-auth";

/// What a reader does without a command, before the block whose introduction has the text.
const BY_HAND: [(&str, Action); 10] = [
    ("Start `api`", Action::Start("api")),
    (
        "the share is answered well",
        Action::Await(&[ALL_OLD, API_MOVED]),
    ),
    (
        "instances get no requests any more",
        Action::Await(&[API_MOVED]),
    ),
    ("with the same upstream. Start", Action::Stop("api")),
    ("Start `web`", Action::Start("web")),
    ("Let the load balancer use", Action::UseNew),
    ("Start `auth`", Action::Stop("web")),
    ("Start `auth`", Action::Start("auth")),
    ("Without the resolver", Action::Await(&[ALL_MOVED])),
    ("Stop the old `auth`", Action::Stop("auth")),
];

#[derive(Debug, Clone, Copy)]
enum Action {
    /// Starts the application in the new cluster.
    Start(&'static str),
    /// Stops the old application and its sidecar.
    Stop(&'static str),
    /// Waits until requests take each of these ways and no other one.
    Await(&'static [&'static str]),
    /// Sends the requests of people to the new `web`.
    UseNew,
}

struct Scene {
    networks: Sites,
    shell: Shell,
    /// The old sidecars and applications.
    old: BTreeMap<&'static str, (Started, Scope)>,
    new: Scope,
    /// The requests of people.
    load: Load,
    /// The old cluster itself.
    consul: Started,
    _folder: TempDir,
}

impl Scene {
    /// A cluster of Consul with the services of the page.
    async fn start(consul: &Path) -> Self {
        let networks = Sites::open(2, &PORTS);
        let (old, new) = (networks.site(OLD.into()), networks.site(NEW.into()));
        // Consul looks for it on the interfaces.
        old.assign(sites::address(OLD, 1));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut shell = Shell::new(folder.path(), "programs", &old);
        // The Envoy of tests is newer than those that Consul knows.
        let also = ("connect envoy", "-ignore-envoy-compatibility");
        shell.add("consul", consul, &old, Some(also));
        shell.add("legate", &workspace_binary("legate"), &new, None);
        let settings = json!({
            "node_name": "old", "bind_addr": sites::address(OLD, 1),
            "default_intention_policy": "deny", "ports": {"grpc": 8502, "grpc_tls": -1},
        });
        let file = folder.path().join("consul.json");
        std::fs::write(file, settings.to_string()).expect("the folder can be written");
        let consul = shell
            .start("consul agent -dev -config-file consul.json &")
            .await;
        answers(
            &old,
            ([127, 0, 0, 1], 8500).into(),
            "/v1/connect/ca/roots",
            "RootCert",
        )
        .await;
        shell.start(ENTRIES).await;
        let mut services = BTreeMap::new();
        for (number, (name, ..)) in SERVICES.iter().enumerate() {
            let apps = Scope::new("applications");
            application("old", name, &old, &apps).await;
            let sidecar = shell.start(&old_service(number)).await;
            services.insert(*name, (sidecar, apps));
        }
        answers(&old, web(OLD), "/", ALL_OLD).await;
        Self {
            load: Load::start_within(&old, web(OLD)),
            networks,
            shell,
            old: services,
            new: Scope::new("applications"),
            consul,
            _folder: folder,
        }
    }

    /// Does what a reader does before a step.
    async fn by_hand(&mut self, action: Action) {
        match action {
            Action::Start(name) => {
                let network = self.networks.site(NEW.into());
                application("new", name, &network, &self.new).await;
            }
            Action::Stop(name) => {
                let (sidecar, apps) = self.old.remove(name).expect("it was not stopped");
                sidecar.stop();
                apps.stop(LIMIT).await.expect("the application stops");
            }
            Action::Await(ways) => self.are(ways).await,
            Action::UseNew => {
                let network = self.networks.site(NEW.into());
                let new = Load::start_within(&network, web(NEW));
                let old = std::mem::replace(&mut self.load, new);
                passed(old).await;
                self.are(&[WEB_MOVED]).await;
            }
        }
    }

    /// Waits until requests take each of these ways, and 50 in a row no other one.
    async fn are(&self, ways: &[&str]) {
        let expected: BTreeSet<&str> = ways.iter().copied().collect();
        let mut before = self.load.seen().answers;
        let probe = || {
            let now = self.load.seen().answers;
            let new = now
                .iter()
                .filter(|(way, count)| before.get(*way) != Some(*count));
            let taken: BTreeSet<String> = new.map(|(way, _)| way.clone()).collect();
            let count = now.values().sum::<usize>() - before.values().sum::<usize>();
            if count > 50 {
                before = now;
            }
            async move { (count, taken) }
        };
        let done = |(count, taken): &(usize, BTreeSet<String>)| {
            *count > 50
                && taken
                    .iter()
                    .map(String::as_str)
                    .eq(expected.iter().copied())
        };
        let what = format!("requests go {ways:?}");
        eventually_within(LIMIT * 2, &what, probe, done).await;
    }
}

/// Ends a load, of which no request may have failed.
async fn passed(load: Load) {
    let seen = load.finish().await;
    let none: Vec<String> = Vec::new();
    assert_eq!(seen.failures, none, "answers: {:?}", seen.answers);
}

fn web(site: u8) -> SocketAddr {
    (sites::address(site, 1), 8080).into()
}

async fn application(prefix: &str, name: &str, network: &Namespace, scope: &Scope) {
    let found = SERVICES.iter().find(|(known, ..)| *known == name);
    let (_, port, upstream) = found.expect("a service of the page");
    let calls = upstream.map(|port| ([127, 0, 0, 1], port).into());
    app::chained(&format!("{prefix}-{name}"), network, *port, calls, scope).await;
}

/// Waits until an answer has a text.
async fn answers(network: &Namespace, server: SocketAddr, path: &str, text: &str) {
    let ask = || async {
        let answer = network.within(client::get(server, path)).await;
        answer.map_err(|error| error.to_string())
    };
    let expected = |answer: &Result<client::Answer, String>| matches!(answer, Ok((status, body)) if status.is_success() && body.contains(text));
    let what = format!("{server} answers {text}");
    let answer = eventually_within(LIMIT * 2, &what, ask, expected).await;
    answer.expect("an answer");
}

/// What the old cluster has before the move.
const ENTRIES: &str = r#"
consul kv put shop/motd welcome
for name in web api; do
  echo "Kind = \"service-defaults\" Name = \"$name\" Protocol = \"http\"" | consul config write -
done
echo 'Kind = "service-intentions" Name = "api" Sources = [{ Name = "web" Action = "allow" }]' | consul config write -
echo 'Kind = "service-intentions" Name = "auth" Sources = [{ Name = "api" Action = "allow" }]' | consul config write -
"#;

/// The commands that register an old service and start its sidecar.
fn old_service(number: usize) -> String {
    let (name, port, upstream) = SERVICES[number];
    let upstreams = match upstream {
        Some(local) => json!([{
            "destination_name": SERVICES[number + 1].0, "local_bind_port": local,
        }]),
        None => json!([]),
    };
    let service = json!({"service": {
        "name": name, "address": sites::address(OLD, 1), "port": port,
        "connect": {"sidecar_service": {
            "port": 21000 + number, "proxy": {"upstreams": upstreams},
        }},
    }});
    format!(
        "echo '{service}' > old-{name}.json\nconsul services register old-{name}.json\n\
         consul connect envoy -sidecar-for {name} -admin-bind 127.0.0.1:{} &",
        19001 + number
    )
}

/// What is to be done by hand before a step.
fn before(step: &Step) -> impl Iterator<Item = &'static (&'static str, Action)> {
    let introduction = step.introduction.clone();
    BY_HAND
        .iter()
        .filter(move |(text, _)| introduction.contains(text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_move_and_no_request_fails() {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let Some(consul) = requirement::program(CONSUL) else {
        return;
    };
    let content = DOCUMENT.parse().expect("the page can be run");
    let mut scene = Scene::start(&consul).await;
    let mut done = Vec::new();
    for step in &content.steps {
        for (text, action) in before(step) {
            scene.by_hand(*action).await;
            done.push(*text);
        }
        scene.shell.run(step).await;
        let failures = scene.load.seen().failures;
        assert_eq!(failures.first(), None, "after line {}", step.line);
    }
    assert_eq!(
        done,
        BY_HAND.map(|(text, _)| text),
        "the page has other steps"
    );
    // Nothing needs the old cluster any more.
    scene.consul.stop();
    scene.are(&[ALL_MOVED]).await;
    passed(scene.load).await;
    drop(scene.shell);
    scene.new.stop(LIMIT).await.expect("the applications stop");
}
