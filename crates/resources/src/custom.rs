//! Resources that users write as Envoy's messages in JSON with `@type`.
//!
//! Their encoding depends only on their content, not on the order of maps. Their users restrict
//! what they may contain.

use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Name};

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;

/// Parses a message of one type. `setting` is named in errors.
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

/// Refuses a message that contains this name anywhere.
pub(crate) fn refuse_name(
    setting: &str,
    message: &impl Message,
    name: &str,
) -> Result<(), GenerateError> {
    // The check is on the encoding, which has every string verbatim, also in nested messages.
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
