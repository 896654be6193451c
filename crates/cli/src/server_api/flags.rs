//! Flags and environment variables for the server and its credentials. A flag overrides its variable;
//! empty values count as unset.

use std::convert::Infallible;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use legate_identity::tls::{self, ClientTls};
use legate_model::Secret;
use serde_json::Value;

use super::address::{Address, Endpoint};
use super::client::Api;

/// The default address.
const DEFAULT: &str = "127.0.0.1:8500";

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

/// The flags of every command that connects to a server.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ApiFlags {
    /// Address of the HTTP API: HOST:PORT, https://HOST:PORT or unix:///PATH [env: CONSUL_HTTP_ADDR]
    /// [default: 127.0.0.1:8500]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http_addr: Option<String>,
    /// ACL token [env: CONSUL_HTTP_TOKEN]
    #[arg(long, value_parser = secret, value_name = "TOKEN")]
    pub(crate) token: Option<Secret>,
    /// File with the ACL token; overrides -token [env: CONSUL_HTTP_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file with CA certificates for an https server [env: CONSUL_CACERT] [default: those of the
    /// system]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Folder of such files [env: CONSUL_CAPATH]
    #[arg(long, value_name = "DIR")]
    pub(crate) ca_path: Option<PathBuf>,
    /// PEM file of the client's certificate [env: CONSUL_CLIENT_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_cert: Option<PathBuf>,
    /// PEM file of the client's key [env: CONSUL_CLIENT_KEY]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_key: Option<PathBuf>,
    /// Server name in the certificate of an https server [env: CONSUL_TLS_SERVER_NAME]
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
    /// Datacenter of the request [default: that of the server]
    #[arg(long, value_name = "NAME")]
    pub(crate) datacenter: Option<String>,
    /// Allow any server to respond, with a possibly older state
    #[arg(long)]
    pub(crate) stale: bool,
    /// Namespace [env: CONSUL_NAMESPACE]
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Admin partition [env: CONSUL_PARTITION]
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<String>,
}

/// The flags of a command that, like most of Consul's, accepts arguments without meaning.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ApiOptions {
    #[arg(hide = true)]
    pub(crate) arguments: Vec<String>,
    #[command(flatten)]
    flags: ApiFlags,
}

impl ApiOptions {
    /// As [`ApiFlags::connect`].
    ///
    /// # Errors
    ///
    /// As [`ApiFlags::connect`].
    pub(crate) fn connect(&self) -> anyhow::Result<Api> {
        self.flags.connect()
    }

    /// As [`ApiFlags::connect_without_token`].
    ///
    /// # Errors
    ///
    /// As [`ApiFlags::connect`].
    pub(crate) fn connect_without_token(&self) -> anyhow::Result<Api> {
        self.flags.connect_without_token()
    }
}

/// A non-empty environment variable.
#[expect(
    clippy::disallowed_methods,
    reason = "the client's settings are read here"
)]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl ApiFlags {
    /// The client for the server that flags and variables select, not yet connected.
    ///
    /// # Errors
    ///
    /// If the address, the token file or the TLS files are invalid.
    pub(crate) fn connect(&self) -> anyhow::Result<Api> {
        let api = self.resolve(&environment);
        api.context("Error connecting to Consul agent")
    }

    /// Like [`Self::connect`], without a token from flags or variables, for logins.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub(crate) fn connect_without_token(&self) -> anyhow::Result<Api> {
        self.resolve_without_token(&environment)
            .context("Error connecting to Consul agent")
    }

    fn resolve_without_token(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Api> {
        let flags = ApiFlags {
            token: None,
            token_file: None,
            ..self.clone()
        };
        let names_token = |name: &str| name.starts_with("CONSUL_HTTP_TOKEN");
        flags.resolve(&|name| variable(name).filter(|_| !names_token(name)))
    }

    /// The client for a server at an address, with nothing from environment variables.
    ///
    /// # Errors
    ///
    /// If the address is invalid.
    pub(crate) fn of_server(&self, address: &str, skip_verify: bool) -> anyhow::Result<Api> {
        let flags = ApiFlags {
            http_addr: Some(address.to_owned()),
            ..self.clone()
        };
        let unverified = |name: &str| name == "CONSUL_HTTP_SSL_VERIFY" && skip_verify;
        flags.resolve(&|name| unverified(name).then(|| "false".to_owned()))
    }

    /// Like [`Self::connect`], ignoring environment variables.
    #[cfg(test)]
    pub(crate) fn connect_without_environment(&self) -> anyhow::Result<Api> {
        self.resolve(&|_| None)
    }

    fn resolve(&self, variable: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<Api> {
        let text = |flag: &Option<String>, name: &str| {
            let flag = flag.clone().filter(|text| !text.is_empty());
            flag.or_else(|| variable(name))
        };
        let path = |flag: &Option<PathBuf>, name: &str| {
            let flag = flag.clone().filter(|path| !path.as_os_str().is_empty());
            flag.or_else(|| variable(name).map(PathBuf::from))
        };
        let switch = |name: &str| variable(name).map(|text| is_true(name, &text)).transpose();
        let https = switch("CONSUL_HTTP_SSL")?.unwrap_or(false);
        let verify = switch("CONSUL_HTTP_SSL_VERIFY")?.unwrap_or(true);
        let address = text(&self.http_addr, "CONSUL_HTTP_ADDR");
        let address = Address::parse(address.as_deref().unwrap_or(DEFAULT), https)?;

        let certificate = path(&self.client_cert, "CONSUL_CLIENT_CERT");
        let key = path(&self.client_key, "CONSUL_CLIENT_KEY");
        let ca = path(&self.ca_file, "CONSUL_CACERT").or(path(&self.ca_path, "CONSUL_CAPATH"));
        let tls = match (&address.place, address.https) {
            (Endpoint::Tcp { host, .. }, true) => {
                let config = tls::client_config(&ClientTls {
                    ca,
                    client_cert: certificate.zip(key),
                    insecure_skip_verify: !verify,
                    alpn_h2: false,
                })?;
                let name = text(&self.tls_server_name, "CONSUL_TLS_SERVER_NAME");
                let name = tls::server_name(name.as_deref().unwrap_or(host))?;
                Some((config, name))
            }
            _ => None,
        };
        let token_file = path(&self.token_file, "CONSUL_HTTP_TOKEN_FILE");
        let given = self.token.clone().filter(|token| !token.is_empty());
        let given = given.or_else(|| variable("CONSUL_HTTP_TOKEN").map(Secret::new));
        let mut parameters = Vec::new();
        for (name, value) in [
            ("dc", self.datacenter.clone()),
            ("ns", text(&self.namespace, "CONSUL_NAMESPACE")),
            ("partition", text(&self.partition, "CONSUL_PARTITION")),
            ("stale", self.stale.then(String::new)),
        ] {
            let value = value.filter(|value| name == "stale" || !value.is_empty());
            parameters.extend(value.map(|value| (name, value)));
        }
        Ok(Api {
            address,
            tls,
            token: match token_file {
                Some(file) => read_token(&file)?.or(given),
                None => given,
            },
            basic: variable("CONSUL_HTTP_AUTH").map(Secret::new),
            parameters,
        })
    }
}

fn read_token(file: &std::path::Path) -> anyhow::Result<Option<Secret>> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("Error loading token file {}", file.display()))?;
    let token = text.trim();
    Ok((!token.is_empty()).then(|| Secret::new(token)))
}

fn is_true(name: &str, text: &str) -> anyhow::Result<bool> {
    let value = crate::go_flags::boolean(text);
    value.with_context(|| format!("{name}={text} is neither true nor false"))
}

/// Flags to query a server instead of sidecars on Kubernetes.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerApi {
    /// Query the HTTP API of this server instead of sidecars on Kubernetes: HOST:PORT, http://HOST:PORT or
    /// https://HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http_addr: Option<String>,
    /// ACL token for the server
    #[arg(
        long,
        env = "CONSUL_HTTP_TOKEN",
        hide_env_values = true,
        value_parser = secret,
        value_name = "TOKEN"
    )]
    token: Option<Secret>,
    /// File with the ACL token for the server; overrides --token
    #[arg(long, env = "CONSUL_HTTP_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// CA certificates for an https server: a PEM file, or a folder of PEM files. Default: those of the
    /// system
    #[arg(long, env = "CONSUL_CACERT", value_name = "PATH")]
    ca_file: Option<PathBuf>,
    /// Server name in the certificate of an https server. Default: the host of --http-addr
    #[arg(long, env = "CONSUL_TLS_SERVER_NAME", value_name = "NAME")]
    tls_server_name: Option<String>,
}

impl ServerApi {
    /// Gets a JSON document.
    ///
    /// # Errors
    ///
    /// If the server is unreachable, or the response is an error.
    pub(crate) async fn get(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let api = self.flags().connect()?;
        let ask = query.iter().fold(api.get(path), |ask, (name, value)| {
            ask.query(name, (*value).to_owned())
        });
        ask.value().await
    }

    /// The ACL token, if given.
    ///
    /// # Errors
    ///
    /// If the token file cannot be read.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        let api = self.flags().connect()?;
        Ok(api.token().map(|token| token.expose().to_owned()))
    }

    fn flags(&self) -> ApiFlags {
        ApiFlags {
            http_addr: self.http_addr.clone(),
            token: self.token.clone(),
            token_file: self.token_file.clone(),
            ca_file: self.ca_file.clone(),
            tls_server_name: self.tls_server_name.clone(),
            ..ApiFlags::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_its_variable() {
        let variable = |name: &str| match name {
            "CONSUL_HTTP_ADDR" => Some("https://elsewhere:1".to_owned()),
            "CONSUL_HTTP_TOKEN" => Some("t".to_owned()),
            "CONSUL_NAMESPACE" => Some("n".to_owned()),
            "CONSUL_HTTP_SSL_VERIFY" => Some("false".to_owned()),
            _ => None,
        };
        let flags = ApiFlags {
            http_addr: Some("here:2".to_owned()),
            stale: true,
            ..ApiFlags::default()
        };
        let api = flags.resolve(&variable).unwrap();
        assert_eq!(api.address.to_string(), "http://here:2");
        assert_eq!(api.token().unwrap().expose(), "t");
        assert_eq!(api.parameter("ns"), Some("n"));
        assert_eq!(api.parameter("stale"), Some(""));
        let api = flags.resolve_without_token(&variable).unwrap();
        assert!(api.token().is_none());
        let empty = ApiFlags {
            http_addr: Some(String::new()),
            token_file: Some(PathBuf::new()),
            namespace: Some(String::new()),
            ..ApiFlags::default()
        };
        for none in [ApiFlags::default(), empty] {
            let api = none.resolve(&variable).unwrap();
            assert_eq!(api.address.to_string(), "https://elsewhere:1");
            assert_eq!(api.parameter("ns"), Some("n"));
            assert!(api.tls.is_some());
        }
    }

    #[test]
    fn a_file_wins_over_a_token() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "from-file\n").unwrap();
        let flags = ApiFlags {
            token: Some(Secret::new("given")),
            token_file: Some(file),
            ..ApiFlags::default()
        };
        let api = flags.connect_without_environment().unwrap();
        assert_eq!(api.token().unwrap().expose(), "from-file");
    }
}
