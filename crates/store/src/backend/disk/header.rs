//! The one byte of redb's header that no checksum covers: it says which of the two newest versions
//! counts. Flipped, the version before would be taken for the newest, and a commit would be lost
//! without a word.
//!
//! A file whose other version is newer comes from a crash at the end of a commit, or from such a
//! flip. In both cases the newer version is the one to go on with, provided that all of it is
//! there. The layout is that of redb's file format 3 (`docs/design.md` there).

use redb::StorageBackend;

/// Where the byte is.
pub(super) const FLAGS: u64 = 9;
const OTHER_COUNTS: u8 = 1;
/// The number of the transaction that wrote each of the two versions.
const TRANSACTIONS: [u64; 2] = [64 + 104, 192 + 104];

/// The byte that makes the other version count, when that is newer.
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
