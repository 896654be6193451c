//! Checks that the gateways that the chart generates are registered, and may log in.
//! `tests/chart` of the repository has the rendered output.

use std::fs;
use std::path::Path;

use clap::Parser;
use legate_kubernetes::acl_init;
use legate_kubernetes::annotations::{MANAGED_BY, MANAGED_BY_LEGATE};
use legate_kubernetes::inject::mark;
use legate_kubernetes::sync::facts::{Pod, Service};
use legate_kubernetes::sync::registration::Settings;
use legate_kubernetes::sync::wanted::{Wanted, wanted};
use legate_kubernetes::tenancy::{TenancyFlags, Tenants};
use serde_json::{Value, json};

#[derive(Parser)]
struct AclInit {
    #[command(flatten)]
    options: acl_init::Options,
    // Flags of all subcommands.
    #[arg(long)]
    log_level: String,
    #[arg(long)]
    log_json: bool,
}

/// The objects of a rendered case.
fn rendered(name: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/chart");
    let text = fs::read_to_string(folder.join(name)).expect("the file is there");
    let documents = text.split("\n---\n").map(|document| {
        let document = document.trim_start_matches("---\n");
        serde_saphyr::from_str(document).expect("it is YAML")
    });
    documents.collect()
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = objects
        .iter()
        .filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.next().unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("it is such an object")
}

/// The registration of a pod of a gateway of the release with this full name. Its Service has a load balancer.
fn registered(objects: &[Value], (full_name, name): (&str, &str), tenants: Tenants) -> Value {
    let name = &format!("{full_name}-{name}");
    let deployment = object(objects, "Deployment", name);
    let mut pod = deployment["spec"]["template"].clone();
    // Pods without it are not seen.
    assert_eq!(pod["metadata"]["labels"][MANAGED_BY], MANAGED_BY_LEGATE);
    pod["metadata"]["name"] = json!(format!("{name}-0"));
    pod["metadata"]["namespace"] = json!("consul");
    pod["spec"]["nodeName"] = json!("n1");
    pod["status"] = json!({"podIP": "10.244.0.5", "hostIP": "192.0.2.1",
        "conditions": [{"type": "Ready", "status": "True"}]});
    let mut service = object(objects, "Service", name).clone();
    service["spec"]["clusterIP"] = json!("10.96.0.7");
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}});
    let settings = Settings {
        tenants,
        installation: mark("consul", full_name),
        ..Settings::default()
    };
    let service = Service::of(typed(service));
    match wanted(&Pod::of(typed(pod)), [&service], None, &settings) {
        Wanted::Instances { registrations, .. } => {
            let [gateway] = registrations.as_slice() else {
                panic!("{registrations:?}");
            };
            gateway.body["Service"].clone()
        }
        other => panic!("{name}: {other:?}"),
    }
}

/// Kind, name, namespace and WAN address of a registration.
fn seen(service: &Value) -> [String; 4] {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let wan = &service["TaggedAddresses"]["wan"];
    let wan = match wan["Address"].as_str() {
        Some(address) => format!("{address}:{}", wan["Port"]),
        None => String::new(),
    };
    let [kind, name, namespace] =
        ["Kind", "Service", "Namespace"].map(|field| text(&service[field]));
    [kind, name, namespace, wan]
}

#[test]
fn the_operator_registers_the_charts_gateways() {
    let objects = rendered("gateways.yaml");
    for (name, expected) in [
        (
            "mesh-gateway",
            ["mesh-gateway", "mesh-gateway", "", "203.0.113.9:443"],
        ),
        (
            "ingress-gateway",
            ["ingress-gateway", "ingress-gateway", "", "10.96.0.7:8080"],
        ),
        (
            "public",
            ["ingress-gateway", "public", "", "203.0.113.9:80"],
        ),
        (
            "terminating-gateway",
            ["terminating-gateway", "terminating-gateway", "", ""],
        ),
    ] {
        let service = registered(&objects, ("mesh-legate", name), Tenants::default());
        assert_eq!(seen(&service), expected);
        let metrics = &service["Proxy"]["Config"]["envoy_prometheus_bind_addr"];
        assert_eq!(*metrics, "10.244.0.5:20200", "{name}");
    }
    let flags = TenancyFlags {
        partition: Some("east".parse().expect("it is a name")),
        mirror_namespaces: Some(String::new()),
        ..TenancyFlags::default()
    };
    let tenants = Tenants::of(&flags);
    let objects = rendered("external-gateways.yaml");
    for (name, expected) in [
        (
            "mesh-gateway",
            ["mesh-gateway", "gateway", "default", "mesh.example.com:443"],
        ),
        (
            "shop",
            ["ingress-gateway", "shop", "shop", "192.0.2.1:30080"],
        ),
        (
            "single",
            ["ingress-gateway", "single", "default", "192.0.2.1:30080"],
        ),
        (
            "terminating-gateway",
            ["terminating-gateway", "terminating-gateway", "data", ""],
        ),
    ] {
        let service = registered(&objects, ("east", name), tenants.clone());
        assert_eq!(seen(&service), expected);
    }
}

#[test]
fn mesh_gateways_lead_to_servers_of_other_datacenters_only_with_federation() {
    for (name, expected) in [
        ("gateways.yaml", None),
        ("federation-secondary.yaml", Some("1")),
    ] {
        let gateway = ("mesh-legate", "mesh-gateway");
        let service = registered(&rendered(name), gateway, Tenants::default());
        let mark = &service["Meta"]["consul-wan-federation"];
        assert_eq!(mark.as_str(), expected, "{name}");
    }
}

#[test]
fn acl_init_knows_each_gateway() {
    for (name, expected) in [
        ("default.yaml", &[][..]),
        ("federation-primary.yaml", &["mesh-gateway"]),
        ("federation-secondary.yaml", &["mesh-gateway"]),
        ("peering.yaml", &["mesh-gateway"]),
        ("external-peering.yaml", &["mesh-gateway"]),
        (
            "gateways.yaml",
            &[
                "mesh-gateway",
                "ingress-gateway",
                "public",
                "terminating-gateway",
            ],
        ),
        (
            "external-gateways.yaml",
            &[
                "gateway",
                "shop.shop",
                "single.default",
                "terminating-gateway.data",
            ],
        ),
    ] {
        let objects = rendered(name);
        let job = objects.iter().find(|object| object["kind"] == "Job");
        let job = job.expect("there is a job");
        let arguments = &job["spec"]["template"]["spec"]["containers"][0]["args"];
        let arguments: Vec<String> = typed(arguments.clone());
        let parsed = AclInit::try_parse_from(&arguments);
        let parsed = parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            !parsed.log_level.is_empty() && parsed.log_json == (name == "external-gateways.yaml")
        );
        let options = parsed.options;
        assert_eq!(
            options.create_replication_token,
            name == "federation-primary.yaml"
        );
        assert_eq!(options.peering, name.contains("peering"), "{name}");
        let flags = &options.secondary;
        let secondary = name == "federation-secondary.yaml";
        assert_eq!(flags.replication_token_file.is_some(), secondary, "{name}");
        let gateways = options.mesh_gateway.iter();
        let gateways = gateways.chain(&options.ingress_gateway);
        let gateways = gateways.chain(&options.terminating_gateway);
        let gateways: Vec<String> = gateways.map(ToString::to_string).collect();
        assert_eq!(gateways, expected, "{name}");
    }
}
