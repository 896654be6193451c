//! A mesh gateway: the cost of changes.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use legate_model::UpstreamLimits;
use legate_proxycfg::{Instances, Kind, MeshGateway, MeshService, MeshServices, Snapshot};
use legate_resources::{Generator, ResourceSet};

use crate::support::{instance, web};

/// The same for all gateways, as in the snapshots of one store.
static NO_LIMITS: LazyLock<Arc<Option<UpstreamLimits>>> = LazyLock::new(|| Arc::new(None));

fn service(name: &str, port: u16) -> Arc<MeshService> {
    Arc::new(MeshService {
        service: name.into(),
        connect_timeout: Duration::ZERO,
        load_balancer: None,
        instances: Arc::new(Instances::from(vec![instance("10.0.2.1", port, &[])])),
        subsets: Vec::new(),
    })
}

fn gateway(services: &[&Arc<MeshService>]) -> Snapshot {
    let mut snapshot = web().snapshot();
    let services = services.iter().map(|one| Arc::clone(one));
    snapshot.kind = Kind::MeshGateway(MeshGateway {
        limits: Arc::clone(&NO_LIMITS),
        services: Arc::new(MeshServices(services.collect())),
    });
    snapshot
}

/// The number of parts that are made for a change.
fn cost(before: &Snapshot, after: &Snapshot) -> u64 {
    // Both have the same registration.
    let after = Snapshot {
        proxy: before.proxy.clone(),
        kind: after.kind.clone(),
    };
    let generator = Generator::new();
    let first = generator.generate(before, None);
    let computed = generator.work().computed;
    let set = generator.generate(&after, Some((before, &first)));
    let cost = generator.work().computed - computed;
    let whole = Generator::new().generate(&after, None);
    assert_eq!(names(&set), names(&whole));
    cost
}

fn names(set: &ResourceSet) -> Vec<(String, String)> {
    let types = [
        "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "type.googleapis.com/envoy.config.listener.v3.Listener",
    ];
    let of_type = |url: &str| {
        let all = set.get(url).values();
        let one = all.map(|one| (one.name.to_string(), one.version.to_string()));
        one.collect::<Vec<_>>()
    };
    types.iter().flat_map(|url| of_type(url)).collect()
}

#[test]
fn a_change_makes_only_the_parts_of_its_service() {
    let (api, db, web) = (service("api", 1), service("db", 2), service("web", 3));
    let all = gateway(&[&api, &db, &web]);
    assert_eq!(cost(&all, &all), 0);
    let moved = MeshService {
        instances: service("db", 4).instances.clone(),
        ..MeshService::clone(&db)
    };
    assert_eq!(
        cost(&all, &gateway(&[&api, &Arc::new(moved), &web])),
        1,
        "its endpoints"
    );
    let slower = MeshService {
        connect_timeout: Duration::from_secs(1),
        ..MeshService::clone(&db)
    };
    assert_eq!(
        cost(&all, &gateway(&[&api, &Arc::new(slower), &web])),
        1,
        "its cluster"
    );
    assert_eq!(cost(&all, &gateway(&[&db, &web])), 0, "a service is gone");
    assert_eq!(cost(&gateway(&[&db, &web]), &all), 2, "a service is new");
}

#[test]
fn a_gateway_that_was_a_sidecar_reuses_nothing_of_it() {
    let generator = Generator::new();
    let sidecar = web().snapshot();
    let before = generator.generate(&sidecar, None);
    let api = service("api", 1);
    let now = gateway(&[&api]);
    let set = generator.generate(&now, Some((&sidecar, &before)));
    assert_eq!(names(&set), names(&Generator::new().generate(&now, None)));
    assert!(set.failures().is_empty());
}
