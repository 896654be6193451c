//! Config entries of gateways and of other clusters: validation, normalisation, and Consul's error
//! texts.

use legate_model::json::{self, Request};
use legate_model::{ConfigEntry, ConfigKind};
use serde_json::{Value, json};

fn read(entry: &Value) -> Request<ConfigEntry> {
    json::request(entry.to_string().as_bytes()).expect("an entry")
}

fn stored(entry: &Value) -> Value {
    let mut value = read(entry).value;
    value
        .validate()
        .unwrap_or_else(|error| panic!("{entry}: {error}"));
    value.normalise();
    let shown = serde_json::to_value(&value).expect("JSON");
    // The returned JSON decodes to the same value.
    let read: ConfigEntry = serde_json::from_value(shown.clone()).expect("an entry");
    assert_eq!(read, value);
    shown
}

fn refused(entry: &Value) -> String {
    match json::request::<ConfigEntry>(entry.to_string().as_bytes()) {
        Err(error) => error.to_string(),
        Ok(request) => request.value.validate().expect_err("refused").to_string(),
    }
}

#[test]
fn every_kind_exists_and_those_without_effect_are_reported() {
    let kinds = ConfigKind::ALL.map(ConfigKind::as_str);
    for kind in [
        "api-gateway",
        "bound-api-gateway",
        "control-plane-request-limit",
        "exported-services",
        "file-system-certificate",
        "http-route",
        "ingress-gateway",
        "inline-certificate",
        "jwt-provider",
        "mesh",
        "proxy-defaults",
        "sameness-group",
        "service-defaults",
        "service-intentions",
        "service-resolver",
        "service-router",
        "service-splitter",
        "tcp-route",
        "terminating-gateway",
    ] {
        assert!(kinds.contains(&kind), "{kind}");
    }
    let reported = |entry: Value| {
        let request = json::request::<ConfigEntry>(entry.to_string().as_bytes());
        request.unwrap().not_served
    };
    let limit = json!({ "Kind": "control-plane-request-limit", "Name": "l" });
    assert_eq!(reported(limit), ["Kind"]);
    for served in [
        json!({ "Kind": "ingress-gateway", "Name": "in" }),
        json!({ "Kind": "service-splitter", "Name": "web", "Splits": [] }),
    ] {
        assert!(reported(served.clone()).is_empty(), "{served}");
    }
}

#[test]
fn gateways_have_consuls_defaults_and_json() {
    let ingress = stored(&json!({
        "Kind": "ingress-gateway", "Name": "in", "Listeners": [
            { "Port": 1, "Services": [{ "Name": "db" }] },
            { "Port": 2, "Protocol": "HTTP", "Services": [{ "Name": "*" }] },
        ],
        "Defaults": { "MaxConnections": 7 },
    }));
    assert_eq!(ingress["TLS"], json!({ "Enabled": false }));
    assert_eq!(ingress["Listeners"][0]["Protocol"], "tcp");
    assert_eq!(ingress["Listeners"][1]["Protocol"], "http");
    assert_eq!(ingress["Listeners"][1]["Services"][0]["Hosts"], Value::Null);
    let defaults = json!({
        "MaxConnections": 7, "MaxPendingRequests": 0, "MaxConcurrentRequests": 0,
    });
    assert_eq!(ingress["Defaults"], defaults);
    let none = stored(&json!({ "Kind": "ingress-gateway", "Name": "in" }));
    assert_eq!(none["Listeners"], Value::Null);

    let api = stored(&json!({
        "Kind": "api-gateway", "Name": "api", "Status": { "Conditions": [{ "Type": "Accepted" }] },
        "Listeners": [{ "Name": "one", "Port": 1, "Protocol": "HTTP", "TLS": {
            "Certificates": [{ "Name": "c" }],
        } }],
    }));
    assert_eq!(api["Status"], json!({ "Conditions": null }));
    let certificate = json!({ "Kind": "inline-certificate", "Name": "c", "SectionName": "" });
    let tls = json!({
        "Certificates": [certificate], "MaxVersion": "", "MinVersion": "", "CipherSuites": null,
    });
    assert_eq!(
        api["Listeners"][0],
        json!({ "Name": "one", "Hostname": "", "Port": 1, "Protocol": "http", "TLS": tls })
    );
}

#[test]
fn routes_have_consuls_defaults_and_json() {
    let http = stored(&json!({
        "Kind": "http-route", "Name": "r", "Parents": [{ "Name": "api" }],
        "Rules": [{
            "Filters": { "TimeoutFilter": { "RequestTimeout": "2s" } },
            "Matches": [{ "Method": "get" }], "Services": [{ "Name": "web" }],
        }],
    }));
    assert_eq!(http["Parents"][0]["Kind"], "api-gateway");
    let rule = &http["Rules"][0];
    assert_eq!(rule["Matches"][0]["Method"], "GET");
    let path = json!({ "Match": "prefix", "Value": "/" });
    assert_eq!(rule["Matches"][0]["Path"], path);
    assert_eq!(rule["Services"][0]["Weight"], 1);
    assert_eq!(
        rule["Filters"],
        json!({
            "Headers": null, "URLRewrite": null, "RetryFilter": null, "JWT": null,
            "TimeoutFilter": { "RequestTimeout": 2_000_000_000_u64, "IdleTimeout": 0 },
        })
    );
    let plain = stored(&json!({ "Kind": "http-route", "Name": "r" }));
    for field in ["Parents", "Rules", "Hostnames"] {
        assert_eq!(plain[field], Value::Null, "{field}");
    }
    let tcp = stored(&json!({
        "Kind": "tcp-route", "Name": "r", "Services": [{ "Name": "db" }],
    }));
    assert_eq!(tcp["Services"], json!([{ "Name": "db" }]));
}

#[test]
fn keys_are_returned_to_clients_and_redacted_in_logs() {
    let entry = json!({
        "Kind": "inline-certificate", "Name": "c", "Certificate": "pem", "PrivateKey": "hidden",
    });
    assert_eq!(stored(&entry)["PrivateKey"], "hidden");
    let read: ConfigEntry = serde_json::from_value(entry).unwrap();
    assert!(!format!("{read:?}").contains("hidden"));
}

fn ingress(more: Value) -> Value {
    let mut listener = json!({ "Port": 80, "Protocol": "http", "Services": [{ "Name": "web" }] });
    for (field, value) in more.as_object().expect("an object") {
        listener[field] = value.clone();
    }
    json!({ "Kind": "ingress-gateway", "Name": "in", "Listeners": [listener] })
}

#[test]
fn invalid_ingress_gateways_are_refused() {
    let sds = |name: &str| json!({ "SDS": { name: "x" } });
    for (entry, says) in [
        (
            ingress(json!({ "Protocol": "smtp" })),
            "'smtp' is an unsupported protocol",
        ),
        (
            ingress(json!({ "Services": [] })),
            "No service declared for listener with port 80",
        ),
        (
            ingress(json!({ "Protocol": "tcp", "Services": [{ "Name": "a" }, { "Name": "b" }] })),
            "Multiple services per listener are only supported for L7 protocols",
        ),
        (
            ingress(json!({ "Protocol": "tcp", "Services": [{ "Name": "*" }] })),
            "Wildcard service name is only valid for protocol = 'http'",
        ),
        (
            ingress(json!({ "Protocol": "tcp", "Services": [{ "Name": "a", "Hosts": ["b"] }] })),
            "Associating hosts to a service is not supported for the tcp protocol",
        ),
        (
            ingress(json!({ "Services": [{ "Name": "*", "Hosts": ["b"] }] })),
            "Associating hosts to a wildcard service is not supported",
        ),
        (
            ingress(json!({ "Services": [{ "Name": "" }] })),
            "Service name cannot be blank (listener on port 80)",
        ),
        (
            ingress(json!({ "Services": [{ "Name": "a" }, { "Name": "a" }] })),
            "Service a cannot be added multiple times",
        ),
        (
            ingress(
                json!({ "Services": [{ "Name": "a", "Hosts": ["x"] }, { "Name": "b", "Hosts": ["x"] }] }),
            ),
            "Hosts must be unique within a specific listener",
        ),
        (
            ingress(json!({ "Services": [{ "Name": "a", "Hosts": ["a.*.b"] }] })),
            "a wildcard specifier is only allowed as the leftmost label",
        ),
        (
            ingress(json!({ "TLS": sds("CertResource") })),
            "TLS.SDS.ClusterName is required if CertResource is set (listener on port 80)",
        ),
        (
            ingress(json!({ "TLS": sds("ClusterName") })),
            "TLS.SDS.CertResource is required if ClusterName is set for listener",
        ),
        (
            ingress(json!({ "TLS": { "TLSMinVersion": "x" } })),
            "TLSMinVersion",
        ),
        (
            ingress(json!({ "Protocol": "tcp", "Services": [
                { "Name": "a", "RequestHeaders": { "Remove": ["x"] } },
            ] })),
            "request headers only valid for http, http2 and grpc protocols",
        ),
        (
            json!({ "Kind": "ingress-gateway", "Name": "in", "Listeners": [
                { "Port": 1, "Services": [{ "Name": "a" }] },
                { "Port": 1, "Services": [{ "Name": "b" }] },
            ] }),
            "port 1 declared on two listeners",
        ),
    ] {
        let error = refused(&entry);
        assert!(error.contains(says), "{entry}: {error}");
    }
}

#[test]
fn invalid_api_gateways_are_refused() {
    let listener = |more: Value| {
        let mut one = json!({ "Name": "l", "Port": 80, "Protocol": "http" });
        let more = more.as_object().unwrap().clone();
        one.as_object_mut().unwrap().extend(more);
        one
    };
    let api =
        |listeners: Value| json!({ "Kind": "api-gateway", "Name": "a", "Listeners": listeners });
    for (entry, says) in [
        (
            api(json!([])),
            "api gateway must have at least one listener",
        ),
        (
            api(json!([listener(json!({ "Name": "A" }))])),
            "listener name \"A\" is invalid",
        ),
        (
            api(json!([listener(json!({})), listener(json!({}))])),
            "found multiple listeners with the name \"l\"",
        ),
        (
            api(json!([
                listener(json!({})),
                listener(json!({ "Name": "m", "Hostname": "x" }))
            ])),
            "listeners \"l\" and \"m\" cannot be merged",
        ),
        (
            api(json!([listener(json!({ "Protocol": "udp" }))])),
            "unsupported listener protocol \"udp\", must be one of 'tcp', or 'http'",
        ),
        (
            api(json!([listener(
                json!({ "Protocol": "tcp", "Hostname": "x" })
            )])),
            "hostname specification is not supported when using TCP",
        ),
        (
            api(json!([listener(json!({ "Port": 0 }))])),
            "not in the range 1-65535",
        ),
        (
            api(json!([listener(
                json!({ "TLS": { "Certificates": [{ "Kind": "x" }] } })
            )])),
            "unsupported certificate kind: \"x\"",
        ),
    ] {
        let error = refused(&entry);
        assert!(error.contains(says), "{entry}: {error}");
    }
}

#[test]
fn invalid_gateway_routes_are_refused() {
    let route = |rule: Value| json!({ "Kind": "http-route", "Name": "r", "Rules": [rule] });
    for (entry, says) in [
        (
            json!({ "Kind": "http-route", "Name": "r", "Hostnames": ["*.x"] }),
            "host \"*.x\" must not be a wildcard",
        ),
        (
            json!({ "Kind": "http-route", "Name": "r", "Parents": [{ "Kind": "x" }] }),
            "unsupported parent kind: \"x\", must be 'api-gateway'",
        ),
        (
            json!({ "Kind": "tcp-route", "Name": "r", "Parents": [{ "Name": "a" }, { "Name": "a" }] }),
            "route parents must be unique",
        ),
        (
            json!({ "Kind": "tcp-route", "Name": "r", "Services": [{}, {}] }),
            "tcp-route currently only supports one service",
        ),
        (
            route(json!({ "Matches": [{ "Method": "FLY" }] })),
            "Rules[0].Matches[0].Method: Method contains an invalid method \"FLY\"",
        ),
        (
            route(json!({ "Matches": [{ "Path": { "Match": "exact", "Value": "x" } }] })),
            "exact type match doesn't start with '/': \"x\"",
        ),
        (
            route(json!({ "Matches": [{ "Query": [{ "Name": "q", "Match": "prefix" }] }] })),
            "match type should be one of present, exact, or regex",
        ),
        (
            route(json!({ "Matches": [{ "Headers": [{ "Match": "exact" }] }] })),
            "missing required Name field",
        ),
    ] {
        let error = refused(&entry);
        assert!(error.contains(says), "{entry}: {error}");
    }
}

#[test]
fn exports_and_limits_are_validated() {
    let exports = |services: Value| json!({ "Kind": "exported-services", "Name": "default", "Services": services });
    let consumer = |consumer: Value| exports(json!([{ "Name": "web", "Consumers": [consumer] }]));
    for (entry, says) in [
        (
            json!({ "Kind": "exported-services", "Name": "x" }),
            "exported-services Name must be \"default\"",
        ),
        (
            exports(json!([{ "Name": "" }])),
            "Services[0]: service name cannot be empty",
        ),
        (
            exports(json!([{ "Name": "web" }])),
            "Services[0]: must have at least one consumer",
        ),
        (
            consumer(json!({ "Peer": "a", "Partition": "b" })),
            "Services[0].Consumers[0]: must define at most one of Peer, Partition, or SamenessGroup",
        ),
        (
            consumer(json!({ "Peer": "*" })),
            "exporting to all peers (wildcard) is not supported",
        ),
        (
            exports(
                json!([{ "Name": "web", "Namespace": "team", "Consumers": [{ "Peer": "a" }] }]),
            ),
            "Services[0].Consumers[0]: services of other namespaces than default are not exported to peers",
        ),
        (
            exports(json!([{ "Name": "*", "Namespace": "*", "Consumers": [{ "Peer": "a" }] }])),
            "Services[0].Consumers[0]: services of other namespaces than default are not exported to peers",
        ),
        (
            json!({ "Kind": "sameness-group", "Name": "g", "Members": [{ "Peer": "a" }, { "Peer": "a" }] }),
            "Members[1]: it is given more than once",
        ),
        (
            json!({ "Kind": "control-plane-request-limit", "Name": "l", "Mode": "x" }),
            "must be one of permissive, enforcing, disabled",
        ),
        (
            json!({ "Kind": "control-plane-request-limit", "Name": "l", "KV": { "ReadRate": -1 } }),
            "KV.ReadRate: -1 must not be below 0",
        ),
        (
            json!({ "Kind": "nonsense" }),
            "invalid config entry kind: nonsense",
        ),
    ] {
        let error = refused(&entry);
        assert!(error.contains(says), "{entry}: {error}");
    }
    let limit = stored(&json!({ "Kind": "control-plane-request-limit", "Name": "l" }));
    assert_eq!(limit["Mode"], "permissive");
    // An alternative name of the field that some files use.
    let spelled = stored(&consumer(json!({ "peer_name": "east" })));
    assert_eq!(
        spelled["Services"][0]["Consumers"],
        json!([{ "Peer": "east" }])
    );
}
