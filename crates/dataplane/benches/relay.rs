//! The relay's cost per megabyte of xDS: a server's message is decoded, offered to Envoy, encoded in parts,
//! acknowledged, cached, and acknowledged to the server. No network.
//!
//! Prints times and has no thresholds.

use bytes::{Buf, Bytes};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use legate_api::type_url::CLUSTER;
use legate_dataplane::relay::core::{Action, Core, EnvoyStreamId, Event, ServerStreamId};
use legate_dataplane::relay::wire::Message as Sent;
use prost::Message;

const MEGABYTE: usize = 1024 * 1024;
const SERVER: ServerStreamId = ServerStreamId(1);

/// One megabyte of resources of this size, as it arrives from the network.
fn message(size: usize, version: u64) -> Bytes {
    let body = Bytes::from(vec![b'x'; size]);
    let resources = (0..MEGABYTE / size).map(|number| Resource {
        name: format!("service-{number}.default.dc1.internal.consul"),
        version: format!("{version:064x}"),
        resource: body.clone(),
        aliases: Vec::new(),
    });
    let response = DeltaDiscoveryResponse {
        resources: resources.collect(),
        type_url: CLUSTER.to_owned(),
        nonce: format!("{version:08x}"),
        ..DeltaDiscoveryResponse::default()
    };
    response.encode_to_vec().into()
}

fn subscribe(core: &mut Core, envoy: EnvoyStreamId) -> Vec<Action> {
    core.handle(Event::EnvoyConnected(envoy));
    let request = DeltaDiscoveryRequest {
        node: Bytes::from_static(b"node"),
        type_url: CLUSTER.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    core.handle(Event::EnvoyRequest(envoy, Box::new(request)))
}

/// Encodes outgoing messages and acknowledges responses as Envoy. Returns the number of bytes sent.
fn perform(core: &mut Core, mut actions: Vec<Action>) -> usize {
    let mut bytes = 0;
    while !actions.is_empty() {
        let mut next = Vec::new();
        for action in actions {
            match action {
                Action::ToEnvoy(envoy, response) => {
                    let answer = DeltaDiscoveryRequest {
                        type_url: response.type_url.clone(),
                        response_nonce: response.nonce.clone(),
                        ..DeltaDiscoveryRequest::default()
                    };
                    bytes += Sent::new(response).expect("a megabyte").remaining();
                    next.extend(core.handle(Event::EnvoyRequest(envoy, Box::new(answer))));
                }
                Action::ToServer(_, request) => bytes += request.encode_to_vec().len(),
                _ => {}
            }
        }
        actions = next;
    }
    bytes
}

fn relay(core: &mut Core, message: Bytes) -> usize {
    let Ok(response) = DeltaDiscoveryResponse::decode(message) else {
        return 0;
    };
    let actions = core.handle(Event::ServerResponse(SERVER, Box::new(response)));
    perform(core, actions)
}

/// A relay between a server and one Envoy, without any resources.
fn connected() -> Core {
    let mut core = Core::new();
    core.handle(Event::ServerConnected(SERVER));
    let actions = subscribe(&mut core, EnvoyStreamId(1));
    perform(&mut core, actions);
    core
}

/// The same with a first megabyte of resources.
fn filled(size: usize) -> Core {
    let mut core = connected();
    relay(&mut core, message(size, 1));
    core
}

fn benches(criterion: &mut Criterion) {
    for size in [256, 4 * 1024, 64 * 1024] {
        let mut group = criterion.benchmark_group(format!("1 MB in resources of {size} bytes"));
        group.throughput(Throughput::Bytes(MEGABYTE as u64));
        let (first, second) = (message(size, 1), message(size, 2));
        group.bench_function(
            BenchmarkId::from_parameter("first configuration"),
            |bencher| {
                bencher.iter_batched_ref(
                    connected,
                    |core| relay(core, first.clone()),
                    BatchSize::LargeInput,
                );
            },
        );
        group.bench_function(
            BenchmarkId::from_parameter("everything changed"),
            |bencher| {
                bencher.iter_batched_ref(
                    || filled(size),
                    |core| relay(core, second.clone()),
                    BatchSize::LargeInput,
                );
            },
        );
        group.bench_function(
            BenchmarkId::from_parameter("restarted Envoy, from the cache"),
            |bencher| {
                bencher.iter_batched_ref(
                    || {
                        let mut core = filled(size);
                        core.handle(Event::EnvoyGone(EnvoyStreamId(1)));
                        core
                    },
                    |core| {
                        let actions = subscribe(core, EnvoyStreamId(2));
                        perform(core, actions)
                    },
                    BatchSize::LargeInput,
                );
            },
        );
        group.bench_function(
            BenchmarkId::from_parameter("next server, nothing changed"),
            |bencher| {
                bencher.iter_batched_ref(
                    || {
                        let mut core = filled(size);
                        core.handle(Event::ServerGone(SERVER));
                        core
                    },
                    |core| {
                        let actions = core.handle(Event::ServerConnected(ServerStreamId(2)));
                        perform(core, actions)
                    },
                    BatchSize::LargeInput,
                );
            },
        );
        group.finish();
    }
}

criterion_group!(relay_benches, benches);
criterion_main!(relay_benches);
