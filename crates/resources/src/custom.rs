//! Resources that users write themselves, as Envoy's own messages in JSON with their `@type`.
//!
//! Their bytes depend on their content only, however the maps in them are held. What they may do is
//! decided where they are used.

use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Name};

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;

/// Reads a message of one type. `setting` is what an error names.
pub(crate) fn read<M: Message + Name + Default>(
    setting: &str,
    text: &str,
) -> Result<M, GenerateError> {
    let error = |reason: String| GenerateError::Custom {
        setting: setting.to_owned(),
        reason,
    };
    let (type_url, bytes) =
        legate_envoy_json::decode_any(text).map_err(|reason| error(reason.to_string()))?;
    let name = type_url.rsplit('/').next().unwrap_or(&type_url);
    if name != M::full_name() {
        return Err(error(format!(
            "its @type is {type_url:?} and must be {:?}",
            M::type_url()
        )));
    }
    M::decode(&*bytes).map_err(|reason| error(reason.to_string()))
}

/// Refuses a message that has this name anywhere in it.
pub(crate) fn refuse_name(
    setting: &str,
    message: &impl Message,
    name: &str,
) -> Result<(), GenerateError> {
    // However it is spelt in JSON: a text is its bytes here, in messages within messages, too.
    let encoded = message.encode_to_vec();
    let mut texts = encoded.windows(name.len());
    match texts.any(|text| text == name.as_bytes()) {
        false => Ok(()),
        true => Err(GenerateError::Custom {
            setting: setting.to_owned(),
            reason: format!("it names {name:?}, the filter with the access rules: leave that out"),
        }),
    }
}

/// Encodes a resource with maps in it.
pub(crate) fn resource<M: Message + Name>(
    name: &str,
    message: &M,
    children: &[&str],
) -> EncodedResource {
    let any = Any {
        type_url: M::type_url(),
        value: legate_envoy_json::canonical(&M::type_url(), &message.encode_to_vec()),
    };
    encode::resource_of(name, &any, children)
}
