//! Measured programs: their processes and resource usage from the kernel.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// A measured program.
#[derive(Debug, Clone)]
pub struct Program {
    /// The name in tables.
    pub name: &'static str,
    /// The path of the binary.
    pub path: PathBuf,
}

impl Program {
    /// A foreign program: the path in `variable`, or the first of its name on `PATH`.
    ///
    /// # Panics
    ///
    /// If the variable does not refer to a file.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the environment selects the programs of benchmarks"
    )]
    pub fn find(name: &'static str, variable: &str) -> Option<Self> {
        let named = std::env::var_os(variable).filter(|path| !path.is_empty());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = || {
            std::env::split_paths(&path)
                .map(|folder| folder.join(name))
                .find(|file| file.is_file())
        };
        let path = match named.map(PathBuf::from) {
            Some(path) => {
                let shown = path.display();
                assert!(path.is_file(), "{variable} is {shown}, which is not a file");
                path
            }
            None => on_path()?,
        };
        Some(Self { name, path })
    }
}

/// A running process. Dropping it kills it and its children.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts a program without environment; its output is written to `log`.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[must_use]
    pub fn start(program: &Path, arguments: &[String], log: PathBuf) -> Running {
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

    /// Its child processes.
    #[must_use]
    pub fn children(&self) -> Vec<Pid> {
        let text: String = self
            .threads()
            .iter()
            .map(|thread| fs::read_to_string(thread.join("children")).unwrap_or_default())
            .collect();
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.map(Pid::from_raw).collect()
    }

    /// Checks that it is still running.
    ///
    /// # Panics
    ///
    /// If it has exited, with its log.
    pub fn check(&mut self) {
        if let Some(status) = self.ended() {
            panic!("the program ended with {status}:\n{}", self.log());
        }
    }

    /// The exit status, if it has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Its output so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops it with SIGTERM.
    ///
    /// # Panics
    ///
    /// If it has exited already.
    pub async fn stop(mut self) {
        let pid = self.child.id().expect("the process runs").cast_signed();
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("the process runs");
        self.child.wait().await.expect("the process ends");
    }

    /// Its current memory.
    ///
    /// # Panics
    ///
    /// If it has exited, like the functions below.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory::of(&self.folder())
    }

    /// Peak resident memory in KiB.
    #[must_use]
    pub fn peak(&self) -> f64 {
        let status = fs::read_to_string(self.folder().join("status")).expect("the process runs");
        field(&status, "VmHWM:")
    }

    /// Its current usage; `None` if it has exited.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        let folder = Path::new("/proc").join(self.child.id()?.to_string());
        let status = fs::read_to_string(folder.join("status")).ok()?;
        // A zombie process has no memory.
        status.contains("VmHWM:").then_some(())?;
        Some(Usage {
            resident: field(&status, "VmRSS:"),
            peak: field(&status, "VmHWM:"),
            files: fs::read_dir(folder.join("fd")).ok()?.count(),
        })
    }

    /// The current number of threads.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads().len()
    }

    /// CPU time of all its threads so far, including ended ones, in milliseconds.
    #[must_use]
    pub fn processor_time(&self) -> f64 {
        let pid = self.child.id().expect("the process runs").cast_signed();
        let clock = clock_getcpuclockid(Pid::from_raw(pid)).expect("the process has a clock");
        let time = clock.now().expect("the process runs");
        Duration::from(time).as_secs_f64() * 1e3
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not every dataplane stops its Envoy when it is killed.
        if self.child.id().is_some() {
            for child in self.children() {
                let _ = kill(child, Signal::SIGKILL);
            }
        }
    }
}

/// The resource usage of a process, as readable at any time.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Memory in KiB.
    pub resident: f64,
    /// Peak resident memory in KiB.
    pub peak: f64,
    /// Number of open files, including sockets.
    pub files: usize,
}

/// Memory of a process in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Resident memory.
    pub resident: f64,
    /// Memory not shared with other processes.
    pub private: f64,
    /// Memory not backed by a file.
    pub anonymous: f64,
}

impl Memory {
    /// The memory of a running process.
    ///
    /// # Panics
    ///
    /// If it has exited.
    #[must_use]
    pub fn of_pid(pid: Pid) -> Memory {
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
