//! The ACL objects that the servers need for logins from this cluster. Pure.

use serde_json::{Value, json};

use super::gateways;
use super::options::Options;
use crate::gateways::reader;
use crate::tenancy::Tenants;

/// The operator's rights on nodes: for pods, and for tokens of deleted pods.
const OF_NODES: &str = r#"node_prefix "" {
  policy = "write"
}
"#;

/// The operator's rights on services: for pods and custom resources.
const OF_SERVICES: &str = r#"service_prefix "" {
  policy    = "write"
  intentions = "write"
}
"#;

/// The rights of every pod in other namespaces. consul-k8s has the same.
const CROSS_NAMESPACE_RULES: &str = r#"namespace_prefix "" {
  service_prefix "" {
    policy = "read"
  }
  node_prefix "" {
    policy = "read"
  }
}
"#;

/// The description that marks an object as created by this program.
pub(super) const DESCRIPTION: &str = "Made by legate-k8s acl-init";

/// The service account with which the servers review tokens.
pub(super) struct Reviewer {
    /// The API server's CA as PEM.
    pub(super) ca: String,
    /// The token of its service account.
    pub(super) token: legate_model::Secret,
}

/// The rights with which secondary datacenters follow the primary, and `acl-init` writes there.
const REPLICATION_RULES: &str = r#"acl = "write"
operator = "write"
namespace_prefix "" {
  acl = "write"
}
"#;

/// All objects that the servers need.
pub(super) struct Objects {
    pub(super) policies: Vec<Value>,
    /// The policy that tokens of all namespaces get.
    pub(super) cross_namespace: Option<Value>,
    /// They refer to the policies by name.
    pub(super) roles: Vec<Value>,
    /// The objects of each kind of login.
    pub(super) logins: [Login; 2],
}

/// An auth method and its binding rules, which have different names to bind.
pub(super) struct Login {
    /// The namespace of all; `None` if namespaces are not used.
    pub(super) namespace: Option<String>,
    /// Whether all datacenters have them.
    pub(super) shared: bool,
    pub(super) method: Value,
    pub(super) rules: Vec<Value>,
}

impl Objects {
    pub(super) fn new(options: &Options, tenants: &Tenants, reviewer: &Reviewer) -> Objects {
        let full = &options.full_name;
        let policy = options.shared_name("operator-acl-policy");
        let role = options.shared_name("operator-acl-role");
        let pods = format!("{full}-k8s-auth-method");
        let mut of_pods = method(&pods, &options.kubernetes_host, reviewer);
        let secondary = options.secondary();
        let host = secondary.map_or(&*options.kubernetes_host, |one| one.kubernetes_host);
        let mut of_components = method(&component_method(options), host, reviewer);
        if secondary.is_some() {
            // Config entries and rights are written to the primary, where local tokens are not known.
            of_components["TokenLocality"] = json!("global");
        }
        if let Some(prefix) = tenants.mirror_prefix() {
            let namespace = format!("{prefix}${{serviceaccount.namespace}}");
            of_pods["NamespaceRules"] = json!([{"Selector": "", "BindNamespace": namespace}]);
        }
        let cross_namespace = tenants.cross_namespace_policy().map(|name| {
            json!({
                "Name": name,
                "Description": DESCRIPTION,
                "Rules": CROSS_NAMESPACE_RULES,
            })
        });
        let as_service = rule(
            &pods,
            &options.binding_rule_selector,
            "service",
            "${serviceaccount.name}",
        );
        let mut rules = vec![component_rule(options, "operator", &role)];
        if options.api_gateways {
            let name = "${serviceaccount.namespace}--${serviceaccount.name}";
            rules.push(rule(&component_method(options), "", "service", name));
        }
        let mut policies = vec![json!({
            "Name": policy,
            "Description": DESCRIPTION,
            "Rules": operator_rules(options.peering, tenants),
        })];
        let mut roles = vec![json!({
            "Name": role,
            "Description": DESCRIPTION,
            "Policies": [{"Name": policy}],
        })];
        if options.api_gateways {
            let (policy, role) = reader_objects(full);
            policies.push(policy);
            roles.push(role);
        }
        if options.create_replication_token {
            policies.push(json!({
                "Name": replication_policy(options),
                "Description": DESCRIPTION,
                "Rules": REPLICATION_RULES,
            }));
        }
        for gateway in gateways::all(options, tenants) {
            policies.push(gateway.policy);
            roles.push(gateway.role);
            rules.push(gateway.rule);
        }
        Objects {
            policies,
            cross_namespace,
            roles,
            logins: [
                Login {
                    namespace: tenants.login_namespace().map(str::to_owned),
                    shared: false,
                    method: of_pods,
                    rules: vec![as_service],
                },
                Login {
                    namespace: tenants.default_namespace(),
                    shared: true,
                    method: of_components,
                    rules,
                },
            ],
        }
    }
}

/// The name of the policy of the replication token.
pub(super) fn replication_policy(options: &Options) -> String {
    options.shared_name("acl-replication-acl-policy")
}

/// An auth method of the service accounts of this cluster, whose API server is at `host`.
fn method(name: &str, host: &str, reviewer: &Reviewer) -> Value {
    json!({
        "Name": name,
        "Type": "kubernetes",
        "Description": DESCRIPTION,
        "Config": {
            "Host": host,
            "CACert": reviewer.ca,
            "ServiceAccountJWT": reviewer.token.expose(),
        },
    })
}

/// The policy and the role for reading config entries, which are the same in all datacenters. The operator
/// binds the role to the accounts of gateways whose servers want it.
fn reader_objects(full_name: &str) -> (Value, Value) {
    let name = reader(full_name);
    let role = json!({
        "Name": name,
        "Description": DESCRIPTION,
        "Policies": [{"Name": name}],
    });
    let policy = json!({
        "Name": name,
        "Description": DESCRIPTION,
        "Rules": "mesh = \"read\"",
    });
    (policy, role)
}

/// The auth method of the chart's own pods.
fn component_method(options: &Options) -> String {
    options.shared_name("k8s-component-auth-method")
}

/// The rule that binds a role to the service account of a part of the chart. Accounts of that name in other
/// namespaces belong to others.
pub(super) fn component_rule(options: &Options, component: &str, role: &str) -> Value {
    let (full, namespace) = (&options.full_name, &options.namespace);
    let selector = format!(
        "serviceaccount.namespace==\"{namespace}\" and serviceaccount.name==\"{full}-{component}\""
    );
    rule(&component_method(options), &selector, "role", role)
}

fn rule(method: &str, selector: &str, kind: &str, name: &str) -> Value {
    json!({
        "AuthMethod": method,
        "Description": DESCRIPTION,
        "Selector": selector,
        "BindType": kind,
        "BindName": name,
    })
}

/// The operator's policy. If namespaces are used, the operator creates them and writes into all of them. A
/// policy in a partition applies to that partition implicitly. It cannot grant `operator`, so it grants the
/// right to create namespaces instead.
fn operator_rules(peering: bool, tenants: &Tenants) -> String {
    let peering = if peering { "peering = \"write\"\n" } else { "" };
    let (operator, makes) = match tenants.partition() {
        Some(_) => ("", "policy = \"write\"\n"),
        None => ("operator = \"write\"\n", ""),
    };
    let services = match tenants.partition().is_some() || tenants.has_namespaces() {
        true => {
            let within = format!("{makes}acl = \"write\"\n{OF_SERVICES}");
            let within: String = within.lines().map(|line| format!("  {line}\n")).collect();
            format!("namespace_prefix \"\" {{\n{within}}}\n")
        }
        false => OF_SERVICES.to_owned(),
    };
    format!("mesh = \"write\"\n{peering}{operator}acl = \"write\"\n{OF_NODES}{services}")
}

/// Whether an object of a server has all wanted values. Fields that are not in `wanted` are the server's
/// own; links are compared by name.
pub(super) fn matches(held: &Value, wanted: &Value) -> bool {
    match (held, wanted) {
        (Value::Object(held), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            let held = held.get(name).unwrap_or(&Value::Null);
            matches(held, wanted)
        }),
        (Value::Array(held), Value::Array(wanted)) => {
            held.len() == wanted.len() && held.iter().zip(wanted).all(|(a, b)| matches(a, b))
        }
        (held, wanted) => held == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenancy::TenancyFlags;

    fn rules_of(peering: bool, partition: Option<&str>, prefix: Option<&str>) -> String {
        let tenants = Tenants::of(&TenancyFlags {
            partition: partition.map(|name| name.parse().unwrap()),
            mirror_namespaces: prefix.map(str::to_owned),
            ..TenancyFlags::default()
        });
        operator_rules(peering, &tenants)
    }

    #[test]
    fn the_operator_may_write_peerings_if_there_are_some() {
        for partition in [None, Some("east")] {
            let rules = rules_of(true, partition, None);
            assert!(
                rules.starts_with("mesh = \"write\"\npeering = \"write\"\n"),
                "{rules}"
            );
            legate_model::acl::Rules::parse(&rules).unwrap();
            let without = rules_of(false, partition, None);
            assert_eq!(rules.replace("peering = \"write\"\n", ""), without);
        }
    }

    #[test]
    fn the_operators_rules_depend_on_tenancy() {
        let rules =
            |partition: Option<&str>, prefix: Option<&str>| rules_of(false, partition, prefix);
        let of_partition = r#"mesh = "write"
acl = "write"
node_prefix "" {
  policy = "write"
}
namespace_prefix "" {
  policy = "write"
  acl = "write"
  service_prefix "" {
    policy    = "write"
    intentions = "write"
  }
}
"#;
        assert_eq!(rules(Some("east"), Some("")), of_partition);
        let of_namespaces = rules(None, Some("k8s-"));
        assert!(of_namespaces.contains("\noperator = \"write\"\n"));
        assert!(of_namespaces.contains("{\n  acl = \"write\"\n  service_prefix"));
        let plain = rules(None, None);
        assert!(plain.contains("\noperator") && plain.contains("\nservice_prefix"));
        for text in [of_partition, &of_namespaces, &plain] {
            legate_model::acl::Rules::parse(text).unwrap();
        }
    }

    #[test]
    fn fields_that_the_server_adds_are_ignored() {
        let wanted = json!({"Name": "r", "Policies": [{"Name": "p"}]});
        let same = json!({"ID": "1", "Name": "r", "Policies": [{"ID": "2", "Name": "p"}]});
        assert!(matches(&same, &wanted));
        for other in [
            json!({"Name": "r"}),
            json!({"Name": "r", "Policies": []}),
            json!({"Name": "r", "Policies": [{"Name": "q"}]}),
            json!({"Name": "r", "Policies": [{"Name": "p"}, {"Name": "q"}]}),
        ] {
            assert!(!matches(&other, &wanted), "{other}");
        }
    }
}
