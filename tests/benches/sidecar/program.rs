//! A process that is measured, and what the kernel says of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// A program that takes a dataplane's flags.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

/// A running process. Dropping it kills it and what it started.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn start(program: &Path, arguments: &[String], log: PathBuf) -> Running {
        let output = File::create(&log).expect("the log can be written");
        let child = Command::new(program)
            .env_clear()
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file can be shared"))
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .expect("the program can be started");
        Running { child, log }
    }

    fn folder(&self) -> PathBuf {
        let pid = self.child.id().expect("the process runs");
        Path::new("/proc").join(pid.to_string())
    }

    fn threads(&self) -> Vec<PathBuf> {
        let threads = fs::read_dir(self.folder().join("task")).into_iter();
        threads
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect()
    }

    /// Processes that it started.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let text: String = self
            .threads()
            .iter()
            .map(|thread| fs::read_to_string(thread.join("children")).unwrap_or_default())
            .collect();
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.map(Pid::from_raw).collect()
    }

    /// Fails with its log when it has ended.
    pub(crate) fn check(&mut self) {
        if let Some(status) = self.ended() {
            panic!("the program ended with {status}:\n{}", self.log());
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it by SIGTERM.
    pub(crate) async fn stop(mut self) {
        let pid = self.child.id().expect("the process runs").cast_signed();
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("the process runs");
        self.child.wait().await.expect("the process ends");
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory::of(&self.folder())
    }

    /// Largest resident memory so far, in KiB.
    pub(crate) fn peak(&self) -> f64 {
        let status = fs::read_to_string(self.folder().join("status")).expect("the process runs");
        field(&status, "VmHWM:")
    }

    /// What it uses now; `None` when it has ended.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let folder = Path::new("/proc").join(self.child.id()?.to_string());
        let status = fs::read_to_string(folder.join("status")).ok()?;
        // What has ended and was not waited for has no memory.
        status.contains("VmHWM:").then_some(())?;
        Some(Usage {
            resident: field(&status, "VmRSS:"),
            peak: field(&status, "VmHWM:"),
            files: fs::read_dir(folder.join("fd")).ok()?.count(),
        })
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.threads().len()
    }

    /// Processor time of all its threads so far, in milliseconds.
    pub(crate) fn processor_time(&self) -> f64 {
        let nanoseconds = self.threads().into_iter().filter_map(|thread| {
            let text = fs::read_to_string(thread.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        });
        nanoseconds.sum::<f64>() / 1e6
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not every dataplane takes its Envoy along when it is killed.
        if self.child.id().is_some() {
            for child in self.children() {
                let _ = kill(child, Signal::SIGKILL);
            }
        }
    }
}

/// What a process uses, as far as that can be read at any moment of its life.
pub(crate) struct Usage {
    /// Memory in KiB.
    pub(crate) resident: f64,
    /// The largest resident memory so far, in KiB.
    pub(crate) peak: f64,
    /// Open files, sockets included.
    pub(crate) files: usize,
}

/// Memory of a process in KiB.
pub(crate) struct Memory {
    /// All of it that is in memory.
    pub(crate) resident: f64,
    /// What no other process shares.
    pub(crate) private: f64,
    /// What belongs to no file.
    pub(crate) anonymous: f64,
}

impl Memory {
    pub(crate) fn of_pid(pid: Pid) -> Memory {
        Memory::of(&Path::new("/proc").join(pid.to_string()))
    }

    fn of(folder: &Path) -> Memory {
        let text = fs::read_to_string(folder.join("smaps_rollup")).expect("the process runs");
        Memory {
            resident: field(&text, "Rss:"),
            private: field(&text, "Private_Clean:") + field(&text, "Private_Dirty:"),
            anonymous: field(&text, "Anonymous:"),
        }
    }
}

fn field(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}
