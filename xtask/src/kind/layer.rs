//! A layer of an image: a tar archive of files relative to the root.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

/// The extended attribute with a file's capabilities.
const CAPABILITIES: &str = "security.capability";

/// A layer that is being written.
pub(super) struct Layer {
    name: String,
    tar: Builder<File>,
    folders: BTreeSet<String>,
}

impl Layer {
    /// Starts the file `NAME.tar` in the folder.
    pub(super) fn create(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let name = format!("{name}.tar");
        let path = folder.join(&name);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        Ok(Self {
            name,
            tar: Builder::new(file),
            folders: BTreeSet::new(),
        })
    }

    /// Adds a local file at an absolute path, with its permissions and capabilities. Links are
    /// followed.
    pub(super) fn file(&mut self, from: &Path, place: &str) -> anyhow::Result<()> {
        self.above(place)?;
        let mut file = File::open(from).with_context(|| from.display().to_string())?;
        let data = file.metadata()?;
        if let Some(capabilities) = capabilities(&file)? {
            let name = format!("SCHILY.xattr.{CAPABILITIES}");
            self.tar.append_pax_extensions([(&*name, &*capabilities)])?;
        }
        let mode = data.permissions().mode() & 0o7777;
        let mut header = header(EntryType::Regular, mode, data.len());
        self.tar
            .append_data(&mut header, relative(place), &mut file)?;
        Ok(())
    }

    /// Adds everything below a local folder.
    pub(super) fn folder(&mut self, root: &Path) -> anyhow::Result<()> {
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries: Result<Vec<_>, _> = fs::read_dir(&folder)?.collect();
            let mut paths: Vec<_> = entries?.iter().map(fs::DirEntry::path).collect();
            paths.sort();
            for path in paths {
                let place = path.strip_prefix(root)?.display().to_string();
                if path.is_symlink() {
                    self.above(&place)?;
                    let mut header = header(EntryType::Symlink, 0o777, 0);
                    let target = fs::read_link(&path)?;
                    self.tar.append_link(&mut header, &place, target)?;
                } else if path.is_dir() {
                    folders.push(path);
                } else {
                    self.file(&path, &place)?;
                }
            }
        }
        Ok(())
    }

    /// Adds an empty folder.
    pub(super) fn empty_folder(&mut self, place: &str, mode: u32) -> anyhow::Result<()> {
        self.above(place)?;
        self.folders.insert(relative(place).to_owned());
        let mut header = header(EntryType::Directory, mode, 0);
        self.tar
            .append_data(&mut header, relative(place), std::io::empty())?;
        Ok(())
    }

    /// Completes the file and returns its name.
    pub(super) fn finish(mut self) -> anyhow::Result<String> {
        self.tar.finish()?;
        Ok(self.name)
    }

    /// Adds the parent folders of a path, once each.
    fn above(&mut self, place: &str) -> anyhow::Result<()> {
        let place = relative(place);
        for (end, _) in place.match_indices('/') {
            let folder = &place[..end];
            if !self.folders.contains(folder) {
                self.empty_folder(folder, 0o755)?;
            }
        }
        Ok(())
    }
}

/// Everything is owned by root and has no timestamp, so that layers are reproducible.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn relative(place: &str) -> &str {
    place.trim_start_matches('/')
}

/// The capabilities of a program's file, in the kernel's format.
fn capabilities(file: &File) -> anyhow::Result<Option<Vec<u8>>> {
    let mut value = [0; 64];
    match rustix::fs::fgetxattr(file, CAPABILITIES, &mut value[..]) {
        Ok(length) => Ok(Some(value[..length].to_vec())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
