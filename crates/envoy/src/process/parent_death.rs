//! What happens between fork and exec: Envoy is tied to the life of its parent, and the file that
//! holds its bootstrap document stays open.
//!
//! This is the one place of the workspace with unsafe code. Between fork and exec of a program
//! with threads only async-signal-safe calls are allowed; `prctl`, `getppid` and `fcntl` are
//! system calls without locks or allocation, and the closure does nothing else. An error is made
//! from its number, which allocates nothing either.
#![expect(
    unsafe_code,
    reason = "a hook between fork and exec has no safe interface"
)]

use std::os::fd::BorrowedFd;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};
use tokio::process::Command;

/// Ties the future child to this process and lets it inherit `inherited`, whose number must stay
/// open until the child has been spawned.
///
/// The kernel sends the signal when the *thread* that spawned ends, so that thread has to live as
/// long as the process: spawn from the main thread, never from a pool that shrinks. It forgets
/// the request when the program has file capabilities or changes its user.
pub(super) fn tie(command: &mut Command, inherited: Option<BorrowedFd<'_>>) {
    let parent = getpid();
    let inherited = inherited.map(|file| std::os::fd::AsRawFd::as_raw_fd(&file));
    let hook = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the request was made; then no signal would ever come.
        if getppid() != parent {
            return Err(nix::errno::Errno::ECHILD.into());
        }
        if let Some(number) = inherited {
            // SAFETY: the parent holds the file open until the spawn has returned.
            let file = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: the hook makes async-signal-safe system calls only, see the module's documentation.
    unsafe {
        command.pre_exec(hook);
    }
}
