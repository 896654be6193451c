//! Services outside the mesh, and the gateways that connect to them.

use serde_json::{Value, json};

use crate::config_entries::{entry, refused, refuses, with};

#[test]
fn destinations_are_refused_as_in_consul() {
    let document = |addresses: Value, more: Value| {
        let destination = json!({"Addresses": addresses, "Port": 443});
        let base = json!({"Kind": "service-defaults", "Name": "web", "Destination": destination});
        with(base, more)
    };
    let addresses = |addresses: Value| document(addresses, json!({}));
    let many: Vec<String> = (0..257).map(|at| format!("h{at}.example")).collect();
    let good = addresses(json!(["a.example", "10.0.0.1", "::1", "under_score"]));
    assert_eq!(entry(good).validate(), Ok(()));
    refuses([
        (
            addresses(json!([])),
            "Destination.Addresses",
            "Destination must contain at least one valid address",
        ),
        (
            addresses(json!(["a.example", "*.example"])),
            "Destination.Addresses[1]",
            "Could not validate address *.example as an IP or Hostname",
        ),
        (
            addresses(json!([""])),
            "Destination.Addresses[0]",
            "Could not validate",
        ),
        (
            addresses(json!(["a b"])),
            "Destination.Addresses[0]",
            "Could not validate",
        ),
        (
            addresses(json!(["a.example", "A.example"])),
            "Destination.Addresses[1]",
            "Duplicate address 'A.example' is not allowed",
        ),
        (
            addresses(json!(["a-b.example", "a.b.example"])),
            "Destination.Addresses[1]",
            "Duplicate address 'a.b.example' is not allowed",
        ),
        (
            addresses(json!(many)),
            "Destination.Addresses",
            "at most 256",
        ),
        (
            document(json!(["a"]), json!({"Destination": {"Addresses": ["a"]}})),
            "Destination.Port",
            "Invalid Port number 0",
        ),
        (
            document(json!(["a"]), json!({"UpstreamConfig": {}})),
            "Destination",
            "UpstreamConfig and Destination are mutually exclusive",
        ),
    ]);
    let large = json!({"Destination": {"Addresses": ["a"], "Port": 65536}});
    assert!(refused(document(json!([]), large)).contains("Destination.Port"));
}

#[test]
fn links_of_gateways_are_refused_as_in_consul() {
    let gateway = |services: Value| json!({"Kind": "terminating-gateway", "Name": "egress", "Services": services});
    let tls = json!({"Name": "db", "CAFile": "/ca", "CertFile": "/cert", "KeyFile": "/key"});
    let good = gateway(json!([tls, {"Name": "*", "CAFile": "/ca", "SNI": "x"}]));
    assert_eq!(entry(good).validate(), Ok(()));
    assert_eq!(entry(gateway(json!([]))).validate(), Ok(()));
    refuses([
        (
            gateway(json!([{"Name": "a"}, {}])),
            "Services[1]",
            "Service name cannot be blank.",
        ),
        (
            gateway(json!([{"Name": "a"}, {"Name": "a"}])),
            "Services[1]",
            "Service \"a\" was specified more than once within a namespace",
        ),
        (
            gateway(json!([{"Name": "a", "CertFile": "/cert", "KeyFile": "/key"}])),
            "Services[0]",
            "must have a CertFile, CAFile, and KeyFile specified for TLS origination",
        ),
        (gateway(json!([{"Name": "a/b"}])), "Services[0]", "slash"),
    ]);
}
