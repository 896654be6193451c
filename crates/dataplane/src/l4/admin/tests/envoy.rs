//! The same resources in a real Envoy: what this proxy shows is there as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;

use legate_envoy::bootstrap::{
    BootstrapInputs, NodeInputs, PrometheusInputs, ProxyConfig, XdsAddress, build,
};
use legate_testkit::network::free_port_on;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::*;

/// The document of a proxy of Consul's kind, with these resources instead of a server.
fn bootstrap(resources: &Resources) -> Value {
    let inputs = BootstrapInputs {
        node: NodeInputs {
            id: "web-proxy".to_owned(),
            cluster: "web".to_owned(),
            datacenter: "dc1".to_owned(),
            ..NodeInputs::default()
        },
        admin: (Ipv4Addr::LOCALHOST, 0).into(),
        access_logs: Vec::new(),
        xds: XdsAddress::Tcp((Ipv4Addr::LOCALHOST, 1).into()),
        ready: None,
        prometheus: PrometheusInputs {
            scrape_path: "/metrics".to_owned(),
            backend: (Ipv4Addr::LOCALHOST, 1).into(),
            tls: None,
        },
        deprecated_tags: true,
        proxy_config: ProxyConfig::default(),
    };
    let mut document = build(&inputs).unwrap().document;
    document["static_resources"] = json!({
        "clusters": resources.clusters,
        "listeners": resources.listeners,
    });
    document
        .as_object_mut()
        .unwrap()
        .remove("dynamic_resources");
    document
}

/// Starts an Envoy. It ends when the result is dropped.
async fn start(document: &Value, folder: &Path) -> (Child, AdminClient) {
    let address = folder.join("admin");
    let child = Command::new(legate_testkit::envoy::binary())
        .args([
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "error",
        ])
        .arg("--admin-address-path")
        .arg(&address)
        .arg("--config-yaml")
        .arg(document.to_string())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let admin = wait::until(async || {
        let text = std::fs::read_to_string(&address).map_err(|error| error.to_string())?;
        let admin = text
            .trim()
            .parse()
            .map_err(|error| format!("{error}: {text}"))?;
        Ok(AdminClient::new(admin))
    })
    .await;
    wait::until(async || {
        let info = admin
            .server_info()
            .await
            .map_err(|error| error.to_string())?;
        info.live().then_some(()).ok_or(info.state)
    })
    .await;
    (child, admin)
}

/// The series of a page with their labels in order, and the type of each. Values of buckets are not compared.
fn series(page: &str) -> BTreeMap<String, String> {
    let mut types = BTreeMap::new();
    let mut all = BTreeMap::new();
    for line in page.lines() {
        if let Some(line) = line.strip_prefix("# TYPE ") {
            let (name, kind) = line.split_once(' ').unwrap();
            types.insert(name.to_owned(), kind.to_owned());
            continue;
        }
        let Some((name, rest)) = line.split_once('{') else {
            continue;
        };
        let (labels, _) = rest.rsplit_once("} ").unwrap();
        // No value has a comma.
        let labels: BTreeSet<&str> = labels.split(',').collect();
        let of = |suffix: &str| name.strip_suffix(suffix).and_then(|name| types.get(name));
        let kind = types
            .get(name)
            .or_else(|| of("_bucket"))
            .or_else(|| of("_sum"));
        let kind = kind.or_else(|| of("_count")).unwrap();
        all.insert(format!("{name}{labels:?}"), kind.clone());
    }
    all
}

/// Fails unless everything in `ours` is in `theirs`. Entries of lists are found by their name.
fn assert_contained(ours: &Value, theirs: &Value, at: &str) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(_)) => {
            for (name, value) in ours {
                assert_contained(value, &theirs[name], &format!("{at}.{name}"));
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            for (index, value) in ours.iter().enumerate() {
                let name = value.get("name");
                let same = theirs
                    .iter()
                    .find(|one| name.is_some() && one.get("name") == name);
                let same = same.or(theirs.get(index)).unwrap_or(&Value::Null);
                assert_contained(value, same, &format!("{at}[{index}]"));
            }
        }
        _ => assert_eq!(ours, theirs, "{at}"),
    }
}

/// What only one of them can say.
fn without(mut page: Value, field: &str) -> Value {
    match &mut page {
        Value::Object(fields) => {
            fields.remove(field);
            for value in fields.values_mut() {
                *value = without(value.take(), field);
            }
        }
        Value::Array(values) => {
            for value in values {
                *value = without(value.take(), field);
            }
        }
        _ => {}
    }
    page
}

#[tokio::test]
async fn a_real_envoy_has_everything_that_is_shown() {
    let (ca, folder) = (TestCa::new(), tempfile::tempdir().unwrap());
    let loopback = [
        Ipv4Addr::LOCALHOST.into(),
        std::net::Ipv6Addr::LOCALHOST.into(),
    ];
    let ports = [(); 6].map(|()| free_port_on(&loopback));
    let pipe = folder.path().join("listener.sock");
    let resources = resources(&ca, ports, pipe.to_str().unwrap());
    let document = bootstrap(&resources);
    let (_child, envoy) = start(&document, folder.path()).await;
    let scope = Scope::new("test");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let own = AdminClient::new(listener.local_addr().unwrap());
    let parts = Parts {
        built_in: built_in(&resources),
        bootstrap: document,
        drain_time: Duration::ZERO,
        quit: Box::new(|| {}),
        envoy: watch::channel(None).1,
    };
    Pages::new(parts, &scope.spawner()).serve(listener, &scope.spawner());
    let pages = async |path| {
        let (own, envoy) = tokio::join!(own.get(path), envoy.get(path));
        let text = |page: bytes::Bytes| String::from_utf8(page.to_vec()).unwrap();
        (text(own.unwrap()), text(envoy.unwrap()))
    };

    let (ours, theirs) = pages("/stats/prometheus").await;
    let (ours, theirs) = (series(&ours), series(&theirs));
    assert!(ours.len() > 500, "{}", ours.len());
    let foreign = ours
        .iter()
        .filter(|(name, kind)| !name.starts_with("legate_l4_") && theirs.get(*name) != Some(kind));
    assert_eq!(foreign.collect::<Vec<_>>(), [], "not in Envoy");

    let (ours, theirs) = pages("/stats").await;
    let names = |page: &str| -> BTreeSet<String> {
        let names = page.lines().filter_map(|line| line.rsplit_once(": "));
        names.map(|(name, _)| name.to_owned()).collect()
    };
    let (ours, theirs) = (names(&ours), names(&theirs));
    let foreign = ours.difference(&theirs);
    let foreign = foreign.filter(|name| !name.starts_with("legate_l4."));
    assert_eq!(
        foreign.collect::<Vec<_>>(),
        [] as [&String; 0],
        "not in Envoy"
    );

    let (ours, theirs) = pages("/listeners").await;
    let lines = |page: &str| page.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(lines(&ours), lines(&theirs));
    let (ours, theirs) = pages("/clusters").await;
    let foreign = lines(&ours);
    let foreign = foreign
        .difference(&lines(&theirs))
        .cloned()
        .collect::<Vec<_>>();
    let foreign = foreign
        .iter()
        .filter(|line| !line.ends_with("::added_via_api::true"));
    assert_eq!(
        foreign.collect::<Vec<_>>(),
        [] as [&String; 0],
        "not in Envoy"
    );

    for path in ["/listeners?format=json", "/clusters?format=json", "/certs"] {
        let (ours, theirs) = pages(path).await;
        let ours = serde_json::from_str(&ours).unwrap();
        let ours = without(ours, "added_via_api");
        assert_contained(&ours, &serde_json::from_str(&theirs).unwrap(), path);
    }
}
