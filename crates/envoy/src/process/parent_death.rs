//! What happens between fork and exec: Envoy is tied to the life of its parent or made independent
//! of it, and the file that holds its bootstrap document stays open.
//!
//! This is the one place of the workspace with unsafe code. Between fork and exec of a program
//! with threads only async-signal-safe calls are allowed; `prctl`, `getppid`, `setsid`, `fork`,
//! `write`, `sched_yield`, `_exit` and `fcntl` are system calls without locks or allocation, and the
//! closures do nothing else. An error is made from its number, which allocates nothing either.
#![expect(
    unsafe_code,
    reason = "a hook between fork and exec has no safe interface"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, fork, getpid, getppid, setsid, write};
use tokio::process::Command;

/// Ties the future child to this process: it gets `signal` when this process ends, however that
/// happens. It inherits `inherited`, whose number must stay open until the child has been spawned.
///
/// The kernel sends the signal when the *thread* that spawned ends, so that thread has to live as
/// long as the process: spawn from the main thread, never from a pool that shrinks. It forgets
/// the request when the program has file capabilities or changes its user.
pub fn tie(command: &mut Command, signal: Signal, inherited: Option<&File>) {
    let parent = getpid();
    let inherited = inherited.map(File::as_raw_fd);
    before_exec(command, move || {
        set_pdeathsig(signal)?;
        // The parent may have died before the request was made; then no signal would ever come.
        if getppid() != parent {
            return Err(nix::errno::Errno::ECHILD.into());
        }
        keep_open(inherited)
    });
}

/// Makes the future child a grandchild with a session of its own, so that nothing which ends this
/// program or its terminal reaches it, lets it inherit like [`tie`], and writes its process id to
/// `pid_to`, which must stay open until the child has been spawned.
///
/// A grandchild is needed because Envoy asks the kernel by itself for a signal when its parent
/// ends. That must not be this program, so it waits until the process in between is gone.
pub(super) fn detach(command: &mut Command, inherited: Option<&File>, pid_to: BorrowedFd<'_>) {
    let (inherited, pid_to) = (inherited.map(File::as_raw_fd), pid_to.as_raw_fd());
    before_exec(command, move || {
        setsid()?;
        let between = getpid();
        // SAFETY: both sides only make async-signal-safe calls until they exec or exit.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => {
                // SAFETY: the caller holds the pipe open, and finds out when nothing was
                // written. Exiting this way runs no handlers of the program that was forked.
                unsafe {
                    let pid = child.as_raw().to_ne_bytes();
                    let _ = write(BorrowedFd::borrow_raw(pid_to), &pid);
                    nix::libc::_exit(0)
                }
            }
            ForkResult::Child => {
                while getppid() == between {
                    std::thread::yield_now();
                }
                keep_open(inherited)
            }
        }
    });
}

fn keep_open(inherited: Option<RawFd>) -> io::Result<()> {
    if let Some(number) = inherited {
        // SAFETY: the parent holds the file open until the spawn has returned.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    Ok(())
}

fn before_exec(
    command: &mut Command,
    hook: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the hooks make async-signal-safe system calls only, see the module's documentation.
    unsafe {
        command.pre_exec(hook);
    }
}
