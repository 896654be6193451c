//! The trait that every kind of config entry implements.

use crate::invalid::Invalid;
use crate::served::field::Rows;
use crate::tenancy::ServiceReference;

/// A kind of config entry. The implementing type also has the fields `create_index` and
/// `modify_index`.
pub(crate) trait Entry {
    /// Permissions for entries of this kind.
    const RIGHTS: EntryRights;
    /// Whether entries have any effect. If false, each write reports the kind as not served.
    const IN_EFFECT: bool = true;
    /// How each field is served, for this type and for types that are used nowhere else.
    const SERVED: &'static [Rows];

    /// The entry's name, unique within its kind.
    fn name(&self) -> &str;

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
