//! What all kinds of config entries have in common: some fields, and a trait.

use crate::invalid::Invalid;
use crate::tenancy::ServiceReference;

/// Declares the type of a kind of config entry: the name, its own fields, and the fields of every kind.
macro_rules! entry {
    (
        $(#[$meta:meta])*
        pub struct $entry:ident {
            $(#[$name_meta:meta])*
            pub name: String,
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        $(#[$meta])*
        pub struct $entry {
            $(#[$name_meta])*
            pub name: String,
            /// Namespace; empty means `default`.
            #[serde(skip_serializing_if = "crate::tenancy::TenancyName::is_empty")]
            pub namespace: $crate::tenancy::TenancyName,
            /// Partition; empty means `default`.
            #[serde(skip_serializing_if = "crate::tenancy::TenancyName::is_empty")]
            pub partition: $crate::tenancy::TenancyName,
            $($(#[$field_meta])* pub $field: $type,)*
            /// Free key/value pairs.
            #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
            pub meta: std::collections::BTreeMap<String, String>,
            /// Part of entries that Consul returns. Accepted so that they can be written back, and
            /// ignored.
            #[serde(skip_serializing)]
            pub hash: $crate::tenancy::Ignored,
            /// Index of the write that created it.
            pub create_index: u64,
            /// Index of the last write that changed it.
            pub modify_index: u64,
        }
    };
}
pub(super) use entry;

/// A kind of config entry, whose type is declared with [`entry!`].
pub(crate) trait Entry {
    /// Permissions for entries of this kind.
    const RIGHTS: EntryRights;
    /// Whether entries have any effect. If false, each write reports the kind as not served.
    const IN_EFFECT: bool = true;

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    fn validate(&self) -> Result<(), Invalid>;

    /// Other services that the entry may route requests to; duplicates are possible.
    fn destinations(&self) -> Vec<ServiceReference<'_>> {
        Vec::new()
    }

    /// Normalises a valid entry into the form that is stored.
    fn normalise(&mut self) {}
}

/// The permissions for reading and writing an entry, as in Consul.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryRights {
    /// `service:read` or `service:write` on the entry's name.
    Service,
    /// `intention:read` or `intention:write` on the entry's name.
    Intention,
    /// None for reading, `mesh:write` for writing.
    Mesh,
    /// `service:read` on the entry's name for reading, `mesh:write` for writing.
    Gateway,
    /// `service:read` on the entry's name for reading; clients cannot write it.
    Bound,
    /// `mesh:read` for reading, `mesh:write` for writing.
    MeshOnly,
    /// `operator:read` for reading, `operator:write` for writing.
    Operator,
    /// `mesh:read`, or `service:write` on any service, for reading; `mesh:write` for writing.
    JwtProvider,
}
