//! A deterministic encoding of messages: map entries are sorted by key, also inside
//! `google.protobuf.Any`. The iteration order of maps differs from run to run, and a resource with
//! different bytes would be sent again.

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{
    DynamicMessage, FieldDescriptor, MapKey, MessageDescriptor, ReflectMessage, Value,
};

use crate::pool;

const ANY: &str = "google.protobuf.Any";

/// The deterministic encoding of a message of this type. Bytes that are not such a message, or of a
/// type that Envoy does not have, are returned unchanged.
pub fn canonical(type_url: &str, bytes: &[u8]) -> Vec<u8> {
    let decoded = pool::message(type_url)
        .and_then(|descriptor| DynamicMessage::decode(descriptor, bytes).ok());
    decoded.map_or_else(|| bytes.to_vec(), |message| of_message(&message))
}

pub(crate) fn of_message(message: &DynamicMessage) -> Vec<u8> {
    let mut out = Vec::new();
    let mut fields: Vec<_> = message.fields().collect();
    fields.sort_unstable_by_key(|(field, _)| field.number());
    let any = (message.descriptor().full_name() == ANY).then(|| type_of(message));
    for (field, value) in fields {
        match (&any, value) {
            (Some(type_url), Value::Bytes(inner)) => {
                of_bytes(field.number(), &canonical(type_url, inner), &mut out);
            }
            _ => of_field(&field, value, &message.descriptor(), &mut out),
        }
    }
    for unknown in message.unknown_fields() {
        unknown.encode(&mut out);
    }
    out
}

fn type_of(any: &DynamicMessage) -> String {
    let field = any.get_field_by_name("type_url");
    let text = field.as_ref().and_then(|value| value.as_str());
    text.unwrap_or_default().to_owned()
}

fn of_field(field: &FieldDescriptor, value: &Value, parent: &MessageDescriptor, out: &mut Vec<u8>) {
    match value {
        Value::Message(inner) => of_bytes(field.number(), &of_message(inner), out),
        Value::List(list) if matches!(list.first(), Some(Value::Message(_))) => {
            let messages = list.iter().filter_map(Value::as_message);
            messages.for_each(|inner| of_bytes(field.number(), &of_message(inner), out));
        }
        Value::Map(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            for (key, value) in entries {
                of_bytes(field.number(), &of_entry(field, key, value), out);
            }
        }
        scalar => {
            let mut alone = DynamicMessage::new(parent.clone());
            alone.set_field(field, scalar.clone());
            out.extend(alone.encode_to_vec());
        }
    }
}

/// A map entry: a message with key and value.
fn of_entry(field: &FieldDescriptor, key: &MapKey, value: &Value) -> Vec<u8> {
    let kind = field.kind();
    let Some(descriptor) = kind.as_message() else {
        return Vec::new();
    };
    let mut entry = DynamicMessage::new(descriptor.clone());
    entry.set_field(&descriptor.map_entry_key_field(), Value::from(key.clone()));
    entry.set_field(&descriptor.map_entry_value_field(), value.clone());
    of_message(&entry)
}

fn of_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}
