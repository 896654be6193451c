//! Checks that the programs accept what the chart generates: flags, and the operator's values.
//! `tests/chart` of the repository has the rendered output.

use std::fs;
use std::path::Path;

use clap::Parser;

use legate_kubernetes::context::{Config, Federation, Options, Peering};
use legate_kubernetes::tenancy::Tenants;

#[derive(Parser)]
struct Operator {
    #[command(flatten)]
    options: Options,
    // Flags of all subcommands.
    #[arg(long)]
    log_level: String,
    #[arg(long)]
    log_json: bool,
}

/// All rendered cases: name and documents.
fn rendered() -> Vec<(String, Vec<String>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/chart");
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it is readable").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.expect("names are text").to_owned();
        if !name.ends_with(".values.yaml") {
            let text = fs::read_to_string(&path).expect("files are readable");
            let documents = text.split("\n---\n").map(str::to_owned).collect();
            all.push((name, documents));
        }
    }
    assert!(!all.is_empty());
    all
}

/// The document of a kind whose name ends with `name`.
fn document<'a>(documents: &'a [String], kind: &str, name: &str) -> Option<&'a str> {
    documents.iter().map(String::as_str).find(|document| {
        let mut lines = document.lines();
        lines.clone().any(|line| line == format!("kind: {kind}"))
            && lines.any(|line| line.starts_with("  name: ") && line.ends_with(name))
    })
}

/// The arguments of the only container, with environment variables expanded.
fn arguments(document: &str) -> Vec<String> {
    let lines = document.lines().map(str::trim_start);
    let lines = lines.skip_while(|line| *line != "args:").skip(1);
    let items = lines.map_while(|line| line.strip_prefix("- "));
    items
        .map(|item| item.replace("$(POD_NAME)", "pod-0"))
        .collect()
}

#[test]
fn the_operator_accepts_its_flags() {
    for (name, documents) in rendered() {
        let deployment = document(&documents, "Deployment", "-operator").expect(&name);
        let arguments = arguments(deployment);
        assert_eq!(arguments[0], "operator", "{name}");
        let parsed = Operator::try_parse_from(&arguments);
        let parsed = parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(parsed.options.names.pod_name, "pod-0");
        let json = ["everything.yaml", "external-gateways.yaml"].contains(&name.as_str());
        assert_eq!(parsed.log_json, json, "{name}");
        assert!(!parsed.log_level.is_empty());
        let tenants = parsed.options.servers.http.tenants();
        let namespace = tenants.namespace("shop");
        let (namespace, partition) = (namespace.as_deref(), tenants.partition());
        match name.as_str() {
            "namespaces.yaml" => assert_eq!((namespace, partition), (Some("k8s-shop"), None)),
            "external-gateways.yaml" => {
                assert_eq!((namespace, partition), (Some("shop"), Some("east")));
            }
            "partition.yaml" => assert_eq!((namespace, partition), (Some("apps"), Some("east"))),
            _ => assert_eq!(tenants, Tenants::default(), "{name}"),
        }
        let method = parsed.options.servers.login_auth_method.as_deref();
        let signs = parsed.options.servers.ca_key.is_some();
        let secondary = name == "federation-secondary.yaml";
        assert_eq!(signs, secondary, "{name}");
        let of_datacenter = method.is_some_and(|method| method.ends_with("-method-dc2"));
        assert_eq!(of_datacenter, secondary, "{name}");
        let plain = ["plain.yaml"].contains(&name.as_str());
        assert_eq!(parsed.options.servers.http.tls, !plain, "{name}");
    }
}

#[test]
fn the_operator_accepts_its_values() {
    for (name, documents) in rendered() {
        let map = document(&documents, "ConfigMap", "-operator").expect(&name);
        let (_, json) = map.split_once("config.json: |\n").expect(&name);
        let config: Config = serde_json::from_str(json).expect(&name);
        match name.as_str() {
            // Defaults are the same in the chart and in the program.
            "default.yaml" => assert_eq!(config, Config::default()),
            "federation-primary.yaml" | "federation-secondary.yaml" => {
                let primary = name == "federation-primary.yaml";
                let expected = Federation {
                    enabled: true,
                    create_federation_secret: primary,
                    create_replication_token: primary,
                };
                assert_eq!(config.federation, expected, "{name}");
            }
            "peering.yaml" => {
                let expected = Peering {
                    enabled: true,
                    k8s_allow_namespaces: vec!["peers".to_owned()],
                };
                assert_eq!(config.peering, expected);
            }
            "gateway-api.yaml" => assert!(config.api_gateway.enabled),
            "monitoring.yaml" | "gateways.yaml" => assert!(config.metrics.default_enabled),
            "everything.yaml" => {
                assert_eq!(config.dns.enable_redirection, Some(false));
                assert_eq!(config.k8s_allow_namespaces, ["shop"]);
                assert_eq!(config.consul_node.meta["zone"], "a");
                assert!(config.default && !config.transparent_proxy.default_enabled);
            }
            _ => assert_eq!(
                config.external_servers.enabled,
                name.starts_with("external") || name == "partition.yaml"
            ),
        }
    }
}

#[test]
fn the_operator_may_watch_every_kind_of_resource_and_report_on_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/legate/crds");
    let mut kinds = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let text = fs::read_to_string(entry.expect("it is readable").path());
        let text = text.expect("files are readable");
        let plural = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("plural: "));
        kinds.push(plural.expect("it is a definition").to_owned());
    }
    kinds.sort();
    // They are watched with the Gateway API, and with peering.
    kinds.retain(|kind| !["gatewayclassconfigs", "meshservices"].contains(&kind.as_str()));
    kinds.retain(|kind| !kind.starts_with("peering"));
    let without = |(name, _): &(String, Vec<String>)| name != "gateway-api.yaml";
    for (name, documents) in rendered().into_iter().filter(without) {
        let role = document(&documents, "ClusterRole", "-operator").expect(&name);
        let items = || {
            role.lines()
                .filter_map(|line| line.strip_prefix("      - "))
        };
        let watched: Vec<&str> = items().filter(|item| !item.contains('/')).collect();
        let reported = items().filter_map(|item| item.strip_suffix("/status"));
        let peerings = role.contains("resources: [peeringacceptors, peeringdialers]");
        assert_eq!(peerings, name.contains("peering"), "{name}");
        assert_eq!(watched, kinds, "{name}");
        assert_eq!(reported.collect::<Vec<_>>(), kinds, "{name}");
    }
}
