//! API calls that several components of `legate-k8s` use.

use serde_json::{Value, json};

use super::{Path, Servers, ServersError};
use crate::tenancy::Tenants;

/// Description of namespaces and partitions created here; the meta is that of Consul's integration.
const TENANT_DESCRIPTION: &str = "Made by legate-k8s";

impl Servers {
    /// Registers an instance, checks, or both (`PUT /v1/catalog/register`).
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`].
    pub async fn register(&self, request: &Value) -> Result<(), ServersError> {
        let path = Path::of(["catalog", "register"]);
        self.put_json::<Value>(&path, request).await.map(drop)
    }

    /// Deregisters an instance, a check or a whole node (`PUT /v1/catalog/deregister`). Idempotent.
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`].
    pub async fn deregister(&self, request: &Value) -> Result<(), ServersError> {
        let path = Path::of(["catalog", "deregister"]);
        self.put_json::<Value>(&path, request).await.map(drop)
    }

    /// Reads a config entry; `None` if the namespace has none of that kind and name.
    ///
    /// # Errors
    ///
    /// As [`Servers::find_json`].
    pub async fn config_entry(
        &self,
        kind: &str,
        name: &str,
        namespace: Option<&str>,
    ) -> Result<Option<Value>, ServersError> {
        let path = Path::of(["config", kind, name]);
        self.find_json(&path.in_namespace(namespace)).await
    }

    /// Creates a namespace of the mesh if it does not exist: `GET` and `PUT /v1/namespace`.
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`]; servers without namespaces refuse.
    pub async fn ensure_namespace(
        &self,
        name: &str,
        tenants: &Tenants,
    ) -> Result<(), ServersError> {
        let path = Path::of(["namespace", name]);
        if self
            .find_json::<Value>(&path)
            .await?
            .is_some_and(|held| !held.is_null())
        {
            return Ok(());
        }
        let body = namespace(name, tenants.cross_namespace_policy());
        let made = self
            .put_json::<Value>(&Path::of(["namespace"]), &body)
            .await;
        made.map(drop)
            .inspect(|()| tracing::info!(namespace = name, "created the namespace of the mesh"))
    }

    /// Creates a partition if it does not exist: `GET` and `PUT /v1/partition`.
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`]; servers without partitions refuse.
    pub async fn ensure_partition(&self, name: &str) -> Result<(), ServersError> {
        let path = Path::of(["partition", name]).of_mesh();
        if self
            .find_json::<Value>(&path)
            .await?
            .is_some_and(|held| !held.is_null())
        {
            return Ok(());
        }
        let path = Path::of(["partition"]).of_mesh();
        let made = self.put_json::<Value>(&path, &partition(name)).await;
        made.map(drop)
            .inspect(|()| tracing::info!(partition = name, "created the partition of the mesh"))
    }

    /// Assigns virtual IPs to a service (`PUT /v1/internal/service-virtual-ip`). Servers ignore it
    /// for a service without a virtual IP; it gets one with its first instance.
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`]; 404 or 501 from servers without this call.
    pub async fn set_virtual_ips(
        &self,
        service: &str,
        namespace: Option<&str>,
        addresses: &[&str],
    ) -> Result<(), ServersError> {
        let path = Path::of(["internal", "service-virtual-ip"]).in_namespace(namespace);
        let body = json!({"Service": service, "ManualVIPs": addresses});
        self.put_json::<Value>(&path, &body).await.map(drop)
    }
}

/// The body of `PUT /v1/namespace`, with a default policy for all tokens of the namespace.
pub(crate) fn namespace(name: &str, policy: Option<&str>) -> Value {
    let mut body = json!({
        "Name": name,
        "Description": TENANT_DESCRIPTION,
        "Meta": {"external-source": "kubernetes"},
    });
    if let Some(policy) = policy {
        body["ACLs"] = json!({"PolicyDefaults": [{"Name": policy}]});
    }
    body
}

/// The body of `PUT /v1/partition`.
pub(crate) fn partition(name: &str) -> Value {
    json!({"Name": name, "Description": TENANT_DESCRIPTION})
}
