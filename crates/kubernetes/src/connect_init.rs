//! `legate-k8s connect-init`: writes the files of the mesh for containers of an application. Runs in
//! an init container of pods with the annotation `connect-inject-mount-volume`, without access to the
//! API server or the mesh's servers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

/// Folder of the files in every container.
pub const FOLDER: &str = "/consul/connect-inject";

/// Options of `legate-k8s connect-init`.
#[derive(Debug, Args)]
pub struct Options {
    /// Folder that the files are written to
    #[arg(long, default_value = FOLDER)]
    pub folder: PathBuf,
    /// Id of the pod's proxy in the catalog, written to `proxyid`
    #[arg(long, env = "DP_PROXY_SERVICE_ID")]
    pub proxy_id: String,
    /// CA certificates of the servers, written to `consul-ca.pem`; no file if there are none
    #[arg(long, env = "CONSUL_CACERT_PEM", value_name = "PEM")]
    pub ca_certs: Option<String>,
}

/// Writes the files.
///
/// # Errors
///
/// If a file cannot be written; the error names it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    write(&options.folder, "proxyid", &options.proxy_id)?;
    if let Some(pem) = options.ca_certs.as_ref().filter(|pem| !pem.is_empty()) {
        write(&options.folder, "consul-ca.pem", pem)?;
    }
    Ok(())
}

fn write(folder: &Path, name: &str, content: &str) -> anyhow::Result<()> {
    let file = folder.join(name);
    fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
    tracing::info!(file = %file.display(), "written for the pod's containers");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_content_or_the_error_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options {
            folder: folder.path().to_owned(),
            proxy_id: "web-1-web-sidecar-proxy".to_owned(),
            ca_certs: None,
        };
        run(&options).unwrap();
        let read = |name| fs::read_to_string(folder.path().join(name));
        assert_eq!(read("proxyid").unwrap(), "web-1-web-sidecar-proxy");
        assert!(read("consul-ca.pem").is_err());
        options.ca_certs = Some("-----BEGIN CERTIFICATE-----\n".to_owned());
        run(&options).unwrap();
        assert_eq!(
            read("consul-ca.pem").unwrap(),
            "-----BEGIN CERTIFICATE-----\n"
        );
        options.folder = folder.path().join("none");
        let error = format!("{:#}", run(&options).unwrap_err());
        assert!(error.contains("none/proxyid"), "{error}");
    }
}
