//! What the servers have to hold for logins from this cluster. Pure.

use serde_json::{Value, json};

use super::Options;

/// What the operator may do: everything that it writes for pods and custom resources, and tokens of
/// pods that are gone.
const OPERATOR_RULES: &str = r#"mesh = "write"
operator = "write"
acl = "write"
node_prefix "" {
  policy = "write"
}
service_prefix "" {
  policy    = "write"
  intentions = "write"
}
"#;

/// By this description an object is known as one of this program's.
pub(super) const DESCRIPTION: &str = "Made by legate-k8s acl-init";

/// Who reviews tokens on behalf of the servers.
pub(super) struct Reviewer {
    /// PEM of the API server's authority.
    pub(super) ca: String,
    /// The token of its service account.
    pub(super) token: legate_model::Secret,
}

/// Everything that the servers have to hold.
pub(super) struct Objects {
    pub(super) policy: Value,
    /// Linked to the policy by its name.
    pub(super) role: Value,
    /// An auth method and its rule, for each kind of login.
    pub(super) logins: [(Value, Value); 2],
}

impl Objects {
    pub(super) fn new(options: &Options, reviewer: &Reviewer) -> Objects {
        let full = &options.full_name;
        let policy = format!("{full}-operator-acl-policy");
        let role = format!("{full}-operator-acl-role");
        let pods = format!("{full}-k8s-auth-method");
        let components = format!("{full}-k8s-component-auth-method");
        let method = |name: &str| {
            json!({
                "Name": name,
                "Type": "kubernetes",
                "Description": DESCRIPTION,
                "Config": {
                    "Host": options.kubernetes_host,
                    "CACert": reviewer.ca,
                    "ServiceAccountJWT": reviewer.token.expose(),
                },
            })
        };
        let rule = |method: &str, selector: &str, kind: &str, name: &str| {
            json!({
                "AuthMethod": method,
                "Description": DESCRIPTION,
                "Selector": selector,
                "BindType": kind,
                "BindName": name,
            })
        };
        let operator = format!("serviceaccount.name==\"{full}-operator\"");
        let as_service = rule(
            &pods,
            &options.binding_rule_selector,
            "service",
            "${serviceaccount.name}",
        );
        Objects {
            policy: json!({
                "Name": policy,
                "Description": DESCRIPTION,
                "Rules": OPERATOR_RULES,
            }),
            role: json!({
                "Name": role,
                "Description": DESCRIPTION,
                "Policies": [{"Name": policy}],
            }),
            logins: [
                (method(&pods), as_service),
                (
                    method(&components),
                    rule(&components, &operator, "role", &role),
                ),
            ],
        }
    }
}

/// Whether an object that a server holds says what is wanted. Fields that are not wanted are the
/// server's own; of links the names count.
pub(super) fn says(held: &Value, wanted: &Value) -> bool {
    match (held, wanted) {
        (Value::Object(held), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            let held = held.get(name).unwrap_or(&Value::Null);
            says(held, wanted)
        }),
        (Value::Array(held), Value::Array(wanted)) => {
            held.len() == wanted.len() && held.iter().zip(wanted).all(|(a, b)| says(a, b))
        }
        (held, wanted) => held == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_adds_makes_no_difference() {
        let wanted = json!({"Name": "r", "Policies": [{"Name": "p"}]});
        let same = json!({"ID": "1", "Name": "r", "Policies": [{"ID": "2", "Name": "p"}]});
        assert!(says(&same, &wanted));
        for other in [
            json!({"Name": "r"}),
            json!({"Name": "r", "Policies": []}),
            json!({"Name": "r", "Policies": [{"Name": "q"}]}),
            json!({"Name": "r", "Policies": [{"Name": "p"}, {"Name": "q"}]}),
        ] {
            assert!(!says(&other, &wanted), "{other}");
        }
    }
}
