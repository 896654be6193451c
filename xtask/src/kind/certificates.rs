//! Keys and certificates of a node, and the kubeconfig files of its clients. They are created for
//! every cluster and not trusted outside of the tests.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The API server's URL from outside of the node, and from inside.
const OUTSIDE: &str = "https://10.250.0.2:6443";
const INSIDE: &str = "https://127.0.0.1:6443";
/// The folder of the certificates inside the node.
const INSIDE_FOLDER: &str = "/run/node/state/certificates";

/// An empty configuration, because openssl adds the contents of its default one to certificates.
const CONFIGURATION: &str = "[req]\ndistinguished_name = name\n[name]\n";

/// Writes all files below `folder`, and `kubeconfig` for the administrator outside.
pub(super) fn make(folder: &Path, kubeconfig: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    certificate(
        folder,
        "ca",
        "/CN=legate-kind",
        &[
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,keyCertSign,digitalSignature",
        ],
        false,
    )?;
    let names = "subjectAltName=IP:10.250.0.2,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,\
                 DNS:kubernetes.default,DNS:kubernetes.default.svc,\
                 DNS:kubernetes.default.svc.cluster.local";
    certificate(folder, "apiserver", "/CN=kube-apiserver", &[names], true)?;
    certificate(folder, "admin", "/O=system:masters/CN=admin", &[], true)?;
    let names = "subjectAltName=IP:10.250.0.2,DNS:node";
    certificate(
        folder,
        "kubelet",
        "/O=system:nodes/CN=system:node:node",
        &[names],
        true,
    )?;
    client("admin", OUTSIDE, folder, kubeconfig)?;
    let place = Path::new(INSIDE_FOLDER);
    client("admin", INSIDE, place, &folder.join("admin-local.conf"))?;
    client("kubelet", INSIDE, place, &folder.join("kubelet.conf"))
}

/// Creates `NAME.key` and `NAME.crt`, self-signed or signed by the CA.
pub(super) fn certificate(
    folder: &Path,
    name: &str,
    subject: &str,
    extensions: &[&str],
    by_ca: bool,
) -> anyhow::Result<()> {
    fs::write(folder.join("openssl.cnf"), CONFIGURATION)?;
    let mut command = Command::new("openssl");
    command
        .current_dir(folder)
        .args(["req", "-x509", "-config", "openssl.cnf", "-days", "30"])
        .args([
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-noenc",
        ])
        .args([
            "-keyout",
            &format!("{name}.key"),
            "-out",
            &format!("{name}.crt"),
        ])
        .args(["-subj", subject]);
    for extension in extensions {
        command.args(["-addext", extension]);
    }
    if by_ca {
        let usage = "extendedKeyUsage=serverAuth,clientAuth";
        command.args(["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", usage]);
    }
    let done = command.output().context("cannot start openssl")?;
    if !done.status.success() {
        bail!(
            "openssl made no certificate for {name}:\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(())
}

/// A kubeconfig for kubectl and components, which see the certificates in `folder`.
fn client(name: &str, server: &str, folder: &Path, file: &Path) -> anyhow::Result<()> {
    let place = |file: &str| folder.join(file).display().to_string();
    let document = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "legate-kind", "cluster": {
            "server": server,
            "certificate-authority": place("ca.crt"),
        }}],
        "users": [{"name": name, "user": {
            "client-certificate": place(&format!("{name}.crt")),
            "client-key": place(&format!("{name}.key")),
        }}],
        "contexts": [{"name": "legate-kind", "context": {"cluster": "legate-kind", "user": name}}],
        "current-context": "legate-kind",
    });
    Ok(fs::write(file, document.to_string())?)
}
