//! Documents of a case, as users write them. `state` builds a server's state from them, and
//! `tests/interop` writes them to a real Consul.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The contents of `documents.json`.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(crate) struct Documents {
    /// The subject of the case, in one sentence.
    #[serde(default)]
    pub(crate) about: String,
    /// The default action without a matching intention.
    #[serde(default = "deny")]
    pub(crate) default_intention: String,
    /// The registration of the proxy, among `Registrations`. Default: the sidecar of `web`.
    proxy: Option<Value>,
    /// Fields of `Service` of the registration of a gateway, which is the proxy then.
    gateway: Option<Value>,
    /// `Proxy` of the registration of the sidecar of `web`. Default: with the upstream `api`.
    #[serde(default = "sidecar")]
    sidecar: Value,
    /// `Namespace` and `Partition` of that sidecar, and of the intentions' destinations. Default:
    /// `default`.
    #[serde(default)]
    tenancy: Value,
    /// Bodies of `PUT /v1/catalog/register`. Default: two instances of `api` with the versions v1
    /// and v2, and one each of `admin` and `backup`.
    #[serde(default = "instances")]
    pub(crate) registrations: Vec<Value>,
    /// Bodies of `PUT /v1/config`, in order.
    #[serde(default)]
    pub(crate) entries: Vec<Value>,
    /// Bodies of `PUT /v1/connect/intentions/exact`, with both names.
    #[serde(default)]
    pub(crate) intentions: Vec<Value>,
    /// Bodies of `POST /v1/query`.
    #[serde(default)]
    pub(crate) prepared_queries: Vec<Value>,
    /// Bodies of `PUT /v1/internal/service-virtual-ip`.
    #[serde(default, rename = "VirtualIPs")]
    pub(crate) virtual_ips: Vec<Value>,
    /// What peers export: `Name`, `TrustDomain`, `Roots`, and `Instances`, each of the service `Of` with an `Address` and a
    /// `Port`, by default those of a gateway of that number. Optional are `Protocol`, `Status` and `SpiffeID`. Consul
    /// accepts it from peers only.
    #[serde(default)]
    pub(crate) peers: Vec<Value>,
    /// Peerings, each with its trust bundle, and the proxies that are imported by service. Their cluster writes these.
    #[serde(default)]
    pub(crate) peerings: Vec<Peer>,
    /// The body of `PUT /v1/internal/legate/gateway/edge`. Consul has nothing like it.
    #[serde(default)]
    pub(crate) of_cluster: Option<Value>,
}

/// A peered cluster.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(crate) struct Peer {
    pub(crate) peering: Value,
    #[serde(default)]
    pub(crate) trust_bundle: Option<Value>,
    /// Registrations by the name of the service.
    #[serde(default)]
    pub(crate) imports: BTreeMap<String, Vec<Value>>,
}

fn deny() -> String {
    "deny".to_owned()
}

fn sidecar() -> Value {
    json!({
        "LocalServicePort": 8080,
        "Upstreams": [{"DestinationName": "api", "LocalBindPort": 9191}],
    })
}

fn instances() -> Vec<Value> {
    let instance = |of: &str, number: u8, version: &str| {
        json!({
            "Node": format!("n{number}"), "Address": format!("10.0.0.{number}"),
            "Service": {
                "Kind": "connect-proxy", "ID": format!("{of}-{version}-sidecar-proxy"),
                "Service": format!("{of}-sidecar-proxy"), "Port": 20000 + u16::from(number),
                "Meta": {"version": version}, "Proxy": {"DestinationServiceName": of},
            },
        })
    };
    vec![
        instance("api", 2, "v1"),
        instance("api", 3, "v2"),
        instance("admin", 4, "v1"),
        instance("backup", 5, "v1"),
    ]
}

/// The sidecar of `web`.
fn web(proxy: &Value, tenancy: &Value) -> Value {
    let mut proxy = proxy.clone();
    proxy["DestinationServiceName"] = json!("web");
    let mut registration = json!({
        "Node": "n1", "Address": "10.0.0.1",
        "Service": {
            "Kind": "connect-proxy", "ID": "web-sidecar-proxy", "Service": "web-sidecar-proxy",
            "Port": 20000, "Proxy": proxy,
        },
    });
    for (field, name) in tenancy.as_object().into_iter().flatten() {
        registration["Service"][field] = name.clone();
        if field == "Partition" {
            registration[field] = name.clone();
        }
    }
    registration
}

/// An instance of a gateway. Its ID is the name of its service.
fn gateway(fields: &Value) -> Value {
    let mut service = json!({"ID": fields["Service"], "Address": "10.0.0.1", "Port": 8443});
    for (field, value) in fields.as_object().into_iter().flatten() {
        service[field] = value.clone();
    }
    json!({"Node": "n1", "Address": "10.0.0.1", "Service": service})
}

impl Documents {
    /// Documents with only config entries. The sidecar has all four services as upstreams.
    pub(crate) fn of_entries(entries: Vec<Value>) -> Self {
        let upstreams = ["api", "admin", "backup", "other"].into_iter().zip(9191..);
        let upstreams: Vec<Value> = upstreams
            .map(|(name, port)| json!({"DestinationName": name, "LocalBindPort": port}))
            .collect();
        Self {
            about: String::new(),
            default_intention: deny(),
            proxy: None,
            gateway: None,
            sidecar: json!({"LocalServicePort": 8080, "Upstreams": upstreams}),
            tenancy: Value::Null,
            registrations: instances(),
            entries,
            intentions: Vec::new(),
            prepared_queries: Vec::new(),
            virtual_ips: Vec::new(),
            peers: Vec::new(),
            peerings: Vec::new(),
            of_cluster: None,
        }
    }

    /// Documents with only config entries, and a gateway named `edge` of this kind.
    pub(crate) fn of_gateway(kind: &str, entries: Vec<Value>) -> Self {
        Self {
            gateway: Some(json!({"Kind": kind, "Service": "edge"})),
            ..Self::of_entries(entries)
        }
    }

    /// Bodies of `PUT /v1/catalog/register`, including that of the sidecar of `web`.
    pub(crate) fn all_registrations(&self) -> Vec<Value> {
        let sidecar = || web(&self.sidecar, &self.tenancy);
        let own = match &self.gateway {
            Some(fields) => Some(gateway(fields)),
            None => self.proxy.is_none().then(sidecar),
        };
        own.into_iter().chain(self.registrations.clone()).collect()
    }

    /// A field of the proxy's tenancy; empty for `default`.
    pub(crate) fn tenant(&self, field: &str) -> &str {
        let name = self.tenancy.get(field).and_then(Value::as_str);
        name.unwrap_or_default()
    }

    /// Node and ID of the proxy.
    pub(crate) fn proxy_id(&self) -> (&str, &str) {
        let field = |field: &str| self.proxy.as_ref()?.get(field)?.as_str();
        let gateway = self
            .gateway
            .as_ref()
            .and_then(|one| one["Service"].as_str());
        (
            field("Node").unwrap_or("n1"),
            field("ID").or(gateway).unwrap_or("web-sidecar-proxy"),
        )
    }
}
