//! The calls that several parts of `legate-k8s` make.

use serde_json::{Value, json};

use super::{Path, Servers, ServersError};
use crate::tenancy::Tenants;

/// Of namespaces and partitions that are made here; the meta is that of Consul's integration.
const TENANT_DESCRIPTION: &str = "Made by legate-k8s";

impl Servers {
    /// Writes an instance, checks, or both (`PUT /v1/catalog/register`).
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`].
    pub async fn register(&self, request: &Value) -> Result<(), ServersError> {
        let path = Path::of(["catalog", "register"]);
        self.put_json::<Value>(&path, request).await.map(drop)
    }

    /// Removes an instance, a check or a whole node (`PUT /v1/catalog/deregister`). What is not
    /// there is removed as well.
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`].
    pub async fn deregister(&self, request: &Value) -> Result<(), ServersError> {
        let path = Path::of(["catalog", "deregister"]);
        self.put_json::<Value>(&path, request).await.map(drop)
    }

    /// A config entry, or `None` where there is none of that kind and name in the namespace.
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

    /// Makes a namespace of the mesh where there is none of this name: `GET` and `PUT /v1/namespace`.
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
            .inspect(|()| tracing::info!(namespace = name, "the namespace of the mesh is made"))
    }

    /// Makes a partition where there is none of this name: `GET` and `PUT /v1/partition`.
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
            .inspect(|()| tracing::info!(partition = name, "the partition of the mesh is made"))
    }

    /// Gives a service virtual IPs of its own (`PUT /v1/internal/service-virtual-ip`). Servers leave
    /// a service as it is that has no virtual IP yet: it has one with its first instance.
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`]; 404 or 501 from servers that have no such call.
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

/// The body of `PUT /v1/namespace`, with a policy that all of its tokens have.
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
