//! Loads the roots for verifying servers: from a file, a directory, or the system.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use super::error::TlsError;
use super::pem::Source;

/// The maximum depth of CA directories. Real trees have one or two levels.
const MAX_DEPTH: usize = 16;

/// Explicitly configured roots, with their certificates verbatim.
#[derive(Debug)]
pub(super) struct NamedRoots {
    pub(super) store: RootCertStore,
    pub(super) certificates: HashSet<CertificateDer<'static>>,
}

impl NamedRoots {
    fn add(&mut self, given: Vec<CertificateDer<'static>>, origin: &str) -> Result<(), TlsError> {
        self.certificates.extend(given.iter().cloned());
        add(&mut self.store, given, origin)
    }
}

/// Roots from a PEM file or from all PEM files of a directory.
pub(super) fn from_path(path: &Path) -> Result<NamedRoots, TlsError> {
    let mut roots = NamedRoots {
        store: RootCertStore::empty(),
        certificates: HashSet::new(),
    };
    if is_directory(path)? {
        walk(path, MAX_DEPTH, &mut roots)?;
    } else {
        let source = Source::file(path)?;
        roots.add(source.certificates()?, &source.origin)?;
    }
    if roots.store.is_empty() {
        let origin = path.display().to_string();
        return Err(TlsError::NoCertificate { origin });
    }
    Ok(roots)
}

/// Roots from a PEM text.
pub(super) fn from_text(source: &Source) -> Result<NamedRoots, TlsError> {
    let mut roots = NamedRoots {
        store: RootCertStore::empty(),
        certificates: HashSet::new(),
    };
    roots.add(source.certificates()?, &source.origin)?;
    Ok(roots)
}

/// Roots of the system's trust store; unusable ones are skipped.
pub(super) fn system() -> Result<RootCertStore, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if !roots.is_empty() {
        return Ok(roots);
    }
    let errors: Vec<String> = loaded.errors.iter().map(ToString::to_string).collect();
    let reason = if errors.is_empty() {
        "nothing found in the usual places".to_owned()
    } else {
        errors.join("; ")
    };
    Err(TlsError::NoSystemRoots { reason })
}

pub(super) fn add(
    roots: &mut RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
    origin: &str,
) -> Result<(), TlsError> {
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|error| TlsError::BadCertificate {
                origin: origin.to_owned(),
                reason: error.to_string(),
            })?;
    }
    Ok(())
}

fn walk(directory: &Path, depth: usize, roots: &mut NamedRoots) -> Result<(), TlsError> {
    let entries = fs::read_dir(directory).map_err(|error| cannot_read(directory, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| cannot_read(directory, error))?;
        // Kubernetes stores the versions of a mounted secret in such entries and links to them.
        if is_hidden_version(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        let link = entry
            .file_type()
            .map_err(|error| cannot_read(&path, error))?
            .is_symlink();
        if !is_directory(&path)? {
            add_file(&path, roots)?;
        } else if !link {
            // A linked directory could cause a loop, and its files would be read twice.
            let deeper = depth.checked_sub(1).ok_or_else(|| {
                let error = std::io::Error::other(format!("more than {MAX_DEPTH} levels deep"));
                cannot_read(&path, error)
            })?;
            walk(&path, deeper, roots)?;
        }
    }
    Ok(())
}

/// Adds the certificates of one file. Mounted secrets can contain keys as well, which are ignored.
fn add_file(path: &Path, roots: &mut NamedRoots) -> Result<(), TlsError> {
    let source = Source::file(path)?;
    let is_pem = source
        .pem
        .windows(PEM_BEGIN.len())
        .any(|window| window == PEM_BEGIN);
    match source.certificates() {
        Ok(certificates) => roots.add(certificates, &source.origin),
        Err(TlsError::NoCertificate { .. }) if is_pem => Ok(()),
        Err(error) => Err(error),
    }
}

const PEM_BEGIN: &[u8] = b"-----BEGIN ";

fn is_hidden_version(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"..")
}

/// Whether a path is a directory; follows links.
fn is_directory(path: &Path) -> Result<bool, TlsError> {
    let metadata = fs::metadata(path).map_err(|error| cannot_read(path, error))?;
    Ok(metadata.is_dir())
}

fn cannot_read(path: &Path, source: std::io::Error) -> TlsError {
    let path = path.to_owned();
    TlsError::Read { path, source }
}
