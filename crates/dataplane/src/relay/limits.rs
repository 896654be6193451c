//! Limits on the requests of streams on Envoy's port. Any process of the pod can open a stream; one
//! that exceeds the limits is refused without effect on others.
//!
//! The limits suffice for an Envoy of a very large mesh: 100,000 resources with names of 160 bytes.
//! The total of all streams is bounded because their number is.

use tonic::Status;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Maximum number of open streams. A hot restart needs two, and a broken stream may go unnoticed for
/// a while.
pub const MAX_STREAMS: usize = 8;

/// Largest node description in a request, 1 MiB. Envoy's own has about 55 KiB, because it lists its
/// extensions.
pub(super) const MAX_NODE: usize = MIB;

/// Largest error message of a NACK, 16 KiB. Envoy truncates its own to 4 KiB.
pub(super) const MAX_ERROR: usize = 16 * KIB;

/// Limits of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of resource types (default 16). Envoy uses about a dozen.
    pub types: usize,
    /// Number of subscribed names of all types (default 100,000). The same limit applies to
    /// resources held from an earlier stream.
    pub names: usize,
    /// Total bytes of those names (default 16 MiB), including the versions of resources that are
    /// held.
    pub bytes: usize,
    /// Bytes of one name, version, nonce or type URL (default 4 KiB).
    pub name: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            types: 16,
            names: 100_000,
            bytes: 16 * MIB,
            name: 4 * KIB,
        }
    }
}

impl Limits {
    /// Number of types in the cache: those of all open streams, and as many again for streams that
    /// have ended.
    pub(super) fn all_types(&self) -> usize {
        2 * MAX_STREAMS * self.types
    }

    /// Bytes of the largest request: subscriptions, held resources, node, and encoding.
    pub(super) fn request(&self) -> usize {
        2 * self.bytes + 4 * MIB
    }

    /// Checks the number of names and their bytes.
    pub(super) fn check(&self, usage: Usage) -> Result<(), Status> {
        let (names, bytes) = (self.names, self.bytes);
        if usage.names > names {
            let text = format!("an xDS stream may name at most {names} resources");
            return Err(Status::resource_exhausted(text));
        }
        if usage.bytes > bytes {
            return Err(Status::resource_exhausted(format!(
                "the resource names of an xDS stream may have at most {bytes} bytes in total"
            )));
        }
        Ok(())
    }

    /// The error for a stream that requests too many types.
    pub(super) fn too_many_types(&self) -> Status {
        let types = self.types;
        Status::resource_exhausted(format!(
            "an xDS stream may request at most {types} resource types"
        ))
    }
}

/// A number of names, and their total bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) names: usize,
    pub(super) bytes: usize,
}

impl Usage {
    pub(super) fn add(&mut self, bytes: usize) {
        self.names += 1;
        self.bytes += bytes;
    }

    pub(super) fn remove(&mut self, bytes: usize) {
        self.names -= 1;
        self.bytes -= bytes;
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.names += other.names;
        self.bytes += other.bytes;
    }
}
