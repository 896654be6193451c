//! The registered mesh: services of `dc2`, their callers in `dc1`, and the change that is measured. Pure.

use serde_json::{Value, json};

use crate::catalog::{self, CONFIG, REGISTER, Write};

/// Instances of each service.
pub(super) const INSTANCES: usize = 10;

/// The number of services of the callers: there is a certificate for each, and these are not what is measured.
const CALLING: usize = 100;

/// The settings of `dc1`.
pub(super) fn configuration() -> Vec<Write> {
    let allow = json!({
        "Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "*", "Action": "allow"}],
    });
    vec![(CONFIG, allow)]
}

/// The services of `dc2` with all instances.
pub(super) fn services(count: usize) -> Vec<Write> {
    let instances = (0..count * INSTANCES).flat_map(|number| {
        let service = catalog::name(number / INSTANCES);
        catalog::instance(&catalog::node(number), &service, number, &[])
    });
    instances.collect()
}

/// The service of a caller.
pub(super) fn calling(caller: usize) -> String {
    format!("caller-{}", caller % CALLING)
}

/// The callers in `dc1`, each with a service of `dc2` as its upstream.
pub(super) fn callers(count: usize) -> Vec<Write> {
    let callers = (0..count).flat_map(|caller| {
        let calls = [catalog::name(caller)];
        let node = catalog::node(caller);
        let [application, mut proxy] = catalog::instance(&node, &calling(caller), caller, &calls);
        let upstream = &mut proxy.1["Service"]["Proxy"]["Upstreams"][0];
        upstream["Datacenter"] = Value::from("dc2");
        [application, proxy]
    });
    callers.collect()
}

/// A change of one instance in `dc2`.
pub(super) struct Change {
    pub(super) write: Write,
    /// The only caller of its service.
    pub(super) caller: usize,
    /// The number of healthy instances afterwards.
    pub(super) healthy: usize,
}

/// An instance of the service of each of these callers in turn becomes critical, and then healthy again.
pub(super) fn change(callers: &[usize], round: usize) -> Change {
    let count = callers.len();
    let caller = callers[round % count];
    let number = caller * INSTANCES;
    let passing = (round / count) % 2 == 1;
    let body = json!({
        "Node": catalog::node(number), "Address": "10.255.0.1", "SkipNodeUpdate": true,
        "Check": catalog::check(number, passing),
    });
    Change {
        write: (REGISTER, body),
        caller,
        healthy: INSTANCES - usize::from(!passing),
    }
}
