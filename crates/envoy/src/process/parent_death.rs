//! Hooks between fork and exec: tie Envoy to the life of its parent or detach it, and keep the file
//! with its bootstrap document open.
//!
//! It has unsafe code. Between fork and exec of a program with threads
//! only async-signal-safe calls are allowed. `prctl`, `getppid`, `setsid`, `fork`, `write`,
//! `sched_yield`, `_exit` and `fcntl` are system calls without locks or allocation, and the closures
//! do nothing else. Errors are created from their numbers, which does not allocate either.
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

/// Ties the future child to this process: it gets `signal` when this process ends, for whatever
/// reason. It inherits `inherited`, whose descriptor must stay open until the child has been
/// spawned.
///
/// The kernel sends the signal when the *thread* that spawned the child ends, so that thread has to
/// live as long as the process: spawn from the main thread, never from a pool that shrinks. The
/// kernel drops the setting if the program has file capabilities or changes its user.
pub fn tie(command: &mut Command, signal: Signal, inherited: Option<&File>) {
    let parent = getpid();
    let inherited = inherited.map(File::as_raw_fd);
    before_exec(command, move || {
        set_pdeathsig(signal)?;
        // If the parent died before the call, no signal would ever come.
        if getppid() != parent {
            return Err(nix::errno::Errno::ECHILD.into());
        }
        keep_open(inherited)
    });
}

/// Makes the future child a grandchild with its own session, so that the end of this program or of
/// its terminal does not reach it. It inherits like in [`tie`], and its process id is written to
/// `pid_to`, which must stay open until the child has been spawned.
///
/// A grandchild is needed because Envoy itself requests a signal for the end of its parent. Its
/// parent must not be this program, so it waits until the intermediate process has exited.
pub(super) fn detach(command: &mut Command, inherited: Option<&File>, pid_to: BorrowedFd<'_>) {
    let (inherited, pid_to) = (inherited.map(File::as_raw_fd), pid_to.as_raw_fd());
    before_exec(command, move || {
        setsid()?;
        let between = getpid();
        // SAFETY: both sides only make async-signal-safe calls until they exec or exit.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => {
                // SAFETY: the caller keeps the pipe open, and detects if nothing was written.
                // `_exit` runs no exit handlers of the forked program.
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
        // SAFETY: the parent keeps the file open until the spawn has returned.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    Ok(())
}

fn before_exec(
    command: &mut Command,
    hook: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the hooks only make async-signal-safe system calls, see the module's documentation.
    unsafe {
        command.pre_exec(hook);
    }
}
