//! The heap of the C library: keeps it small in a process whose load comes in bursts.
//!
//! By default the C library keeps what a burst of connections needed, because small blocks that are still in use lie
//! above what was freed. Nothing here allocates, and with another C library nothing here has an effect.
#![cfg_attr(
    target_env = "gnu",
    expect(
        unsafe_code,
        reason = "the settings of the heap have no safe interface"
    )
)]

#[cfg(target_env = "gnu")]
use nix::libc;

/// Blocks of this size are mappings of their own, which are given back when they are freed. In bytes.
const MAPPED_FROM: i32 = 32 * 1024;

/// Limits the number of arenas, and gives large blocks back at once. For the start of a process, before other threads
/// allocate.
pub fn configure(arenas: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: these are plain settings of numbers; they are valid at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = (arenas, MAPPED_FROM);
}

/// Gives free memory back to the system. Other threads that allocate wait for it, up to a fraction of a second after a
/// large burst.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
