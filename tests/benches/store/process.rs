//! A control plane process that is measured, killed and restarted.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

/// A program with its arguments and its process, which is killed on drop.
pub(crate) struct Process {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Starts a program; its output is written to `log`.
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

    /// Restarts the program after its end.
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

    /// Sends SIGKILL and waits for the end.
    pub(crate) async fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().await.expect("it can be killed");
    }

    /// Fails with the log if the process has ended.
    pub(crate) fn check(&mut self) {
        let child = self.child.as_mut().expect("it was started");
        if let Some(status) = child.try_wait().expect("it can be asked for") {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            panic!("{} ended with {status}:\n{log}", self.program.display());
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> i32 {
        let id = self.child.as_ref().and_then(Child::id);
        id.expect("it runs").try_into().expect("a process number")
    }

    /// Resident memory in KiB.
    pub(crate) fn resident(&self) -> f64 {
        let pid = self.id().to_string();
        let status = Path::new("/proc").join(pid).join("status");
        let status = fs::read_to_string(status).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.expect("the kernel tells a process's memory")
    }
}

/// The disk usage of all files in a folder, in KiB.
pub(crate) fn on_disk(folder: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let mut blocks = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => folders.push(entry.path()),
                Ok(data) => blocks += data.blocks(),
                // The file was removed concurrently.
                Err(_) => {}
            }
        }
    }
    // A block of `stat` is 512 bytes on every file system.
    blocks as f64 / 2.0
}
