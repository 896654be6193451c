//! A process of a control plane that is measured, killed and started again.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

/// A program with its arguments, and the process that runs it. Dropping it kills the process.
pub(crate) struct Process {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Starts a program; what it writes goes to `log`.
    pub(crate) fn start(program: PathBuf, arguments: Vec<String>, log: PathBuf) -> Self {
        let mut process = Self {
            program,
            arguments,
            log,
            child: None,
        };
        process.start_again();
        process
    }

    /// The same, after its end.
    pub(crate) fn start_again(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File = log.expect("the log can be written");
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("cannot start {}: {error}", self.program.display());
        });
        self.child = Some(child);
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().await.expect("it can be killed");
    }

    /// Fails with its log when it has ended.
    pub(crate) fn check(&mut self) {
        let child = self.child.as_mut().expect("it was started");
        if let Some(status) = child.try_wait().expect("it can be asked for") {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            panic!("{} ended with {status}:\n{log}", self.program.display());
        }
    }

    /// Resident memory in KiB.
    pub(crate) fn resident(&self) -> f64 {
        let pid = self.child.as_ref().and_then(Child::id);
        let pid = pid.expect("it runs").to_string();
        let status = Path::new("/proc").join(pid).join("status");
        let status = fs::read_to_string(status).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.expect("the kernel tells a process's memory")
    }
}

/// What the files below a folder take on the disk, in KiB.
pub(crate) fn on_disk(folder: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let mut blocks = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => folders.push(entry.path()),
                Ok(data) => blocks += data.blocks(),
                // It was removed in this moment.
                Err(_) => {}
            }
        }
    }
    // A block of `stat` is half a KiB, whatever the file system has.
    blocks as f64 / 2.0
}
