//! The content hash of a service, for hash-based blocking queries of `/v1/agent/service/:id`. It equals
//! Consul's, so that a hash from before a migration stays valid; except for proxies, whose configuration is
//! hashed as text.
//!
//! Consul hashes the fields of a Go struct with FNV-1: lists in order, maps and structs regardless of order.

use serde_json::Value;

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// The content hash of a service in its JSON form.
pub(super) fn content_hash(shown: &Value) -> String {
    let string = |field: &str| text(shown[field].as_str().unwrap_or_default());
    let weights = [
        ("Passing", integer(&shown["Weights"]["Passing"])),
        ("Warning", integer(&shown["Weights"]["Warning"])),
    ];
    let tags = shown["Tags"].as_array().into_iter().flatten();
    let tags = tags.map(|tag| text(tag.as_str().unwrap_or_default()));
    let meta = entries(&shown["Meta"], |value| {
        text(value.as_str().unwrap_or_default())
    });
    let addresses = entries(&shown["TaggedAddresses"], |address| {
        let fields = [
            (
                "Address",
                text(address["Address"].as_str().unwrap_or_default()),
            ),
            ("Port", integer(&address["Port"])),
        ];
        structure("ServiceAddress", &fields)
    });
    let connect = match &shown["Connect"] {
        Value::Null => NIL,
        connect => {
            let native = u8::from(connect["Native"] == true);
            let fields = [("Native", fnv([native])), ("SidecarService", NIL)];
            structure("AgentServiceConnect", &fields)
        }
    };
    let proxy = match &shown["Proxy"] {
        Value::Null => NIL,
        proxy => text(&proxy.to_string()),
    };
    let zero = number(0);
    let fields = [
        ("Kind", string("Kind")),
        ("ID", string("ID")),
        ("Service", string("Service")),
        ("Tags", tags.fold(0, ordered)),
        ("Meta", meta),
        ("Port", integer(&shown["Port"])),
        ("Address", string("Address")),
        ("SocketPath", string("SocketPath")),
        ("TaggedAddresses", addresses),
        ("Weights", structure("AgentWeights", &weights)),
        (
            "EnableTagOverride",
            fnv([u8::from(shown["EnableTagOverride"] == true)]),
        ),
        ("CreateIndex", zero),
        ("ModifyIndex", zero),
        ("ContentHash", text("")),
        ("Proxy", proxy),
        ("Connect", connect),
        ("PeerName", text("")),
    ];
    format!("{:x}", structure("AgentService", &fields))
}

/// A nil pointer is hashed as the number 0.
const NIL: u64 = fnv([0; 8]);

const fn fnv<const N: usize>(bytes: [u8; N]) -> u64 {
    let mut hash = BASIS;
    let mut at = 0;
    while at < N {
        hash = hash.wrapping_mul(PRIME) ^ bytes[at] as u64;
        at += 1;
    }
    hash
}

fn text(text: &str) -> u64 {
    let bytes = text.bytes();
    bytes.fold(BASIS, |hash, byte| {
        hash.wrapping_mul(PRIME) ^ u64::from(byte)
    })
}

fn number(number: i64) -> u64 {
    fnv(number.to_le_bytes())
}

fn integer(value: &Value) -> u64 {
    number(value.as_i64().unwrap_or_default())
}

fn ordered(first: u64, second: u64) -> u64 {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&first.to_le_bytes());
    both[8..].copy_from_slice(&second.to_le_bytes());
    fnv(both)
}

fn structure(name: &str, fields: &[(&str, u64)]) -> u64 {
    let fields = fields.iter();
    fields.fold(text(name), |hash, (field, value)| {
        hash ^ ordered(text(field), *value)
    })
}

fn entries(map: &Value, hash: impl Fn(&Value) -> u64) -> u64 {
    let all = map.as_object().into_iter().flatten();
    all.fold(0, |sum, (key, value)| sum ^ ordered(text(key), hash(value)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::content_hash;

    #[test]
    fn the_hash_equals_consuls() {
        // The response of Consul 1.21 for this service.
        let shown = json!({
            "ID": "foo", "Service": "foo", "Tags": ["bar", "baz"], "Port": 8000, "Address": "",
            "Weights": { "Passing": 1, "Warning": 1 }, "Meta": {}, "Datacenter": "dc1",
            "EnableTagOverride": false,
        });
        assert_eq!(content_hash(&shown), "3e352f348d44f7eb");
        let mut other = shown.clone();
        other["Tags"] = json!(["baz", "bar"]);
        assert_ne!(content_hash(&other), content_hash(&shown));
    }
}
