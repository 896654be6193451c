//! The CA of the primary datacenter, for [`legate_ca`]: asks its servers over the port for servers, with the replication
//! token.

use std::time::Duration;

use legate_ca::{Primary, PrimaryRoots};
use legate_model::CaRoots;
use legate_runtime::BoxError;
use legate_wan::Wan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::acl::Rights;
use crate::wan;

/// The longest answer in bytes: some hundred roots.
const LARGEST_ANSWER: usize = 1024 * 1024;

/// The CA of the primary datacenter.
pub(crate) struct PrimaryCa {
    wan: Wan,
    datacenter: String,
    rights: Rights,
}

/// The roots, as servers of other datacenters get them. See [`PrimaryRoots`].
#[derive(Serialize, Deserialize)]
pub(crate) struct RootsForServers {
    pub(crate) roots: CaRoots,
    pub(crate) index: u64,
    pub(crate) state: u64,
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

    async fn ask<T: DeserializeOwned>(&self, path: &str, question: Vec<u8>) -> Result<T, BoxError> {
        let token = self.rights.replication_token();
        let (wan, datacenter) = (&self.wan, &self.datacenter);
        let asked = wan::ask_up_to(wan, datacenter, path, &token, question, LARGEST_ANSWER);
        Ok(serde_json::from_slice(&asked.await?)?)
    }
}

impl Primary for PrimaryCa {
    async fn roots(&self, index: u64, wait: Duration) -> Result<PrimaryRoots, BoxError> {
        let wait = wait.as_secs();
        let path = format!("ca/roots?index={index}&wait={wait}s");
        let RootsForServers {
            roots,
            index,
            state,
        } = self.ask(&path, Vec::new()).await?;
        Ok(PrimaryRoots {
            roots,
            index,
            state,
        })
    }

    async fn sign(&self, csr_pem: &str, ttl: Duration) -> Result<String, BoxError> {
        let question = serde_json::to_vec(&json!({ "csr": csr_pem, "ttl": ttl.as_secs() }))?;
        let Signed { certificate } = self.ask("ca/intermediate", question).await?;
        Ok(certificate)
    }
}
