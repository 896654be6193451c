//! ACL tokens that sidecars got by login and have left behind: a pod that is killed cannot log out.
//!
//! Only tokens are removed that came from the sidecars' auth method and name the pod: those of
//! people and of other components are never touched.

use k8s_openapi::api::core::v1 as core;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde::Deserialize;

use super::facts::Key;
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};

/// What consul-k8s and Consul write before the meta of a login.
const DESCRIPTION: &str = "token created via login: ";

/// The part of a token that matters. Its secret is not read.
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

/// Whose a token is.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    service: String,
    pod: Key,
    uid: Option<String>,
}

impl Token {
    /// The pod that logged in, where the token is a sidecar's of this auth method.
    fn holder(&self, auth_method: &str) -> Option<Holder> {
        let own = self
            .auth_method
            .as_deref()?
            .eq_ignore_ascii_case(auth_method);
        let [identity] = self.service_identities.as_deref()? else {
            return None;
        };
        let meta = self.description.strip_prefix(DESCRIPTION)?;
        let meta: serde_json::Value = serde_json::from_str(meta).ok()?;
        let (namespace, name) = meta.get("pod")?.as_str()?.split_once('/')?;
        let uid = meta.get("pod-uid").and_then(serde_json::Value::as_str);
        own.then(|| Holder {
            service: identity.service_name.clone(),
            pod: Key::new(namespace, name),
            uid: uid.map(str::to_owned),
        })
    }
}

async fn list(
    servers: &Servers,
    auth_method: &str,
    service: Option<&str>,
) -> Result<Vec<Token>, ServersError> {
    let path = Path::of(["acl", "tokens"]);
    // Servers take one filter at a time; what else is asked of a token is looked at here.
    let path = match service {
        Some(service) => path.with("servicename", service),
        None => path.with("authmethod", auth_method),
    };
    let tokens: Option<Vec<Token>> = servers.get_json(&path).await?;
    Ok(tokens.unwrap_or_default())
}

async fn remove(servers: &Servers, token: &Token, holder: &Holder) -> Result<(), ServersError> {
    let path = Path::of(["acl", "token", token.accessor_id.as_str()]);
    servers.delete(&path).await?;
    tracing::info!(pod = %holder.pod, service = holder.service, "removed the token that a pod has left behind");
    Ok(())
}

/// Removes the tokens of one pod that is gone.
pub(super) async fn remove_of(
    servers: &Servers,
    auth_method: &str,
    service: &str,
    pod: &Key,
    uid: &str,
) -> Result<(), ServersError> {
    for token in list(servers, auth_method, Some(service)).await? {
        let Some(holder) = token.holder(auth_method) else {
            continue;
        };
        let same = holder.uid.as_deref().is_none_or(|own| own == uid);
        if holder.pod == *pod && holder.service == service && same {
            remove(servers, &token, &holder).await?;
        }
    }
    Ok(())
}

/// Removes all tokens whose pods are gone. `live` are pods that are known to exist; the API server is
/// asked for all others.
pub(super) async fn sweep(
    servers: &Servers,
    client: &Client,
    auth_method: &str,
    live: &std::collections::BTreeMap<Key, String>,
    lead: &Lead,
) -> anyhow::Result<()> {
    for token in list(servers, auth_method, None).await? {
        let Some(holder) = token.holder(auth_method) else {
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
            remove(servers, &token, &holder).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_sidecars_token_has_a_holder() {
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
