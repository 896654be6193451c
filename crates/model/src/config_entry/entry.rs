//! What a kind of config entry has to say about itself.

use crate::invalid::Invalid;
use crate::served::field::Rows;
use crate::tenancy::ServiceReference;

/// A kind of config entry. Its type has the fields `create_index` and `modify_index` as well.
pub(crate) trait Entry {
    /// What a token needs for entries of this kind.
    const RIGHTS: EntryRights;
    /// Whether anything makes use of such entries; else each write reports the kind as not served.
    const IN_EFFECT: bool = true;
    /// What becomes of each field, of this type and of those that no other request has.
    const SERVED: &'static [Rows];

    /// Its name, unique within its kind.
    fn name(&self) -> &str;

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    fn validate(&self) -> Result<(), Invalid>;

    /// Other services that it may send requests to; some may be named more than once.
    fn destinations(&self) -> Vec<ServiceReference<'_>> {
        Vec::new()
    }

    /// Brings it into the form that is stored, once it is valid.
    fn normalise(&mut self) {}
}

/// What a token needs to read or write an entry, as Consul asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryRights {
    /// `service:read` or `service:write` on the entry's name.
    Service,
    /// `intention:read` or `intention:write` on the entry's name.
    Intention,
    /// Nothing for reading, `mesh:write` for writing.
    Mesh,
    /// `service:read` on the entry's name for reading, `mesh:write` for writing.
    Gateway,
    /// `service:read` on the entry's name for reading; nobody may write it.
    Bound,
    /// `mesh:read` for reading, `mesh:write` for writing.
    MeshOnly,
    /// `operator:read` for reading, `operator:write` for writing.
    Operator,
    /// `mesh:read`, or `service:write` on any service, for reading, `mesh:write` for writing.
    JwtProvider,
}
