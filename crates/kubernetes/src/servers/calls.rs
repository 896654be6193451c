//! The calls that several parts of `legate-k8s` make.

use serde_json::Value;

use super::{Path, Servers, ServersError};

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

    /// A config entry, or `None` where there is none of that kind and name.
    ///
    /// # Errors
    ///
    /// As [`Servers::find_json`].
    pub async fn config_entry(
        &self,
        kind: &str,
        name: &str,
    ) -> Result<Option<Value>, ServersError> {
        self.find_json(&Path::of(["config", kind, name])).await
    }

    /// Writes a config entry (`PUT /v1/config`).
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`].
    pub async fn put_config_entry(&self, entry: &Value) -> Result<(), ServersError> {
        let path = Path::of(["config"]);
        self.put_json::<Value>(&path, entry).await.map(drop)
    }

    /// Removes a config entry. Nothing happens where there is none.
    ///
    /// # Errors
    ///
    /// As [`Servers::delete`].
    pub async fn delete_config_entry(&self, kind: &str, name: &str) -> Result<(), ServersError> {
        let path = Path::of(["config", kind, name]);
        self.delete(&path).await.map(drop)
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
        addresses: &[&str],
    ) -> Result<(), ServersError> {
        let path = Path::of(["internal", "service-virtual-ip"]);
        let body = serde_json::json!({"Service": service, "ManualVIPs": addresses});
        self.put_json::<Value>(&path, &body).await.map(drop)
    }
}
