//! `login` and `logout`: exchange a credential for a token, and destroy it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use legate_model::Secret;
use serde_json::json;

use crate::input;
use crate::output::text;
use crate::server_api::ApiOptions;

#[derive(Args)]
pub(crate) struct Login {
    /// Name of the auth method
    #[arg(long, default_value = "", value_name = "NAME")]
    method: String,
    /// Type of the auth method; optional for jwt and kubernetes
    #[arg(long = "type", default_value = "", value_name = "TYPE")]
    kind: String,
    /// File with the bearer token
    #[arg(long, value_name = "FILE")]
    bearer_token_file: Option<PathBuf>,
    /// File to which the ACL token is written
    #[arg(long, value_name = "FILE")]
    token_sink_file: Option<PathBuf>,
    /// Metadata of the token; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    meta: Vec<(String, String)>,
    /// Not supported: log in with AWS credentials
    #[arg(long)]
    aws_auto_bearer_token: bool,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Logout {
    #[command(flatten)]
    api: ApiOptions,
}

/// Logs in and writes the token's secret to a file.
///
/// # Errors
///
/// If a required flag is missing, or the server refuses.
pub(crate) async fn login(options: Login) -> anyhow::Result<ExitCode> {
    ensure!(
        options.api.arguments.is_empty(),
        "Should have no non-flag arguments."
    );
    ensure!(
        !options.method.is_empty(),
        "Missing required '-method' flag"
    );
    let sink = options.token_sink_file.as_deref();
    let sink = sink.context("Missing required '-token-sink-file' flag")?;
    ensure!(
        options.kind != "oidc",
        "-type=oidc is not supported: log in with a token of the provider and an auth method of type jwt"
    );
    ensure!(
        !options.aws_auto_bearer_token,
        "-aws-auto-bearer-token is not supported: use an auth method of type jwt or kubernetes"
    );
    let file = options.bearer_token_file.as_deref();
    let file = file.context("Missing required '-bearer-token-file' flag")?;
    let bearer = std::fs::read_to_string(file);
    let bearer = bearer.with_context(|| format!("open {}", file.display()))?;
    let bearer = bearer.trim();
    ensure!(
        !bearer.is_empty(),
        "No bearer token found in {}",
        file.display()
    );
    let mut body = json!({"AuthMethod": options.method, "BearerToken": bearer});
    if !options.meta.is_empty() {
        body["Meta"] = input::object(&options.meta);
    }
    let api = options.api.connect_without_token()?;
    let token = api.post("/v1/acl/login").json(&body).value().await;
    let token = token.context("Error logging in")?;
    let secret = Secret::new(text(&token, "SecretID"));
    write(sink, &secret).context("Error writing token to file sink")?;
    Ok(ExitCode::SUCCESS)
}

/// Replaces a file atomically; only its owner can read it.
fn write(path: &Path, secret: &Secret) -> anyhow::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    let owner_only = std::fs::Permissions::from_mode(0o600);
    file.as_file().set_permissions(owner_only)?;
    file.write_all(secret.expose().as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Destroys the current token.
///
/// # Errors
///
/// If it was not created by a login.
pub(crate) async fn logout(options: Logout) -> anyhow::Result<ExitCode> {
    ensure!(
        options.api.arguments.is_empty(),
        "Should have no non-flag arguments."
    );
    let done = options.api.connect()?.post("/v1/acl/logout").ok().await;
    done.context("Error destroying token")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_reads_the_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/token");
        write(&path, &Secret::new("s")).unwrap();
        write(&path, &Secret::new("t")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "t");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
