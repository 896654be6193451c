//! The load balancer of a cluster without a cloud: assigns addresses to Services. That connections to these
//! addresses reach the pods is up to kube-proxy.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::json;

/// The last part of the addresses for Services that do not ask for one.
const AUTOMATIC: RangeInclusive<u8> = 1..=199;
/// The last part of an address that only a Service that asks for it has.
const ON_REQUEST: u8 = 200;

/// The addresses, a network with 24 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network([u8; 3]);

impl Network {
    fn address(self, last: u8) -> Ipv4Addr {
        let [a, b, c] = self.0;
        Ipv4Addr::new(a, b, c, last)
    }

    /// An address that is free until a Service asks for it.
    pub(super) fn on_request(self) -> Ipv4Addr {
        self.address(ON_REQUEST)
    }

    fn has(self, address: Ipv4Addr) -> bool {
        let [a, b, c, last] = address.octets();
        [a, b, c] == self.0 && (1..255).contains(&last)
    }
}

impl FromStr for Network {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let address = text.strip_suffix(".0/24");
        let address = address.and_then(|start| format!("{start}.0").parse().ok());
        let address: Ipv4Addr = address.context("not a network such as 10.0.0.0/24")?;
        let [a, b, c, _] = address.octets();
        Ok(Self([a, b, c]))
    }
}

/// A Service of type LoadBalancer.
#[derive(Clone, Default)]
struct Balanced {
    namespace: String,
    name: String,
    asks_for: Option<String>,
    has: Vec<String>,
}

impl Balanced {
    /// Whether its status says exactly this.
    fn has(&self, address: Option<Ipv4Addr>) -> bool {
        let address = address.map(|address| address.to_string());
        self.has.iter().eq(address.iter())
    }
}

/// Assigns addresses until it is dropped.
pub(super) async fn run(client: &Client, network: Network) -> anyhow::Result<Infallible> {
    let services = Api::<Service>::all(client.clone());
    let changes = watcher(services, watcher::Config::default()).default_backoff();
    let mut changes = pin!(changes);
    while let Some(change) = changes.next().await {
        match change {
            Ok(Event::Init | Event::InitApply(_)) => {}
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
                while let Err(error) = update(client, network).await {
                    eprintln!("load balancer: {error:#}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
            // The watcher tries again.
            Err(error) => eprintln!("load balancer: {error:#}"),
        }
    }
    bail!("the load balancer has ended")
}

/// Writes the status of all Services that change. It reads them again, because those of the watch may be older
/// than what it has written.
async fn update(client: &Client, network: Network) -> anyhow::Result<()> {
    let services = Api::<Service>::all(client.clone());
    let services = services.list(&ListParams::default()).await?;
    let services: Vec<_> = services.into_iter().filter_map(balanced).collect();
    for (service, address) in services.iter().zip(assign(network, &services)) {
        if service.has(address) {
            continue;
        }
        let points = address.map(|address| json!({"ip": address, "ipMode": "VIP"}));
        let points: Vec<_> = points.into_iter().collect();
        let status = json!({"status": {"loadBalancer": {"ingress": points}}});
        let of_namespace = Api::<Service>::namespaced(client.clone(), &service.namespace);
        let (options, status) = (PatchParams::default(), Patch::Merge(&status));
        let write = of_namespace.patch_status(&service.name, &options, &status);
        match write.await {
            // It was deleted meanwhile.
            Err(kube::Error::Api(refused)) if refused.code == 404 => {}
            outcome => {
                outcome.with_context(|| format!("{}/{}", service.namespace, service.name))?;
            }
        }
    }
    Ok(())
}

/// The Service, if it needs an address from here.
fn balanced(service: Service) -> Option<Balanced> {
    let spec = service.spec?;
    if spec.type_.as_deref() != Some("LoadBalancer") || spec.load_balancer_class.is_some() {
        return None;
    }
    let points = service.status.and_then(|status| status.load_balancer);
    let points = points.and_then(|status| status.ingress).unwrap_or_default();
    Some(Balanced {
        namespace: service.metadata.namespace?,
        name: service.metadata.name?,
        asks_for: spec.load_balancer_ip.filter(|address| !address.is_empty()),
        has: points.into_iter().filter_map(|point| point.ip).collect(),
    })
}

/// The address of each Service, if it gets one. A Service keeps the address that it has; one that asks for an
/// address gets this one or, if it is elsewhere or taken, none.
fn assign(network: Network, services: &[Balanced]) -> Vec<Option<Ipv4Addr>> {
    let asked = |service: &Balanced| match &service.asks_for {
        Some(text) => text.parse().ok().filter(|address| network.has(*address)),
        None => None,
    };
    let mut taken = BTreeSet::new();
    let mut assigned: Vec<Option<Ipv4Addr>> = Vec::new();
    for service in services {
        let held = service.has.first().and_then(|text| text.parse().ok());
        let held = held.filter(|held| match service.asks_for {
            Some(_) => asked(service) == Some(*held),
            None => network.has(*held),
        });
        assigned.push(held.filter(|held| taken.insert(*held)));
    }
    for (service, address) in services.iter().zip(&mut assigned) {
        if address.is_none() && service.asks_for.is_some() {
            *address = asked(service).filter(|asked| taken.insert(*asked));
        }
    }
    let mut free = AUTOMATIC.map(|last| network.address(last));
    for (service, address) in services.iter().zip(&mut assigned) {
        if address.is_none() && service.asks_for.is_none() {
            *address = free.find(|free| taken.insert(*free));
        }
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(asks_for: &str, has: &[&str]) -> Balanced {
        Balanced {
            asks_for: Some(asks_for.to_owned()).filter(|text| !text.is_empty()),
            has: has.iter().map(|&text| text.to_owned()).collect(),
            ..Balanced::default()
        }
    }

    /// What is assigned, as text; pending Services have "".
    fn assigned(services: &[Balanced]) -> Vec<String> {
        let network = "10.250.1.0/24".parse().unwrap();
        let all = assign(network, services).into_iter();
        all.map(|address| address.map(|a| a.to_string()).unwrap_or_default())
            .collect()
    }

    #[test]
    fn services_get_different_addresses_and_keep_them() {
        let new = service("", &[]);
        let old = service("", &["10.250.1.1"]);
        let found = assigned(&[new.clone(), old, new]);
        assert_eq!(found, ["10.250.1.2", "10.250.1.1", "10.250.1.3"]);
    }

    #[test]
    fn an_address_is_that_which_is_asked_for_or_none() {
        let asks = [
            ("10.250.1.200", "10.250.1.200"),
            ("10.250.1.7", "10.250.1.7"),
            ("192.0.2.7", ""),
            ("10.250.1.0", ""),
            ("10.250.1.255", ""),
            ("::1", ""),
            ("nothing", ""),
        ];
        for (asked, expected) in asks {
            assert_eq!(assigned(&[service(asked, &[])]), [expected], "{asked}");
            let moved = service(asked, &["10.250.1.3"]);
            assert_eq!(assigned(&[moved]), [expected], "{asked}");
        }
    }

    #[test]
    fn an_address_has_one_service() {
        let asks = || service("10.250.1.1", &[]);
        let found = assigned(&[service("", &[]), asks(), asks()]);
        assert_eq!(found, ["10.250.1.2", "10.250.1.1", ""]);
        let holds = service("", &["10.250.1.1"]);
        assert_eq!(assigned(&[asks(), holds]), ["", "10.250.1.1"]);
        let twice = service("", &["10.250.1.1"]);
        let found = assigned(&[twice.clone(), twice]);
        assert_eq!(found, ["10.250.1.1", "10.250.1.2"]);
    }

    #[test]
    fn addresses_of_others_are_replaced() {
        let foreign = service("", &["192.0.2.1"]);
        assert_eq!(assigned(&[foreign]), ["10.250.1.1"]);
    }

    #[test]
    fn addresses_on_request_are_not_for_others_and_the_rest_is_pending() {
        let found = assigned(&vec![service("", &[]); 201]);
        assert_eq!(found[198..], ["10.250.1.199", "", ""]);
    }

    #[test]
    fn a_status_is_written_if_it_differs() {
        let address = Some(Ipv4Addr::new(10, 250, 1, 1));
        assert!(service("", &["10.250.1.1"]).has(address));
        assert!(service("", &[]).has(None));
        assert!(!service("", &["10.250.1.1", "10.250.1.2"]).has(address));
        assert!(!service("", &["10.250.1.1"]).has(None));
        assert!(!service("", &[]).has(address));
    }

    #[test]
    fn networks_have_24_bits() {
        for bad in [
            "10.250.1.0",
            "10.250.1.0/16",
            "10.250.1.1/24",
            "10.0/24",
            "",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
