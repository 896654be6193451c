//! The endpoints of ports of Services, from EndpointSlices. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use legate_gateway_api::{Key, Service};
use legate_routes::{Endpoint, MAX_ENDPOINTS, ServicePort, Transport};

use super::pods::{Call, Pods};

/// The parts of an EndpointSlice that gateways depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    /// Name, number and transport of each port.
    ports: Vec<(String, u16, Transport)>,
    /// The addresses of ready endpoints, and the names of their pods.
    ready: Vec<(IpAddr, Option<String>)>,
}

impl Slice {
    pub(super) fn of(slice: &EndpointSlice) -> Self {
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            let transport = match port.protocol.as_deref().unwrap_or("TCP") {
                "TCP" => Transport::Tcp,
                "UDP" => Transport::Udp,
                _ => return None,
            };
            let number = u16::try_from(port.port?).ok()?;
            Some((port.name.clone().unwrap_or_default(), number, transport))
        });
        let ready = slice.endpoints.iter().filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            // Unset means ready.
            conditions.and_then(|conditions| conditions.ready) != Some(false)
        });
        let ready = ready.flat_map(|endpoint| {
            let target = endpoint.target_ref.as_ref();
            let pod = target.filter(|target| target.kind.as_deref() == Some("Pod"));
            let pod = pod.and_then(|pod| pod.name.clone());
            let addresses = endpoint.addresses.iter();
            addresses.filter_map(move |one| Some((one.parse().ok()?, pod.clone())))
        });
        Self {
            ports: ports.collect(),
            ready: ready.collect(),
        }
    }
}

/// The endpoints of a port, sorted, and at most [`MAX_ENDPOINTS`] of them.
pub(super) fn endpoints(
    port: &ServicePort,
    services: &BTreeMap<Key, Service>,
    slices: &BTreeMap<Key, BTreeMap<String, Slice>>,
    pods: &Pods,
) -> BTreeSet<Endpoint> {
    let key = Key::new(&port.namespace, &port.name);
    let is_it = |one: &&legate_gateway_api::ServicePort| {
        one.port == port.port && one.udp == (port.transport == Transport::Udp)
    };
    let service = services.get(&key);
    let Some(name) = service.and_then(|service| service.ports.iter().find(is_it)) else {
        return BTreeSet::new();
    };
    let slices = slices.get(&key).into_iter().flat_map(BTreeMap::values);
    let endpoints = slices.flat_map(|slice| {
        let ports = slice.ports.iter();
        let ports =
            ports.filter(|(of, _, transport)| *of == name.name && *transport == port.transport);
        ports.flat_map(|(_, number, transport)| {
            let ready = slice.ready.iter();
            ready.filter_map(|(address, pod)| {
                let pod = pod.as_ref().map(|pod| Key::new(&key.namespace, pod));
                let call = pods.call(pod.as_ref(), *address);
                endpoint(*address, (*number, *transport), &call)
            })
        })
    });
    let endpoints: BTreeSet<_> = endpoints.collect();
    endpoints.into_iter().take(MAX_ENDPOINTS).collect()
}

/// An endpoint at a port of a pod, if it can be called. Sidecars take no datagrams.
fn endpoint(
    address: IpAddr,
    (port, transport): (u16, Transport),
    call: &Call<'_>,
) -> Option<Endpoint> {
    match call {
        Call::Plain => Some(Endpoint {
            address,
            port,
            identity: None,
            application: None,
        }),
        Call::Mesh(sidecar) if transport == Transport::Tcp => sidecar.endpoint(address, port),
        Call::Mesh(_) | Call::Never => None,
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use legate_model::{ServiceName, Tenancy};
    use serde_json::{Value, json};

    use super::super::pods::{Selected, Sidecar};
    use super::*;
    use crate::sync::facts;
    use crate::sync::registration::Settings;

    const PLAIN: &str = "10.0.0.1";
    const IN_MESH: &str = "10.0.0.2";

    fn slice(port: u16) -> Slice {
        let endpoint = |address: &str, pod: &str| {
            json!({
                "addresses": [address], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": "shop"},
            })
        };
        let slice = json!({
            "metadata": {}, "addressType": "IPv4",
            "endpoints": [endpoint(PLAIN, "plain"), endpoint(IN_MESH, "meshed")],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        });
        Slice::of(&serde_json::from_value(slice).unwrap())
    }

    /// A pod of the mesh whose application listens on port 8080.
    fn meshed() -> facts::Pod {
        let annotation = |name: &str| format!("consul.hashicorp.com/{name}");
        let mut annotations = serde_json::Map::<String, Value>::new();
        annotations.insert(annotation("connect-inject-status"), json!("injected"));
        annotations.insert(annotation("connect-service"), json!("cart"));
        annotations.insert(annotation("connect-service-port"), json!("8080"));
        let labels = json!({"app": "cart"});
        let pod = json!({
            "metadata": {
                "namespace": "shop", "name": "meshed", "annotations": annotations, "labels": labels,
            },
            "spec": {"containers": [], "nodeName": "n"},
            "status": {"podIP": IN_MESH, "hostIP": "192.0.2.1"},
        });
        facts::Pod::of(serde_json::from_value(pod).unwrap())
    }

    fn of(pods: &Pods, port: u16) -> Vec<Endpoint> {
        let key = Key::new("shop", "cart");
        let of = ServicePort {
            namespace: "shop".to_owned(),
            name: "cart".to_owned(),
            port: 80,
            transport: Transport::Tcp,
        };
        let named = legate_gateway_api::ServicePort {
            port: 80,
            name: "http".to_owned(),
            ..Default::default()
        };
        let service = Service {
            ports: vec![named],
            ..Service::default()
        };
        let services = [(key.clone(), service)].into();
        let slices = [(key, [("cart-1".to_owned(), slice(port))].into())].into();
        endpoints(&of, &services, &slices, pods)
            .into_iter()
            .collect()
    }

    #[test]
    fn a_pod_of_the_mesh_is_never_called_in_plain_text() {
        let mut pods = Pods::default();
        assert_eq!(of(&pods, 8080), [], "nothing is known of the pods");
        pods.put_any(Key::new("shop", "plain"), false);
        let plain = Endpoint {
            address: PLAIN.parse().unwrap(),
            port: 8080,
            identity: None,
            application: None,
        };
        assert_eq!(of(&pods, 8080), from_ref(&plain));
        pods.put_any(Key::new("shop", "meshed"), true);
        assert_eq!(
            of(&pods, 8080),
            from_ref(&plain),
            "its sidecar is not known"
        );
        pods.put(meshed());
        let sidecar = Endpoint {
            address: IN_MESH.parse().unwrap(),
            port: Sidecar::PORT,
            identity: Some(ServiceName::new(&Tenancy::default(), "cart")),
            application: None,
        };
        assert_eq!(of(&pods, 8080), [plain.clone(), sidecar]);
        let other: Vec<_> = of(&pods, 9090).into_iter().map(|one| one.address).collect();
        assert_eq!(other, [plain.address], "the sidecar leads to another port");
        let unnamed = pods.call(None, IN_MESH.parse().unwrap());
        assert!(matches!(unnamed, Call::Mesh(_)), "{unnamed:?}");
        pods.remove(&Key::new("shop", "meshed"));
        assert_eq!(of(&pods, 8080), [plain]);
    }

    #[test]
    fn sidecars_lead_to_the_ports_that_services_have() {
        let mut pods = Pods::new(Settings {
            gateway_api: true,
            ..Settings::default()
        });
        pods.put_any(Key::new("shop", "meshed"), true);
        pods.put(meshed());
        let applications = |pods: &Pods, port: u16| -> Vec<Option<u16>> {
            let all = of(pods, port).into_iter().map(|one| one.application);
            all.collect()
        };
        assert_eq!(applications(&pods, 8080), [None]);
        assert_eq!(applications(&pods, 9090), []);
        let service = |name: &str, labels: Value| {
            let service = json!({
                "metadata": {"namespace": "shop", "name": name, "labels": labels},
                "spec": {"selector": {"app": "cart"}, "ports": [
                    {"port": 80, "targetPort": 8080}, {"port": 90, "targetPort": 9090},
                ]},
            });
            facts::Service::of(serde_json::from_value(service).unwrap())
        };
        let (other, key) = (service("all", json!({})), Key::new("shop", "all"));
        pods.put_service(other);
        assert_eq!(applications(&pods, 9090), [Some(9090)]);
        assert_eq!(applications(&pods, 8080), [None]);
        let selected = |is_other: bool, ports: &[u16]| Selected {
            service: (!is_other).then(|| ServiceName::new(&Tenancy::default(), "cart")),
            is_other,
            ports: ports.iter().copied().collect(),
        };
        assert_eq!(pods.selected(), [(key.clone(), selected(true, &[]))].into());
        pods.put_service(service("cart", json!({})));
        let own = Key::new("shop", "cart");
        let both = [
            (key.clone(), selected(true, &[])),
            (own.clone(), selected(false, &[80])),
        ];
        assert_eq!(
            pods.selected(),
            both.into(),
            "90 is not the registered port"
        );
        // What is excluded from the mesh says nothing of it.
        pods.remove_service(&own);
        let ignored = json!({"consul.hashicorp.com/service-ignore": "true"});
        pods.put_service(service("all", ignored));
        assert_eq!(pods.selected(), [].into());
    }
}
