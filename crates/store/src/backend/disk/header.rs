//! The only byte of redb's header without a checksum: it selects the newer of two versions. A bit
//! flip would select the older version, and silently lose a commit.
//!
//! If the other version is newer, there was a crash at the end of a commit, or such a bit flip. In
//! both cases the newer version is used, provided that it is complete. The layout is that of redb's
//! file format 3 (`docs/design.md` there).

use redb::StorageBackend;

/// The offset of the byte.
pub(super) const FLAGS: u64 = 9;
const OTHER_COUNTS: u8 = 1;
/// The offsets of the transaction ids of the two versions.
const TRANSACTIONS: [u64; 2] = [64 + 104, 192 + 104];

/// The byte that selects the other version, if that is newer.
pub(super) fn flags_for_newer(file: &impl StorageBackend) -> Option<u8> {
    let mut flags = [0];
    file.read(FLAGS, &mut flags).ok()?;
    let mut numbers = [0; 2];
    for (number, at) in numbers.iter_mut().zip(TRANSACTIONS) {
        let mut bytes = [0; 8];
        file.read(at, &mut bytes).ok()?;
        *number = u64::from_le_bytes(bytes);
    }
    let [counting, other] = match flags[0] & OTHER_COUNTS {
        0 => numbers,
        _ => [numbers[1], numbers[0]],
    };
    (other > counting).then_some(flags[0] ^ OTHER_COUNTS)
}
