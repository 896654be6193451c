//! The trait of all specs, and the macro that declares their types.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The `spec` of one kind.
pub(crate) trait Spec: DeserializeOwned + Serialize {
    /// The reason why this cannot be written, if a field has no equivalent in a config entry: the
    /// field, and what to do instead.
    fn not_served(&self) -> Option<String> {
        None
    }
}

/// Declares the types of a spec. Every field is optional and has one name in the resource and one in
/// the config entry. If these are not the same words in camel and Pascal case, both are given:
/// `tls("tls" => "TLS"): MeshTls`.
macro_rules! spec {
    ($(
        $(#[$meta:meta])*
        $name:ident {
            $($(#[$field_meta:meta])* $field:ident $(($read:tt => $written:tt))?: $ty:ty,)*
        }
    )*) => {$(
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        $(#[$meta])*
        #[serde(
            rename_all(serialize = "PascalCase", deserialize = "camelCase"),
            deny_unknown_fields
        )]
        #[schemars(inline)]
        pub struct $name {
            $(
                $(#[$field_meta])*
                $(#[serde(rename(serialize = $written, deserialize = $read))])?
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$ty>,
            )*
        }
    )*};
}
pub(super) use spec;
