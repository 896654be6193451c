//! Removes ACL tokens of deleted pods: the sidecar of a killed pod cannot log out, nor can a gateway.
//!
//! Only tokens that were created by the auth methods of sidecars and of the chart's own pods, and name the
//! pod, are removed; those of users are never touched.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde::Deserialize;

use super::facts::Key;
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};

/// The prefix that Consul writes before the metadata of a login.
const DESCRIPTION: &str = "token created via login: ";

/// The relevant parts of a token, without its secret.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Token {
    #[serde(rename = "AccessorID")]
    accessor_id: String,
    description: String,
    auth_method: Option<String>,
    service_identities: Option<Vec<Identity>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Identity {
    service_name: String,
}

/// The relevant part of a namespace.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Namespace {
    name: String,
}

/// The owner of a token.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    /// The service of a sidecar; the component that another pod of the chart is.
    service: String,
    pod: Key,
    uid: Option<String>,
}

impl Token {
    /// The pod that logged in, if the token belongs to a sidecar or a component and this auth method.
    fn holder(&self, auth_method: &str) -> Option<Holder> {
        let own = self
            .auth_method
            .as_deref()?
            .eq_ignore_ascii_case(auth_method);
        let meta = self.description.strip_prefix(DESCRIPTION)?;
        let meta: serde_json::Value = serde_json::from_str(meta).ok()?;
        let service = match self.service_identities.as_deref().unwrap_or_default() {
            [identity] => identity.service_name.clone(),
            [] => meta.get("component")?.as_str()?.to_owned(),
            _ => return None,
        };
        let (namespace, name) = meta.get("pod")?.as_str()?.split_once('/')?;
        let uid = meta.get("pod-uid").and_then(serde_json::Value::as_str);
        own.then(|| Holder {
            service,
            pod: Key::new(namespace, name),
            uid: uid.map(str::to_owned),
        })
    }
}

/// An auth method of pods.
pub(super) struct Method<'a> {
    pub(super) servers: &'a Servers,
    pub(super) name: &'a str,
    /// The namespace of the auth method; `None` if namespaces are not used. Its tokens may be in
    /// others.
    pub(super) namespace: Option<&'a str>,
}

impl Method<'_> {
    /// The tokens in a namespace that the method created, or those of a service.
    async fn tokens(
        &self,
        namespace: Option<&str>,
        service: Option<&str>,
    ) -> Result<Vec<Token>, ServersError> {
        let path = Path::of(["acl", "tokens"]).in_namespace(namespace);
        // Servers support one filter at a time; the rest is filtered here.
        let path = match (service, self.namespace) {
            (Some(service), _) => path.with("servicename", service),
            (None, None) => path.with("authmethod", self.name),
            (None, Some(own)) => path
                .with("authmethod", self.name)
                .with("authmethod-ns", own),
        };
        let tokens: Option<Vec<Token>> = self.servers.get_json(&path).await?;
        Ok(tokens.unwrap_or_default())
    }

    /// All namespaces; a single `None` if namespaces are not used.
    async fn namespaces(&self) -> Result<Vec<Option<String>>, ServersError> {
        if self.namespace.is_none() {
            return Ok(vec![None]);
        }
        let path = Path::of(["namespaces"]);
        let namespaces: Option<Vec<Namespace>> = self.servers.get_json(&path).await?;
        let namespaces = namespaces.into_iter().flatten();
        Ok(namespaces.map(|namespace| Some(namespace.name)).collect())
    }

    async fn remove(
        &self,
        namespace: Option<&str>,
        token: &Token,
        holder: &Holder,
    ) -> Result<(), ServersError> {
        let path = Path::of(["acl", "token", token.accessor_id.as_str()]);
        self.servers.delete(&path.in_namespace(namespace)).await?;
        tracing::info!(pod = %holder.pod, service = holder.service, "removed the token of a deleted pod");
        Ok(())
    }
}

/// Removes the tokens of one deleted pod.
pub(super) async fn remove_of(
    method: &Method<'_>,
    namespace: &str,
    service: &str,
    pod: &Key,
    uid: &str,
) -> Result<(), ServersError> {
    let namespace = Some(namespace).filter(|name| !name.is_empty());
    for token in method.tokens(namespace, Some(service)).await? {
        let Some(holder) = token.holder(method.name) else {
            continue;
        };
        let same = holder.uid.as_deref().is_none_or(|own| own == uid);
        if holder.pod == *pod && holder.service == service && same {
            method.remove(namespace, &token, &holder).await?;
        }
    }
    Ok(())
}

/// Removes all tokens of deleted pods. The pods in `live` are known to exist; all others are looked
/// up at the API server.
pub(super) async fn sweep(
    method: &Method<'_>,
    client: &Client,
    live: &BTreeMap<Key, String>,
    lead: &Lead,
) -> anyhow::Result<()> {
    for namespace in method.namespaces().await? {
        let namespace = namespace.as_deref();
        sweep_namespace(method, namespace, client, live, lead).await?;
    }
    Ok(())
}

async fn sweep_namespace(
    method: &Method<'_>,
    namespace: Option<&str>,
    client: &Client,
    live: &BTreeMap<Key, String>,
    lead: &Lead,
) -> anyhow::Result<()> {
    for token in method.tokens(namespace, None).await? {
        let Some(holder) = token.holder(method.name) else {
            continue;
        };
        let is = |uid: &str| holder.uid.as_deref().is_none_or(|own| own == uid);
        if live.get(&holder.pod).is_some_and(|uid| is(uid)) {
            continue;
        }
        let pods: Api<core::Pod> = Api::namespaced(client.clone(), &holder.pod.namespace);
        let found: Option<PartialObjectMeta<core::Pod>> =
            pods.get_metadata_opt(&holder.pod.name).await?;
        let found = found.and_then(|pod| pod.metadata.uid);
        if !found.is_some_and(|uid| is(&uid)) && lead.holds() {
            method.remove(namespace, &token, &holder).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_tokens_of_pods_have_a_holder() {
        let good = json!({
            "AccessorID": "a", "AuthMethod": "k8s", "ServiceIdentities": [{"ServiceName": "web"}],
            "Description": "token created via login: {\"pod\":\"ns/web-0\",\"pod-uid\":\"u\"}",
        });
        let holder = |token: serde_json::Value| {
            let token: Token = serde_json::from_value(token).unwrap();
            token.holder("k8s")
        };
        let mut wanted = Holder {
            service: "web".to_owned(),
            pod: Key::new("ns", "web-0"),
            uid: Some("u".to_owned()),
        };
        assert_eq!(holder(good.clone()), Some(Holder { ..wanted }));
        let with = |field: &str, value: serde_json::Value| {
            let mut token = good.clone();
            token[field] = value;
            holder(token)
        };
        wanted = Holder {
            service: "web".to_owned(),
            pod: Key::new("ns", "web-0"),
            uid: None,
        };
        let description = "token created via login: {\"pod\":\"ns/web-0\"}";
        assert_eq!(with("Description", description.into()), Some(wanted));
        let gateway = json!({
            "AuthMethod": "k8s", "Roles": [{"Name": "r"}],
            "Description": "token created via login: {\"component\":\"g\",\"pod\":\"ns/g-0\"}",
        });
        let held = Holder {
            service: "g".to_owned(),
            pod: Key::new("ns", "g-0"),
            uid: None,
        };
        assert_eq!(holder(gateway), Some(held));
        for (field, value) in [
            ("AuthMethod", json!("other")),
            ("AuthMethod", json!(null)),
            ("ServiceIdentities", json!(null)),
            (
                "ServiceIdentities",
                json!([{"ServiceName": "a"}, {"ServiceName": "b"}]),
            ),
            ("Description", json!("my token")),
            ("Description", json!("token created via login: {}")),
            (
                "Description",
                json!("token created via login: {\"pod\":\"x\"}"),
            ),
        ] {
            assert_eq!(with(field, value.clone()), None, "{field} {value}");
        }
    }
}
