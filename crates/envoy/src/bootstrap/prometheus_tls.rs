//! TLS of the Prometheus listener. A CA folder is read here, because Envoy accepts only a file or
//! inline text; with a folder it would not verify any client.

use std::path::{Path, PathBuf};

use super::error::BootstrapError;

/// TLS of the Prometheus listener. Certificate and key remain in their files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusTls {
    /// File or folder of the CA certificates for clients. A client without a certificate is accepted;
    /// one with an untrusted certificate is not.
    pub ca: PathBuf,
    /// Contents of the folder's files, as PEM; `None` if `ca` is a file, which Envoy reads itself.
    pub ca_pem: Option<String>,
    /// The listener's certificate chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl PrometheusTls {
    /// Reads `ca` if it is a folder. Hidden entries, which Kubernetes adds to mounted secrets, are
    /// skipped.
    ///
    /// # Errors
    /// When `ca` cannot be read or contains no certificate.
    pub fn load(ca: &Path, certificate: PathBuf, key: PathBuf) -> Result<Self, BootstrapError> {
        let ca_pem = match std::fs::metadata(ca) {
            Ok(metadata) if metadata.is_dir() => bundle(ca).map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let ca_pem = ca_pem.map_err(|reason| {
            BootstrapError(format!("-telemetry-prom-ca-certs-path {ca:?}: {reason}"))
        })?;
        Ok(Self {
            ca: ca.to_path_buf(),
            ca_pem,
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

    fn load(ca: &Path) -> Result<PrometheusTls, String> {
        PrometheusTls::load(ca, "cert".into(), "key".into()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_becomes_one_bundle_without_hidden_entries() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("..data")).unwrap();
        std::fs::write(folder.path().join(".hidden"), "x").unwrap();
        std::fs::write(folder.path().join("b.pem"), PEM.replace("AAAA", "BBBB")).unwrap();
        std::fs::write(folder.path().join("a.pem"), format!("{PEM}\n\n")).unwrap();
        let tls = load(folder.path()).unwrap();
        assert_eq!(tls.ca, folder.path());
        let bundle = format!("{PEM}\n{}\n", PEM.replace("AAAA", "BBBB"));
        assert_eq!(tls.ca_pem, Some(bundle));
        assert_eq!(load(&folder.path().join("a.pem")).unwrap().ca_pem, None);
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
