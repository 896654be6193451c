//! The CA of the primary datacenter, for [`legate_ca`]: asks its servers over the port for servers, with the replication
//! token.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use legate_ca::Primary;
use legate_model::CaRoots;
use legate_runtime::BoxError;
use legate_wan::Wan;
use serde::Deserialize;
use serde_json::json;

use crate::acl::Rights;
use crate::wan::{self, FOR_SERVERS};

/// The longest answer in bytes: some hundred roots.
const LARGEST_ANSWER: usize = 1024 * 1024;

/// The CA of the primary datacenter.
pub(crate) struct PrimaryCa {
    wan: Wan,
    datacenter: String,
    rights: Rights,
}

/// The answer to a request for an intermediate.
#[derive(Deserialize)]
struct Signed {
    certificate: String,
}

impl PrimaryCa {
    pub(crate) fn new(wan: Wan, datacenter: &str, rights: Rights) -> Self {
        let datacenter = datacenter.to_ascii_lowercase();
        Self {
            wan,
            datacenter,
            rights,
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(HeaderMap, Bytes), BoxError> {
        let token = self.rights.replication_token();
        let request = wan::request(method, &self.datacenter, path, &token, body)?;
        let answer = self.wan.request(&self.datacenter, request).await?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER).collect().await?;
        let body = body.to_bytes();
        match head.status {
            StatusCode::OK => Ok((head.headers, body)),
            status => Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into()),
        }
    }
}

impl Primary for PrimaryCa {
    async fn roots(&self, index: u64, wait: Duration) -> Result<(CaRoots, u64), BoxError> {
        let wait = wait.as_secs();
        let path = format!("/v1/connect/ca/roots?index={index}&wait={wait}s");
        let (headers, body) = self.ask(Method::GET, &path, Vec::new()).await?;
        let index = headers.get("x-consul-index");
        let index = index.and_then(|index| index.to_str().ok()?.parse().ok());
        let roots = serde_json::from_slice(&body)?;
        Ok((roots, index.ok_or("the answer has no index")?))
    }

    async fn sign(&self, csr_pem: &str, ttl: Duration) -> Result<String, BoxError> {
        let body = serde_json::to_vec(&json!({ "csr": csr_pem, "ttl": ttl.as_secs() }))?;
        let path = format!("{FOR_SERVERS}ca/intermediate");
        let (_, body) = self.ask(Method::POST, &path, body).await?;
        let Signed { certificate } = serde_json::from_slice(&body)?;
        Ok(certificate)
    }
}
