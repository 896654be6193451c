//! TLS of the Prometheus listener. A CA folder is read here, because Envoy trusts a file or a
//! text only, and a folder left to Envoy would verify nobody.

use std::path::{Path, PathBuf};

use super::BootstrapError;

/// TLS of the Prometheus listener: certificate and key stay in their files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusTls {
    /// Who signs the certificates of clients. A client without a certificate is let in; one with
    /// an untrusted certificate is not.
    pub ca: TrustedCa,
    /// The listener's certificate chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Trusted certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedCa {
    /// A PEM file that Envoy reads itself.
    File(PathBuf),
    /// PEM text, gathered from a folder.
    Folder {
        /// The folder.
        path: PathBuf,
        /// What its files hold.
        pem: String,
    },
}

impl PrometheusTls {
    /// Reads `ca` when it is a folder; hidden entries, which Kubernetes adds to mounted secrets,
    /// are left out.
    ///
    /// # Errors
    /// When `ca` cannot be read or holds no certificate.
    pub fn load(ca: &Path, certificate: PathBuf, key: PathBuf) -> Result<Self, BootstrapError> {
        let wrong = |reason: String| {
            BootstrapError(format!("-telemetry-prom-ca-certs-path {ca:?}: {reason}"))
        };
        let metadata = std::fs::metadata(ca).map_err(|error| wrong(error.to_string()))?;
        let ca = if metadata.is_dir() {
            TrustedCa::Folder {
                path: ca.to_path_buf(),
                pem: bundle(ca).map_err(wrong)?,
            }
        } else {
            TrustedCa::File(ca.to_path_buf())
        };
        Ok(Self {
            ca,
            certificate,
            key,
        })
    }
}

fn bundle(folder: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    let mut pem = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        if !text.contains("-----BEGIN CERTIFICATE-----") {
            return Err(format!("{} holds no PEM certificate", file.display()));
        }
        pem.push_str(text.trim_end());
        pem.push('\n');
    }
    if pem.is_empty() {
        return Err("the folder holds no certificate".to_owned());
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----";

    fn load(ca: &Path) -> Result<TrustedCa, String> {
        PrometheusTls::load(ca, "cert".into(), "key".into())
            .map(|tls| tls.ca)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_becomes_one_bundle_without_hidden_entries() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("..data")).unwrap();
        std::fs::write(folder.path().join(".hidden"), "x").unwrap();
        std::fs::write(folder.path().join("b.pem"), PEM.replace("AAAA", "BBBB")).unwrap();
        std::fs::write(folder.path().join("a.pem"), format!("{PEM}\n\n")).unwrap();
        let TrustedCa::Folder { path, pem } = load(folder.path()).unwrap() else {
            panic!("no bundle")
        };
        assert_eq!(path, folder.path());
        assert_eq!(pem, format!("{PEM}\n{}\n", PEM.replace("AAAA", "BBBB")));
    }

    #[test]
    fn unusable_paths_name_the_setting() {
        let folder = tempfile::tempdir().unwrap();
        let error = load(folder.path()).unwrap_err();
        assert!(
            error.contains("-telemetry-prom-ca-certs-path") && error.contains("no certificate"),
            "{error}"
        );
        std::fs::write(folder.path().join("notes"), "hello").unwrap();
        let error = load(folder.path()).unwrap_err();
        assert!(
            error.contains("notes") && error.contains("no PEM certificate"),
            "{error}"
        );
        assert!(
            load(Path::new("/nope"))
                .unwrap_err()
                .contains("No such file")
        );
    }
}
