//! Builds the state of a server from documents, with the checks of its API.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::sync::Arc;

use futures_util::FutureExt;
use legate_discovery_chain::{Overrides, Request, compile};
use legate_intentions::Action;
use legate_model::json::{self, UnknownFields};
use legate_model::virtual_ip::AssignVirtualIps;
use legate_model::{
    CheckServiceNode, ConfigEntry, ConfigKind, Intention, PeerTrustBundle, Peering, PreparedQuery,
    RegisterRequest, ServiceName, Tenancy, TrustDomain,
};
use legate_proxycfg::{Leaf, LeafId, ManagerConfig, ProxyId, Snapshot, StoredEntries, snapshot_of};
use legate_resources::check_extension;
use legate_routes::Listener;
use legate_store::{CaState, GatewayContent, Registration, State, Store, Unavailable, WriteTxn};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::documents::{Documents, Peer};
use crate::support::{leaf_of, roots};

const DATACENTER: &str = "dc1";

/// Why a server refuses a document.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl From<Unavailable> for Refused {
    fn from(error: Unavailable) -> Self {
        Self(error.to_string())
    }
}

fn refused(what: &str) -> impl Fn(&dyn Display) -> Refused {
    move |error| Refused(format!("{what}: {error}"))
}

fn decode<T: DeserializeOwned>(what: &str, document: &Value) -> Result<T, Refused> {
    json::from_value(document.clone(), UnknownFields::Refuse).map_err(|error| refused(what)(&error))
}

impl Documents {
    /// The snapshot of the proxy after all writes.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Refused> {
        self.snapshot_of(&*self.state()?, &mut HashMap::new())
    }

    /// The accepted entries, and the snapshots of the proxy before all of them and after each. They
    /// share what did not change, as in a server.
    pub(crate) fn steps(&self) -> Result<(Vec<Value>, Vec<Snapshot>), Refused> {
        let mut nothing = self.clone();
        nothing.entries.clear();
        let store = nothing.store()?;
        let mut leaves = HashMap::new();
        let mut snapshots = vec![self.snapshot_of(&store.state(), &mut leaves)?];
        let mut accepted = Vec::new();
        for entry in &self.entries {
            let document = entry.clone();
            if write(&store, move |txn| checked_entry(txn, &document)).is_ok() {
                accepted.push(entry.clone());
                snapshots.push(self.snapshot_of(&store.state(), &mut leaves)?);
            }
        }
        Ok((accepted, snapshots))
    }

    fn snapshot_of(
        &self,
        state: &State,
        leaves: &mut HashMap<LeafId, Arc<Leaf>>,
    ) -> Result<Snapshot, Refused> {
        let (node, service_id) = self.proxy_id();
        let proxy = ProxyId {
            tenancy: self.own_tenancy()?,
            node: node.into(),
            service_id: service_id.into(),
        };
        let default = match self.default_intention.as_str() {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            other => return Err(Refused(format!("DefaultIntention is {other:?}"))),
        };
        let config = ManagerConfig::new(DATACENTER, default);
        let txn = state.read().within(proxy.tenancy.clone());
        let service = txn.instance(&proxy.node, &proxy.service_id);
        if service.is_none() {
            return Err(Refused(format!("no registration of {proxy}")));
        }
        let snapshot = snapshot_of(&txn, &proxy, &config, |id| {
            let issue = || {
                let service = id.service();
                let name = service.map_or("the gateway", |service| service.name.as_ref());
                Arc::new(leaf_of(id, name, "first"))
            };
            let leaf = leaves.entry(id.clone()).or_insert_with(issue);
            Some(Arc::clone(leaf))
        });
        let snapshot = snapshot.map_err(|error| refused("the proxy")(&error))?;
        snapshot.ok_or_else(|| Refused("the proxy has to wait".to_owned()))
    }

    fn own_tenancy(&self) -> Result<Tenancy, Refused> {
        tenancy(self.tenant("Partition"), self.tenant("Namespace"))
    }

    fn state(&self) -> Result<Arc<State>, Refused> {
        Ok(self.store()?.state())
    }

    fn store(&self) -> Result<Store, Refused> {
        let store = Store::new();
        let documents = self.clone();
        write(&store, move |txn| documents.write(txn))?;
        Ok(store)
    }

    fn write(&self, txn: &mut WriteTxn) -> Result<(), Refused> {
        txn.put_ca(CaState {
            roots: roots("one"),
            signing_key: "key".into(),
            cluster_id: "c1".to_owned(),
            lives: BTreeMap::new(),
            secondary: None,
        });
        for document in self.all_registrations() {
            register(txn, &document)?;
        }
        for document in &self.entries {
            checked_entry(txn, document)?;
        }
        for document in &self.intentions {
            let mut intention: Intention = decode("intention", document)?;
            let wrong = refused("intention");
            intention.validate().map_err(|error| wrong(&error))?;
            intention.normalise(&self.own_tenancy()?);
            let tenancy = intention.destination().tenancy;
            txn.in_tenancy(&tenancy, |txn| txn.put_intention(intention))
                .map_err(|error| wrong(&error))?;
        }
        for document in &self.peers {
            put_peer(txn, document)?;
        }
        for peering in &self.peerings {
            put_peering(txn, peering)?;
        }
        if let Some(document) = &self.of_cluster {
            put_gateway(txn, document)?;
        }
        for (number, document) in self.prepared_queries.iter().enumerate() {
            let mut query: PreparedQuery = decode("prepared query", document)?;
            let wrong = refused("prepared query");
            query.validate().map_err(|error| wrong(&error))?;
            query.id = number.to_string();
            let put = txn.put_prepared_query(query);
            put.map_err(|error| wrong(&error))?;
        }
        for document in &self.virtual_ips {
            let request: AssignVirtualIps = decode("virtual IPs", document)?;
            let wrong = refused("virtual IPs");
            request.validate().map_err(|error| wrong(&error))?;
            let addresses = request.addresses().map_err(|error| wrong(&error))?;
            let found = txn.assign_virtual_ips(&request.service, &addresses);
            found.ok_or_else(|| wrong(&"the service has none"))?;
        }
        Ok(())
    }
}

/// Writes what a peer exports, as its stream does.
fn put_peer(txn: &mut WriteTxn, document: &Value) -> Result<(), Refused> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (peer, domain) = (text(&document["Name"]), text(&document["TrustDomain"]));
    let roots = list(&document["Roots"]);
    if !roots.is_empty() {
        txn.put_trust_bundle(PeerTrustBundle {
            trust_domain: domain.clone(),
            peer_name: peer.clone(),
            root_pems: roots.iter().map(text).collect(),
            ..PeerTrustBundle::default()
        });
    }
    let mut services = BTreeMap::<String, Vec<CheckServiceNode>>::new();
    for (number, one) in (1..).zip(list(&document["Instances"])) {
        let instance = imported(&one, number, &domain)?;
        let service = instance.service.service.clone();
        services.entry(service).or_default().push(instance);
    }
    txn.in_tenancy(&Tenancy::default().of_peer(&peer), |txn| {
        for (service, instances) in &services {
            let put = txn.put_imported(service, instances);
            put.map_err(|error| refused("an import")(&error))?;
        }
        Ok(())
    })
}

/// A service as one of the mesh gateways of a peer exports it.
fn imported(document: &Value, number: u16, domain: &str) -> Result<CheckServiceNode, Refused> {
    let text = |field: &str, default: &str| {
        let given = document[field].as_str();
        given.unwrap_or(default).to_owned()
    };
    let of = text("Of", "");
    let id = format!("{of}-sidecar-proxy-instance-{number}");
    let node = text("Node", &format!("gateway-{number}"));
    let address = text("Address", &format!("192.0.2.{number}"));
    let port = document["Port"].as_u64().unwrap_or(443);
    let identity = format!("spiffe://{domain}/ns/default/dc/far/svc/{of}");
    let identities = match &document["SpiffeID"] {
        Value::Null => json!([identity, format!("spiffe://{domain}/gateway/mesh/dc/far")]),
        given => given.clone(),
    };
    let instance = json!({
        "Node": {"Node": node, "Address": "10.9.0.1"},
        "Service": {
            "Kind": "connect-proxy", "ID": id, "Service": format!("{of}-sidecar-proxy"),
            "Port": 8443, "Proxy": {"DestinationServiceName": of},
            "TaggedAddresses": {"wan": {"Address": address, "Port": port}},
            "Connect": {"PeerMeta": {
                "SNI": [format!("{of}.default.default.here.external.{domain}")],
                "SpiffeID": identities, "Protocol": text("Protocol", "tcp"),
            }},
        },
        "Checks": [{
            "Node": node, "CheckID": format!("{id}:overall-check"), "Name": "overall-check",
            "ServiceID": id, "Status": text("Status", "passing"),
        }],
    });
    serde_json::from_value(instance).map_err(|error| refused("an import")(&error))
}

/// Writes a peering, the roots of the peer, and what is imported from it.
fn put_peering(txn: &mut WriteTxn, peer: &Peer) -> Result<(), Refused> {
    fn part<T: DeserializeOwned>(document: &Value) -> Result<T, Refused> {
        serde_json::from_value(document.clone()).map_err(|error| refused("peer")(&error))
    }
    let peering: Peering = part(&peer.peering)?;
    let imported = Tenancy::default().of_peer(&peering.name);
    if let Some(document) = &peer.trust_bundle {
        txn.put_trust_bundle(PeerTrustBundle {
            peer_name: peering.name.clone(),
            ..part(document)?
        });
    }
    txn.put_peering(peering);
    for (service, registrations) in &peer.imports {
        let of = |document: &Value| {
            Ok::<_, Refused>(CheckServiceNode {
                node: Arc::new(part(&document["Node"])?),
                service: Arc::new(part(&document["Service"])?),
                checks: Vec::new(),
            })
        };
        let instances: Vec<_> = registrations.iter().map(of).collect::<Result<_, _>>()?;
        txn.in_tenancy(&imported, |txn| txn.put_imported(service, &instances))
            .map_err(|error| refused("import")(&error))?;
    }
    Ok(())
}

/// Writes what a gateway `edge` of a cluster serves.
fn put_gateway(txn: &mut WriteTxn, document: &Value) -> Result<(), Refused> {
    fn part<T: DeserializeOwned>(document: &Value) -> Result<T, Refused> {
        serde_json::from_value(document.clone()).map_err(|error| refused("gateway")(&error))
    }
    let list = |field: &str| document[field].as_array().into_iter().flatten();
    let mut content = GatewayContent::default();
    for listener in list("Listeners") {
        let listener: Listener = part(listener)?;
        let checked = listener.validate();
        checked.map_err(|error| refused("gateway")(&error))?;
        content.listeners.push(Arc::new(listener));
    }
    for datagrams in list("Datagrams") {
        content.datagrams.push(part(datagrams)?);
    }
    for one in list("Endpoints") {
        let endpoints = (part(&one["Of"])?, part(&one["Endpoints"])?);
        content.endpoints.push(endpoints);
    }
    for secret in list("Secrets") {
        content.secrets.push(part(secret)?);
    }
    let put = txn.put_gateway("edge", &content);
    put.map_err(|problem| Refused(format!("gateway: {problem:?}")))
}

fn write(
    store: &Store,
    change: impl FnMut(&mut WriteTxn) -> Result<(), Refused> + Send + 'static,
) -> Result<(), Refused> {
    let written = store.write(change).now_or_never();
    written
        .expect("a store in memory is never waited for")
        .map(|_| ())
}

fn checked_entry(txn: &mut WriteTxn, document: &Value) -> Result<(), Refused> {
    let entry = put_entry(txn, document)?;
    refuse_broken_chains(txn, &entry)
}

fn tenancy(partition: &str, namespace: &str) -> Result<Tenancy, Refused> {
    let name = |text: &str| text.parse().map_err(|error| refused("a tenancy")(&error));
    Ok(Tenancy::new(&name(partition)?, &name(namespace)?))
}

/// Removes the tenancy from a registration.
fn take_tenancy(document: &mut Value) -> Result<Tenancy, Refused> {
    let mut take = |pointer: &str, field: &str| {
        let fields = document.pointer_mut(pointer).and_then(Value::as_object_mut);
        let name = fields.and_then(|fields| fields.remove(field));
        let name = name.as_ref().and_then(Value::as_str);
        name.unwrap_or_default().to_owned()
    };
    take("/Service", "Partition");
    tenancy(&take("", "Partition"), &take("/Service", "Namespace"))
}

fn register(txn: &mut WriteTxn, document: &Value) -> Result<(), Refused> {
    let mut document = document.clone();
    let tenancy = take_tenancy(&mut document)?;
    let request: RegisterRequest = decode("registration", &document)?;
    let wrong = refused("registration");
    request.validate().map_err(|error| wrong(&error))?;
    let parts = request.into_parts(DATACENTER);
    let registration = Registration {
        node: parts.node,
        service: parts.service,
        checks: parts.checks,
        skip_node_update: parts.skip_node_update,
    };
    txn.in_tenancy(&tenancy, |txn| txn.register(registration))
        .map_err(|error| wrong(&error))
}

fn put_entry(txn: &mut WriteTxn, document: &Value) -> Result<ConfigEntry, Refused> {
    let mut entry: ConfigEntry = decode("entry", document)?;
    let wrong = refused("entry");
    entry.validate().map_err(|error| wrong(&error))?;
    let extensions = match &entry {
        ConfigEntry::ProxyDefaults(entry) => &*entry.envoy_extensions,
        ConfigEntry::ServiceDefaults(entry) => &*entry.envoy_extensions,
        _ => &[],
    };
    for extension in extensions {
        check_extension(extension).map_err(|error| wrong(&error))?;
    }
    entry.normalise();
    let tenancy = entry.full_name().tenancy;
    let put = txn.in_tenancy(&tenancy, |txn| txn.put_config_entry(entry.clone(), None));
    put.map_err(|error| wrong(&error))?;
    Ok(entry)
}

/// An entry is refused if a chain that it may be part of would no longer compile.
fn refuse_broken_chains(txn: &WriteTxn, entry: &ConfigEntry) -> Result<(), Refused> {
    use ConfigKind::{ServiceDefaults, ServiceResolver, ServiceRouter, ServiceSplitter};
    let state = txn.read();
    let kinds = [
        ServiceDefaults,
        ServiceRouter,
        ServiceSplitter,
        ServiceResolver,
    ];
    let entries = kinds
        .into_iter()
        .flat_map(|kind| state.config_entries_of_all(kind));
    let mut services: Vec<ServiceName> = entries.map(|entry| entry.full_name()).collect();
    services.sort_unstable();
    services.dedup();
    for service in services {
        let request = Request {
            service: &service,
            datacenter: DATACENTER,
            trust_domain: &TrustDomain::of_cluster("c1"),
            overrides: Overrides::default(),
        };
        let chain = compile(&request, &StoredEntries(&state));
        chain.map_err(|error| refused(&format!("entry {}", entry.name()))(&error))?;
    }
    Ok(())
}
