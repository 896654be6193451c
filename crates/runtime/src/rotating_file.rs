//! An append-only file that is rotated by size or age, for logs without external rotation. The
//! current file always has the same name. Names of rotated files contain the time of rotation in
//! nanoseconds: `audit-1764000000000000000.json`.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When a file is rotated, and how many rotated files are retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Size limit in bytes; 0 means none.
    pub bytes: u64,
    /// Age limit; zero means none.
    pub age: Duration,
    /// The number of rotated files that are retained; `None` means all.
    pub keep: Option<usize>,
}

impl Default for Rotation {
    /// Consul's defaults: rotate daily, and retain all files.
    fn default() -> Self {
        Rotation {
            bytes: 0,
            age: Duration::from_secs(24 * 3600),
            keep: None,
        }
    }
}

/// The file. Data of one write call is never split between two files.
#[derive(Debug)]
pub struct RotatingFile {
    path: PathBuf,
    mode: u32,
    rotation: Rotation,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    file: File,
    begun: SystemTime,
    bytes: u64,
}

impl RotatingFile {
    /// Opens the file, or creates it with these permissions.
    ///
    /// # Errors
    ///
    /// When it cannot be opened for writing.
    pub fn open(path: PathBuf, mode: u32, rotation: Rotation) -> io::Result<Self> {
        let mut file = RotatingFile {
            path,
            mode,
            rotation,
            current: None,
        };
        file.current()?;
        Ok(file)
    }

    fn current(&mut self) -> io::Result<&mut Current> {
        if self.current.is_none() {
            let mut options = OpenOptions::new();
            options.append(true).create(true).mode(self.mode);
            let file = options.open(&self.path)?;
            let known = file.metadata()?;
            let begun = known.created().unwrap_or_else(|_| SystemTime::now());
            self.current = Some(Current {
                file,
                begun,
                bytes: known.len(),
            });
        }
        self.current
            .as_mut()
            .ok_or_else(|| io::Error::other("no file is open"))
    }

    fn is_due(&self, now: SystemTime) -> bool {
        let Some(current) = &self.current else {
            return false;
        };
        let large = self.rotation.bytes > 0 && current.bytes >= self.rotation.bytes;
        let age = now.duration_since(current.begun).unwrap_or_default();
        let old = !self.rotation.age.is_zero() && age >= self.rotation.age;
        current.bytes > 0 && (large || old)
    }

    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        let nanoseconds = now
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        fs::rename(&self.path, self.archive(&nanoseconds.to_string()))?;
        // If the following fails, no file is open, and the next write tries again.
        self.current = None;
        self.prune()?;
        // Some file systems associate the creation time with the name.
        self.current()?.begun = now;
        Ok(())
    }

    /// The name of a file that was rotated at this time.
    fn archive(&self, time: &str) -> PathBuf {
        let (stem, ending) = self.parts();
        let mut name = stem;
        name.push("-");
        name.push(time);
        name.push(".");
        name.push(ending);
        self.path.with_file_name(name)
    }

    fn parts(&self) -> (OsString, OsString) {
        let stem = self.path.file_stem().unwrap_or_default().to_owned();
        let ending = self.path.extension().map(ToOwned::to_owned);
        (stem, ending.unwrap_or_else(|| "log".into()))
    }

    fn prune(&self) -> io::Result<()> {
        let Some(keep) = self.rotation.keep else {
            return Ok(());
        };
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (stem, ending) = self.parts();
        let (stem, ending) = (stem.to_string_lossy(), ending.to_string_lossy());
        let mut old = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let time = name
                .strip_prefix(&*stem)
                .and_then(|rest| rest.strip_prefix('-'))
                .and_then(|rest| rest.strip_suffix(&*ending)?.strip_suffix('.'));
            if let Some(time) = time.and_then(|time| time.parse::<u128>().ok()) {
                old.push((time, path));
            }
        }
        old.sort();
        let surplus = old.len().saturating_sub(keep);
        for (_, path) in old.into_iter().take(surplus) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

impl Write for RotatingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let now = SystemTime::now();
        self.current()?;
        if self.is_due(now) {
            self.rotate(now)?;
        }
        let current = self.current()?;
        current.file.write_all(bytes)?;
        current.bytes += bytes.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.current()?.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_rotated_and_old_ones_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.json");
        let rotation = Rotation {
            bytes: 8,
            age: Duration::ZERO,
            keep: Some(2),
        };
        let mut file = RotatingFile::open(path.clone(), 0o600, rotation).unwrap();
        for number in 0..5 {
            file.write_all(format!("line {number}\n").as_bytes())
                .unwrap();
            file.write_all(b"more\n").unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 4\nmore\n");
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|other| *other != path)
            .collect();
        names.sort();
        let texts: Vec<_> = names
            .iter()
            .map(|name| fs::read_to_string(name).unwrap())
            .collect();
        assert_eq!(texts, ["line 2\nmore\n", "line 3\nmore\n"]);
        // Appends to the existing file.
        drop(file);
        let mut file = RotatingFile::open(path.clone(), 0o600, Rotation::default()).unwrap();
        file.write_all(b"again\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 4\nmore\nagain\n");
    }
}
