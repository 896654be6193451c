//! Converts the free-form arguments of an extension to typed ones.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::invalid::Invalid;
use crate::json::decode::{DecodeError, Opaque, UnknownFields, from_value, same_key};

/// Arguments that are lists of objects.
const LISTS: &[&str] = &[
    "AllowedClientHeaders",
    "AllowedClientHeadersOnSuccess",
    "AllowedHeaders",
    "AllowedUpstreamHeaders",
    "AllowedUpstreamHeadersToAppend",
    "DynamicMetadataFromHeaders",
    "HeadersToAdd",
    "InitialMetadata",
    "Patches",
    "Services",
];

/// Arguments with user-defined keys.
const FREE: &[&str] = &[
    "AllowedCapabilities",
    "Attributes",
    "Body",
    "KeyValues",
    "ResourceAttributes",
    "Value",
];

pub(super) fn read<T: DeserializeOwned>(
    arguments: &Opaque,
    validate: impl FnOnce(&T) -> Result<(), Invalid>,
) -> Result<T, Invalid> {
    let arguments = Value::Object(arguments.clone());
    let decoded = from_value(shaped(arguments), UnknownFields::Refuse);
    let decoded: T = decoded.map_err(refused)?;
    validate(&decoded).map_err(|error| error.within("Arguments"))?;
    Ok(decoded)
}

fn refused(error: DecodeError) -> Invalid {
    match error {
        DecodeError::Value { path, message } if !path.is_empty() => {
            Invalid::new(path, message).within("Arguments")
        }
        other => Invalid::new("Arguments", other.to_string()),
    }
}

/// HCL does not distinguish an object from a list of one, so Consul's command line may send either.
fn shaped(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| {
                let is = |names: &[&str]| names.iter().any(|name| same_key(name, &key));
                let value = match value {
                    free if is(FREE) => free,
                    object @ Value::Object(_) if is(LISTS) => Value::Array(vec![shaped(object)]),
                    Value::Array(items) if is(LISTS) => {
                        Value::Array(items.into_iter().map(shaped).collect())
                    }
                    Value::Array(mut items) if items.len() == 1 && items[0].is_object() => {
                        shaped(items.remove(0))
                    }
                    other => shaped(other),
                };
                (key, value)
            });
            Value::Object(fields.collect())
        }
        other => other,
    }
}
