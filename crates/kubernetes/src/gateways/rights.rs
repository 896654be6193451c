//! Lets the proxies of a gateway read config entries, which Consul's servers want a right for: a rule that
//! binds the chart's role for it to the gateway's account. Legate's servers need none.

use legate_gateway_api::Key;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::inject::Installation;
use crate::servers::{Path, Servers, ServersError};

/// The name of the role that `acl-init` makes, and of its policy. Those of the chart's gateways end differently,
/// whatever these are named.
pub(crate) fn reader(full_name: &str) -> String {
    format!("{full_name}-gateway-api-reader")
}

/// The rule of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    method: String,
    namespace: Option<String>,
    role: String,
    /// The gateway's service.
    service: String,
    /// The service account of its proxies; `None` if they have no rights any more.
    account: Option<Key>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Rule {
    #[serde(rename = "ID")]
    id: String,
    #[serde(default)]
    description: String,
}

impl Rights {
    /// The rights of a gateway; `None` without access control.
    pub(super) fn of(
        installation: &Installation,
        service: &str,
        account: Option<Key>,
    ) -> Option<Self> {
        Some(Self {
            method: installation.servers.login_auth_method.clone()?,
            namespace: installation.tenants().default_namespace(),
            role: reader(&installation.full_name),
            service: service.to_owned(),
            account,
        })
    }

    /// Makes or removes the rule.
    pub(super) async fn write(&self, servers: &Servers) -> Result<(), ServersError> {
        let namespace = self.namespace.as_deref();
        let description = format!("Made by legate-k8s for the gateway {}", self.service);
        let rules = Path::of(["acl", "binding-rules"]).with("authmethod", &self.method);
        let rules: Vec<Rule> = servers.get_json(&rules.in_namespace(namespace)).await?;
        let own = rules.iter().filter(|rule| rule.description == description);
        let own: Vec<_> = own.collect();
        let Some(account) = &self.account else {
            for rule in own {
                let path = Path::of(["acl", "binding-rule", &rule.id]);
                servers.delete(&path.in_namespace(namespace)).await?;
            }
            return Ok(());
        };
        if !own.is_empty() {
            return Ok(());
        }
        let selector = format!(
            "serviceaccount.namespace==\"{}\" and serviceaccount.name==\"{}\"",
            account.namespace, account.name
        );
        let rule = json!({
            "AuthMethod": self.method,
            "Description": description,
            "Selector": selector,
            "BindType": "role",
            "BindName": self.role,
        });
        let path = Path::of(["acl", "binding-rule"]).in_namespace(namespace);
        servers.put_json::<Value>(&path, &rule).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::servers::tests::Fake;

    fn rights(account: Option<Key>) -> Rights {
        Rights {
            method: "component".to_owned(),
            namespace: None,
            role: reader("full"),
            service: "shop--edge-legate".to_owned(),
            account,
        }
    }

    #[tokio::test]
    async fn a_gateway_has_one_rule_and_others_stay() {
        let account = Some(Key::new("shop", "edge-legate"));
        let own = json!({"ID": "1", "Description": "Made by legate-k8s for the gateway shop--edge-legate"});
        let other =
            json!({"ID": "2", "Description": "Made by legate-k8s for the gateway shop--edge"});
        for (held, account, expected) in [
            (
                json!([other]),
                account.clone(),
                vec!["PUT /v1/acl/binding-rule"],
            ),
            (json!([other, own]), account, vec![]),
            (
                json!([other, own]),
                None,
                vec!["DELETE /v1/acl/binding-rule/1"],
            ),
            (json!([other]), None, vec![]),
        ] {
            let fake = Fake::start(move |seen| match seen.method {
                Method::GET => (200, held.to_string()),
                Method::DELETE => (200, "true".to_owned()),
                _ => (200, "{}".to_owned()),
            });
            let fake = fake.await;
            rights(account).write(&fake.servers()).await.unwrap();
            let changes = fake.changes();
            let seen = changes
                .iter()
                .map(|(method, path, _)| format!("{method} {path}"));
            assert_eq!(seen.collect::<Vec<_>>(), expected);
            if let Some((_, _, body)) = changes.iter().find(|(method, ..)| method == "PUT") {
                let rule: Value = serde_json::from_str(body).unwrap();
                assert_eq!(rule["BindName"], "full-gateway-api-reader");
                assert_eq!(
                    rule["Selector"],
                    "serviceaccount.namespace==\"shop\" and serviceaccount.name==\"edge-legate\""
                );
            }
        }
    }
}
