//! How much the streams on Envoy's port may ask for. Any process of the pod can open one, and one
//! that asks for too much is refused alone.
//!
//! The limits leave room for an Envoy of a very large mesh: at 160 bytes a name, 100,000 resources.
//! What all streams ask for together is bounded because their number is.

use tonic::Status;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Streams that may be open. A hot restart needs two, and a stream that broke may take a while to be
/// noticed.
pub const MAX_STREAMS: usize = 8;

/// Largest description of an Envoy in a request, 1 MiB. Envoy's own has about 55 KiB: it lists its
/// extensions.
pub(super) const MAX_NODE: usize = MIB;

/// Largest reason of a rejection, 16 KiB. Envoy cuts its own at 4 KiB.
pub(super) const MAX_ERROR: usize = 16 * KIB;

/// What one stream may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Resource types (default 16). Envoy knows about a dozen.
    pub types: usize,
    /// Resources by name, all types together (default 100,000). As many may be named as held from
    /// an earlier stream.
    pub names: usize,
    /// Bytes of those names (default 16 MiB). With them count the versions of what is held.
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
    /// Resource types that all streams can ask for, and as many again that are still held for
    /// streams that have ended.
    pub(super) fn all_types(&self) -> usize {
        2 * MAX_STREAMS * self.types
    }

    /// Bytes of the largest request: what is asked for, what is held, the node, and the encoding.
    pub(super) fn request(&self) -> usize {
        2 * self.bytes + 4 * MIB
    }

    /// Refuses so many names of so many bytes.
    pub(super) fn check(&self, usage: Usage) -> Result<(), Status> {
        let (names, bytes) = (self.names, self.bytes);
        if usage.names > names {
            let text = format!("an xDS stream may name {names} resources, this one names more");
            return Err(Status::resource_exhausted(text));
        }
        if usage.bytes > bytes {
            return Err(Status::resource_exhausted(format!(
                "the resource names of an xDS stream may have {bytes} bytes, this one's have more"
            )));
        }
        Ok(())
    }

    /// What refuses a stream that asks for one more type.
    pub(super) fn too_many_types(&self) -> Status {
        let types = self.types;
        Status::resource_exhausted(format!(
            "an xDS stream may ask for {types} types of resources, this one asks for more"
        ))
    }
}

/// Names, and their bytes.
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
