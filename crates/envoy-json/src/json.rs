//! Protobuf's JSON form: <https://protobuf.dev/programming-guides/json/>.

use prost_reflect::{DeserializeOptions, DynamicMessage, SerializeOptions};
use serde_json::Value;

use crate::{canonical, pool};

/// A document is not a message of the type that it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// It is not JSON, or not an object.
    #[error("it is not a JSON object: {0}")]
    Syntax(String),
    /// It does not say what it is.
    #[error(
        "it does not say its type; set \"@type\", for example to \"type.googleapis.com/{example}\"",
        example = "envoy.config.listener.v3.Listener"
    )]
    NoType,
    /// Envoy has no message of this name.
    #[error("Envoy has no message {0:?}; see Envoy's API reference for the types that there are")]
    UnknownType(String),
    /// Its fields are not those of its type.
    #[error("it is not a {message}: {reason}")]
    Fields {
        /// The type's full name.
        message: String,
        /// What is wrong, with the field.
        reason: String,
    },
}

/// Decodes a document of a known type to the message's bytes. Unknown fields are refused.
///
/// # Errors
///
/// [`JsonError`] says what is wrong.
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

/// Decodes the JSON text of a `google.protobuf.Any` to its type URL and the bytes of what is in it.
///
/// # Errors
///
/// [`JsonError`] says what is wrong.
pub fn decode_any(text: &str) -> Result<(String, Vec<u8>), JsonError> {
    let document: Value =
        serde_json::from_str(text).map_err(|error| JsonError::Syntax(error.to_string()))?;
    let Value::Object(mut fields) = document else {
        return Err(JsonError::Syntax("it is another value".to_owned()));
    };
    let Some(Value::String(type_url)) = fields.remove("@type") else {
        return Err(JsonError::NoType);
    };
    let bytes = decode(&type_url, &Value::Object(fields))?;
    Ok((type_url, bytes))
}

/// The JSON form of a message. Fields that are not set are left out.
///
/// # Errors
///
/// [`JsonError::UnknownType`], and [`JsonError::Fields`] when the bytes are no such message.
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
