//! Identifies one part of a proxy for the matching of extensions.

use legate_model::extension::Direction;

use crate::names::{LOCAL_APP, PUBLIC_LISTENER};
use crate::resource_type::Type;

/// One part of a proxy.
#[derive(Clone, Copy)]
pub(crate) struct PartId<'a> {
    pub(crate) kind: Type,
    /// The part's name; a resource that a user wrote may have another one.
    pub(crate) name: &'a str,
    /// The upstream that the part is for, if any.
    pub(crate) upstream: Option<&'a str>,
}

impl PartId<'_> {
    /// The direction of the part. As in Consul, only the application's cluster, the public listener
    /// and its routes are inbound.
    pub(super) fn direction(&self) -> Direction {
        let own = match self.kind {
            Type::Cluster | Type::Endpoints => self.name == LOCAL_APP,
            Type::Routes => self.name == PUBLIC_LISTENER,
            Type::Listener => {
                let (name, _) = self.name.split_once(':').unwrap_or((self.name, ""));
                name == PUBLIC_LISTENER
            }
            Type::Secret => false,
        };
        match own && self.upstream.is_none() {
            true => Direction::Inbound,
            false => Direction::Outbound,
        }
    }

    pub(super) fn is_listener(&self, direction: Direction) -> bool {
        self.kind == Type::Listener && self.direction() == direction
    }
}
