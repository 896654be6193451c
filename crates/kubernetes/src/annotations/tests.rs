use legate_model::{MeshGatewayMode, UpstreamType};
use proptest::prelude::*;

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs
        .iter()
        .map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned()));
    pairs.collect()
}

fn parse(pairs: &[(&str, &str)]) -> Result<Annotations, String> {
    Annotations::parse(&map(pairs)).map_err(|error| error.to_string())
}

#[test]
fn every_served_key_is_read_and_invalid_values_are_refused_by_name() {
    // Keys that accept any text.
    let free = [
        "kubernetes-service",
        "service-tags",
        "service-meta-*",
        "envoy-extra-args",
    ];
    for key in KEYS.iter().filter(|key| key.treatment == Treatment::Served) {
        if free.contains(&key.name) {
            continue;
        }
        let annotations = map(&[(key.name, "@ @")]);
        let error = match key.name {
            "connect-inject" => wants_injection(&annotations).unwrap_err(),
            _ => Annotations::parse(&annotations).expect_err(key.name),
        };
        assert_eq!(error.key, format!("{PREFIX}{}", key.name));
    }
    let free = parse(&[
        ("kubernetes-service", "web"),
        ("service-tags", r"a\,b, c,,$POD_NAME"),
        ("service-meta-version", "2"),
        ("envoy-extra-args", "--log-level debug"),
    ])
    .unwrap();
    assert_eq!(free.kubernetes_service.as_deref(), Some("web"));
    assert_eq!(free.tags, ["a,b", "c", "$POD_NAME"]);
    assert_eq!(free.meta["version"], "2");
    assert!(free.sidecar.envoy_extra_args.is_some());
}

#[test]
fn several_services_of_a_pod_are_refused() {
    let error = parse(&[("connect-service", "a,b")]).unwrap_err();
    assert!(
        error.contains("only one service per pod is supported"),
        "{error}"
    );
}

#[test]
fn an_empty_value_counts_as_absent() {
    let empty: Vec<(&str, &str)> = KEYS.iter().map(|key| (key.name, "")).collect();
    assert_eq!(parse(&empty).unwrap(), Annotations::default());
    assert_eq!(wants_injection(&map(&empty)), Ok(None));
}

#[test]
fn an_unknown_key_is_warned_of_with_the_nearest_one() {
    let said = warnings(&map(&[
        ("connect-service-upstream", "a:1"),
        ("enable-sidecar-proxy-shutdown-drain-listeners", "true"),
        ("of-something-else", "x"),
        ("mesh-inject", "true"),
        ("service-meta-x", "y"),
        ("gateway-kind", "mesh-gateway"),
    ]));
    assert_eq!(
        said,
        [
            "annotation consul.hashicorp.com/connect-service-upstream is unknown and has no effect; \
             did you mean consul.hashicorp.com/connect-service-upstreams?",
            "annotation consul.hashicorp.com/enable-sidecar-proxy-shutdown-drain-listeners is \
             unknown and has no effect; did you mean \
             consul.hashicorp.com/enable-sidecar-proxy-lifecycle-shutdown-drain-listeners?",
            "annotation consul.hashicorp.com/mesh-inject is ignored: it belongs to consul-k8s",
            "annotation consul.hashicorp.com/of-something-else is unknown and has no effect",
        ]
    );
}

#[test]
fn the_forms_of_upstreams() {
    let one = |text: &str| {
        let parsed = parse(&[("connect-service-upstreams", text)]).unwrap();
        assert_eq!(parsed.upstreams.len(), 1, "{text}");
        let upstream = &parsed.upstreams[0];
        let registered = upstream.registered(|_| Some(99)).unwrap();
        (
            registered.id().to_string(),
            registered.local_bind_port,
            registered.local_bind_address,
            registered.mesh_gateway.mode,
        )
    };
    let plain = |id: &str, port| (id.to_owned(), port, String::new(), MeshGatewayMode::Default);
    assert_eq!(one("db:1234"), plain("db", 1234));
    assert_eq!(one(" db : 1234 "), plain("db", 1234));
    assert_eq!(one("db:main"), plain("db", 99));
    assert_eq!(one("db:1234:dc2"), plain("db?dc=dc2", 1234));
    assert_eq!(one("db.svc:1234"), plain("db", 1234));
    assert_eq!(one("db.svc.east.peer:1234"), plain("db?peer=east", 1234));
    assert_eq!(one("db.svc.dc2.dc:1234"), plain("db?dc=dc2", 1234));
    assert_eq!(
        one("prepared_query:db:1234"),
        plain("prepared_query:db", 1234)
    );
    let address = "127.0.0.2".to_owned();
    assert_eq!(
        one("db:1234:dc2?local_bind_address=127.0.0.2&mesh-gateway-mode=local"),
        (
            "db?dc=dc2".to_owned(),
            1234,
            address.clone(),
            MeshGatewayMode::Local
        )
    );
    assert_eq!(
        one("db:1234:localBindAddress=127.0.0.2&datacenter=dc2"),
        (
            "db?dc=dc2".to_owned(),
            1234,
            address.clone(),
            MeshGatewayMode::Default
        )
    );
    assert_eq!(
        one("db.svc:1234:local-bind-address=127.0.0.2"),
        ("db".to_owned(), 1234, address, MeshGatewayMode::Default)
    );
    let several = parse(&[("connect-service-upstreams", "a:1, b:2,prepared_query:c:3,")]).unwrap();
    let kinds: Vec<UpstreamType> = several.upstreams.iter().map(|one| one.kind).collect();
    use UpstreamType::{PreparedQuery, Service};
    assert_eq!(kinds, [Service, Service, PreparedQuery]);
}

#[test]
fn upstreams_of_other_tenants() {
    let one = |text: &str| {
        let parsed = parse(&[("connect-service-upstreams", text)]).unwrap();
        let upstream = &parsed.upstreams[0];
        let mut registered = serde_json::json!({});
        upstream.name_tenant(&mut registered);
        // Printing and parsing again gives the same upstream.
        let again = parse(&[("connect-service-upstreams", &upstream.to_string())]).unwrap();
        assert_eq!(again.upstreams, parsed.upstreams, "{upstream}");
        let text = |field: &str| registered[field].as_str().unwrap_or("-").to_owned();
        let tenant = (text("DestinationNamespace"), text("DestinationPartition"));
        (tenant.0, tenant.1, upstream.datacenter.clone())
    };
    let tenant = |ns: &str, ap: &str, dc: &str| (ns.to_owned(), ap.to_owned(), dc.to_owned());
    assert_eq!(one("db:1234"), tenant("-", "-", ""));
    assert_eq!(one("db.ns1:1234"), tenant("ns1", "-", ""));
    assert_eq!(one("db.ns1.p1:1234:dc2"), tenant("ns1", "p1", "dc2"));
    assert_eq!(one("db.svc.ns1.ns:1234"), tenant("ns1", "-", ""));
    assert_eq!(one("db.svc.ns1.ns.p1.ap:1234"), tenant("ns1", "p1", ""));
    assert_eq!(one("db.svc.ns1.ns.dc2.dc:main"), tenant("ns1", "-", "dc2"));
    assert_eq!(one("db.svc.p1.ap:1234"), tenant("-", "p1", ""));
    let peer = parse(&[("connect-service-upstreams", "db.svc.ns1.ns.east.peer:1")]).unwrap();
    assert_eq!(peer.upstreams[0].peer, "east");
    assert_eq!(peer.upstreams[0].namespace.as_str(), "ns1");
}

#[test]
fn invalid_upstreams_are_refused_in_one_sentence() {
    let reasons = [
        ("db", "has no port"),
        ("db:0", "has an invalid port"),
        ("db:70000", "has an invalid port"),
        ("db.n_1:1234", "has an invalid namespace: \"n_1\""),
        ("db.ns1.*:1234", "has an invalid partition: \"*\""),
        ("db.ns1.part.x:1234", "is malformed"),
        ("db.svc..ns:1234", "has an invalid namespace"),
        ("db.svc.ns1.ns.ns2.ns:1234", "is malformed"),
        ("db.svc.part.ap.ns1.ns:1234", "is malformed"),
        ("db.svc.x:1234", "is malformed"),
        ("db.svc..peer:1234", "is malformed"),
        ("db.svc:1234:9090", "names a port of the destination"),
        (
            "db:1234:destination_port=http",
            "names a port of the destination",
        ),
        ("db:1234:dc2?colour=red", "has the option \"colour\""),
        ("db:1234:mesh_gateway_mode=far", "use none, local or remote"),
        ("db:1234:local_bind_address=x", "is not an IP address"),
        ("db:1234:DC 2", "has an invalid datacenter"),
        (":1234", "has an invalid name"),
        ("*:1234", "has an invalid name"),
        ("prepared_query:db", "is not a prepared query"),
        ("prepared_query::1", "is not a prepared query"),
    ];
    for (text, reason) in reasons {
        let error = parse(&[("connect-service-upstreams", text)]).expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
        assert!(!error.contains('\n') && !error.contains(". "), "{error}");
    }
}

#[test]
fn the_reference_page_is_up_to_date() {
    let page = include_str!("../../../../docs/kubernetes-annotations.md");
    assert!(
        page == reference(),
        "run: cargo run -q -p legate-kubernetes --example annotations_reference > \
         docs/kubernetes-annotations.md"
    );
}

#[test]
fn quantities_and_cidrs_as_kubernetes_writes_them() {
    for good in ["1", "0.5", "100m", "50Mi", "1e3", "2Ei"] {
        assert!(values::quantity(good).is_ok(), "{good}");
    }
    for bad in ["", "m", "1 Mi", "50MB", "-1", "1.2.3", "nan"] {
        assert!(values::quantity(bad).is_err(), "{bad}");
    }
    let cidrs = values::cidrs("10.0.0.0/8, 192.0.2.1,2001:db8::/32").unwrap();
    assert_eq!(cidrs, ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"]);
    assert!(values::cidrs("10.0.0.0/33").is_err());
}

proptest! {
    #[test]
    fn garbage_never_panics_and_every_error_names_its_key(
        values in proptest::collection::vec((0..KEYS.len(), "\\PC{0,40}|[a-z0-9:.,?=&/_-]{0,60}"), 0..8),
    ) {
        let pairs: Vec<(&str, &str)> = values
            .iter()
            .map(|(key, value)| (KEYS[*key].name, value.as_str()))
            .collect();
        let annotations = map(&pairs);
        let _ = warnings(&annotations);
        let _ = wants_injection(&annotations);
        if let Err(error) = Annotations::parse(&annotations) {
            let name = error.key.strip_prefix(PREFIX).unwrap();
            prop_assert!(pairs.iter().any(|(key, _)| *key == name));
            prop_assert!(!error.reason.is_empty() && error.reason.len() < 2000);
        }
    }

    #[test]
    fn unknown_keys_never_panic(name in "\\PC{0,100}") {
        let _ = warnings(&map(&[(&name, "x")]));
    }
}

#[test]
fn volumes_are_kept_as_they_are() {
    let volumes = r#"[{"name": "certs", "secret": {"secretName": "certs"}, "later": 1}]"#;
    let mounts = r#"[{"name": "certs", "mountPath": "/certs", "readOnly": true}]"#;
    let sidecar = parse(&[
        ("consul-sidecar-user-volume", volumes),
        ("consul-sidecar-user-volume-mount", mounts),
    ]);
    let sidecar = sidecar.unwrap().sidecar;
    let [volumes, mounts] =
        [volumes, mounts].map(|text| serde_json::from_str::<Value>(text).unwrap());
    assert_eq!(Value::Array(sidecar.volumes), volumes);
    assert_eq!(Value::Array(sidecar.volume_mounts), mounts);
    for (key, value, reason) in [
        ("consul-sidecar-user-volume", "{}", "is not a JSON list"),
        ("consul-sidecar-user-volume", "[1]", "is not a JSON list"),
        (
            "consul-sidecar-user-volume",
            r#"[{"emptyDir": {}}]"#,
            "without name",
        ),
        (
            "consul-sidecar-user-volume",
            r#"[{"name": "a", "emptyDir": 1}]"#,
            "is not a JSON list",
        ),
        (
            "consul-sidecar-user-volume-mount",
            r#"[{"name": "a"}]"#,
            "without mountPath",
        ),
    ] {
        let error = parse(&[(key, value)]).unwrap_err();
        assert!(error.contains(key) && error.contains(reason), "{error}");
    }
}
