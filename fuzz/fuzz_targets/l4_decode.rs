//! Envoy's resources as the built-in L4 proxy decodes them, from bytes of a server. What is decoded has no field that
//! the decoder does not know: the same bytes with an unknown field are refused.
//!
//! Input: one byte for the type, then the encoded resource.
#![no_main]

use legate_l4::decode::{self, Refused};
use libfuzzer_sys::fuzz_target;

/// The names of the types, for their JSON.
const TYPES: [&str; 4] = [
    "envoy.config.listener.v3.Listener",
    "envoy.config.cluster.v3.Cluster",
    "envoy.config.endpoint.v3.ClusterLoadAssignment",
    "envoy.extensions.transport_sockets.tls.v3.Secret",
];

/// The field 5,000 with the value 1, which no message has.
const UNKNOWN: [u8; 4] = [0xc0, 0xb8, 0x02, 0x01];

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    let kind = usize::from(*kind) % TYPES.len();
    let _ = decode::any(bytes);
    let shown = decode::to_json(TYPES[kind], bytes);
    assert!(shown.is_object(), "{shown}");
    if decode(kind, bytes).is_ok() {
        let more = [bytes, &UNKNOWN].concat();
        let refused = decode(kind, &more).expect_err("an unknown field was overlooked");
        assert!(matches!(refused, Refused::NeedsEnvoy { .. }), "{refused}");
    }
});

fn decode(kind: usize, bytes: &[u8]) -> Result<(), Refused> {
    match kind {
        0 => decode::listener(bytes).map(drop),
        1 => decode::cluster(bytes).map(drop),
        2 => decode::endpoints(bytes).map(drop),
        _ => decode::secret(bytes).map(drop),
    }
}
