//! Bytes that are not quite a resource: the decoder never panics, and never overlooks a field.

use std::sync::LazyLock;

use legate_l4::decode::{self, Refused};
use legate_l4::wire::{Fields, Raw};
use proptest::prelude::*;

use crate::golden;
use crate::support::{self, TYPES};

/// All served resources of the golden cases: message and bytes.
static SERVED: LazyLock<Vec<(&'static str, Vec<u8>)>> = LazyLock::new(|| {
    let resources = golden::cases().into_values().flatten();
    let mut served: Vec<_> = resources
        .filter(|resource| support::decode(resource.message, &resource.bytes).is_ok())
        .map(|resource| (resource.message, resource.bytes))
        .collect();
    served.sort();
    served.dedup();
    served
});

fn served() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    any::<prop::sample::Index>().prop_map(|index| index.get(&SERVED).clone())
}

/// Decodes bytes as every type, and shows them.
fn read_all(bytes: &[u8]) {
    let _ = decode::any(bytes);
    for (_, message) in TYPES {
        let _ = support::decode(message, bytes);
        let _ = decode::to_json(message, bytes);
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Bytes that are a message inside another one, as far as can be seen: they have fields to their end. A text may be one
/// by chance; then adding to it changes a text, and the caller cannot expect a refusal.
fn is_message(bytes: &[u8]) -> bool {
    let mut fields = Fields::new(bytes);
    fields.all(|field| field.is_ok())
}

/// Appends a field to the message number `at`, counted from the outermost in the order of the bytes.
fn add_field(bytes: &[u8], at: &mut usize, extra: &[u8]) -> Vec<u8> {
    let here = *at == 0;
    *at = at.wrapping_sub(1);
    let mut out = Vec::new();
    for field in Fields::new(bytes) {
        let (number, raw) = field.unwrap();
        let tag = u64::from(number) << 3;
        match raw {
            Raw::Varint(value) => {
                varint(tag, &mut out);
                varint(value, &mut out);
            }
            Raw::Fixed64(value) => {
                varint(tag | 1, &mut out);
                out.extend(value.to_le_bytes());
            }
            Raw::Fixed32(value) => {
                varint(tag | 5, &mut out);
                out.extend(value.to_le_bytes());
            }
            Raw::Bytes(inner) => {
                let inner = match is_message(inner) {
                    true => add_field(inner, at, extra),
                    false => inner.to_vec(),
                };
                varint(tag | 2, &mut out);
                varint(inner.len() as u64, &mut out);
                out.extend(inner);
            }
        }
    }
    if here {
        out.extend(extra);
    }
    out
}

proptest! {
    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        read_all(&bytes);
    }

    #[test]
    fn changed_bytes(
        (_, bytes) in served(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = bytes;
        for (index, value) in changes {
            if !bytes.is_empty() {
                let index = index.index(bytes.len());
                bytes[index] = value;
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        read_all(&bytes);
    }

    /// No message has the field 5,000, and none drops it.
    #[test]
    fn an_added_field_is_never_overlooked((message, bytes) in served(), at in 0_usize..60) {
        let mut extra = Vec::new();
        varint(5_000 << 3, &mut extra);
        extra.push(1);
        let mut left = at;
        let changed = add_field(&bytes, &mut left, &extra);
        if changed != bytes {
            let decoded = support::decode(message, &changed);
            match decoded {
                Err(Refused::NeedsEnvoy { .. } | Refused::Invalid(_)) => {}
                // A text that looks like a message: what was added to it is in the model.
                Ok(()) => {
                    let before = decode::to_json(message, &bytes);
                    let after = decode::to_json(message, &changed);
                    prop_assert_ne!(before, after, "the field was overlooked");
                }
            }
        }
    }

    #[test]
    fn an_added_field_of_the_resource_needs_envoy((message, bytes) in served()) {
        let mut extra = Vec::new();
        varint(5_000 << 3, &mut extra);
        extra.push(1);
        let changed = [bytes, extra].concat();
        let what = support::needs_envoy(support::decode(message, &changed));
        prop_assert_eq!(what, format!("field 5000 of {message}"));
    }
}
