//! The JSON mapping of Protocol Buffers: <https://protobuf.dev/programming-guides/json/>.

use prost_reflect::{DeserializeOptions, DynamicMessage, SerializeOptions};
use serde_json::Value;

use crate::{canonical, pool};

/// A document that is not a message of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not JSON, or not an object.
    #[error("it is not a JSON object: {0}")]
    Syntax(String),
    /// The type is missing.
    #[error(
        "it has no type; set \"@type\", for example to \"type.googleapis.com/{example}\"",
        example = "envoy.config.listener.v3.Listener"
    )]
    NoType,
    /// Envoy has no message with this name.
    #[error("Envoy has no message {0:?}; see Envoy's API reference for the existing types")]
    UnknownType(String),
    /// The fields do not match the type.
    #[error("it is not a {message}: {reason}")]
    Fields {
        /// The type's full name.
        message: String,
        /// The error, with the field.
        reason: String,
    },
}

/// Decodes a document of a known type to an encoded message. Unknown fields are refused.
///
/// # Errors
///
/// [`JsonError`] has the reason.
pub fn decode(type_url: &str, document: &Value) -> Result<Vec<u8>, JsonError> {
    let descriptor =
        pool::message(type_url).ok_or_else(|| JsonError::UnknownType(type_url.to_owned()))?;
    let message = descriptor.full_name().to_owned();
    let options = DeserializeOptions::new();
    DynamicMessage::deserialize_with_options(descriptor, document, &options)
        .map(|decoded| canonical::of_message(&decoded))
        .map_err(|error| JsonError::Fields {
            message,
            reason: error.to_string(),
        })
}

/// Decodes the JSON text of a `google.protobuf.Any` to its type URL and encoded message.
///
/// # Errors
///
/// [`JsonError`] has the reason.
pub fn decode_any(text: &str) -> Result<(String, Vec<u8>), JsonError> {
    let document: Value =
        serde_json::from_str(text).map_err(|error| JsonError::Syntax(error.to_string()))?;
    let Value::Object(mut fields) = document else {
        return Err(JsonError::Syntax("it is not an object".to_owned()));
    };
    let Some(Value::String(type_url)) = fields.remove("@type") else {
        return Err(JsonError::NoType);
    };
    let bytes = decode(&type_url, &Value::Object(fields))?;
    Ok((type_url, bytes))
}

/// The JSON form of a message, without unset fields.
///
/// # Errors
///
/// [`JsonError::UnknownType`], or [`JsonError::Fields`] if the bytes are not such a message.
pub fn encode(type_url: &str, bytes: &[u8]) -> Result<Value, JsonError> {
    let descriptor =
        pool::message(type_url).ok_or_else(|| JsonError::UnknownType(type_url.to_owned()))?;
    let message = descriptor.full_name().to_owned();
    let fields = |reason: String| JsonError::Fields {
        message: message.clone(),
        reason,
    };
    let decoded =
        DynamicMessage::decode(descriptor, bytes).map_err(|error| fields(error.to_string()))?;
    decoded
        .serialize_with_options(serde_json::value::Serializer, &SerializeOptions::new())
        .map_err(|error| fields(error.to_string()))
}
