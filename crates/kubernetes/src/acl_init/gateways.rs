//! The rights with which the chart's gateways log in: a policy and a role for each, and a rule that binds
//! the role to the gateway's service account. Pure.

use std::fmt;
use std::str::FromStr;

use legate_model::DEFAULT_TENANCY;
use serde_json::{Value, json};

use super::objects::{DESCRIPTION, component_rule};
use super::options::Options;
use crate::tenancy::Tenants;

/// What gateways read: the instances that they connect to.
const READS: &str = r#"node_prefix "" {
  policy = "read"
}
service_prefix "" {
  policy = "read"
}
"#;

/// A gateway's name, in a flag: `NAME`, or `NAME.NAMESPACE` if namespaces are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayName {
    /// Its service.
    service: String,
    /// The namespace of the mesh; `None` is `default`.
    namespace: Option<String>,
}

impl FromStr for GatewayName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (service, namespace) = match text.split_once('.') {
            Some((service, namespace)) => (service, Some(namespace)),
            None => (text, None),
        };
        // They are written into the rules of policies.
        let valid = |name: &str| {
            let inner = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            !name.is_empty() && name.chars().all(inner)
        };
        if !valid(service) || !namespace.is_none_or(valid) {
            return Err("use NAME or NAME.NAMESPACE, with letters, digits, - and _".to_owned());
        }
        Ok(GatewayName {
            service: service.to_owned(),
            namespace: namespace.map(str::to_owned),
        })
    }
}

impl fmt::Display for GatewayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.service)?;
        match &self.namespace {
            Some(namespace) => write!(f, ".{namespace}"),
            None => Ok(()),
        }
    }
}

/// The objects of one gateway.
pub(super) struct Gateway {
    pub(super) policy: Value,
    /// Refers to the policy by name.
    pub(super) role: Value,
    /// Binds the role.
    pub(super) rule: Value,
}

/// The gateways that the flags name.
pub(super) fn all(options: &Options, tenants: &Tenants) -> Vec<Gateway> {
    let peering = if options.peering {
        "peering = \"read\"\n"
    } else {
        ""
    };
    let mesh = options.mesh_gateway.iter().map(|name| {
        let rules = format!("mesh = \"write\"\n{peering}{}", rules(name, tenants));
        gateway(options, "mesh-gateway", &rules)
    });
    let others = options.ingress_gateway.iter();
    let others = others.chain(&options.terminating_gateway);
    let others = others.map(|name| gateway(options, &name.service, &rules(name, tenants)));
    mesh.chain(others).collect()
}

fn gateway(options: &Options, component: &str, rules: &str) -> Gateway {
    let name = |end: &str| options.shared_name(&format!("{component}-{end}"));
    let (policy, role) = (name("acl-policy"), name("acl-role"));
    Gateway {
        policy: json!({"Name": policy, "Description": DESCRIPTION, "Rules": rules}),
        role: json!({
            "Name": role,
            "Description": DESCRIPTION,
            "Policies": [{"Name": policy}],
        }),
        rule: component_rule(options, component, &role),
    }
}

/// Writes its own service, and reads others.
fn rules(name: &GatewayName, tenants: &Tenants) -> String {
    let own = format!(
        "service \"{}\" {{\n  policy = \"write\"\n}}\n",
        name.service
    );
    if tenants.partition().is_none() && !tenants.has_namespaces() {
        return format!("{own}{READS}");
    }
    let namespace = name.namespace.as_deref().unwrap_or(DEFAULT_TENANCY);
    let (own, reads) = (indented(&own), indented(READS));
    format!("namespace \"{namespace}\" {{\n{own}}}\nnamespace_prefix \"\" {{\n{reads}}}\n")
}

fn indented(rules: &str) -> String {
    rules.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenancy::TenancyFlags;

    #[test]
    fn a_gateway_writes_its_own_service_and_reads_others() {
        let of = |name: &str, prefix: Option<&str>| {
            let tenants = Tenants::of(&TenancyFlags {
                mirror_namespaces: prefix.map(str::to_owned),
                ..TenancyFlags::default()
            });
            let text = rules(&name.parse().unwrap(), &tenants);
            legate_model::acl::Rules::parse(&text).unwrap();
            text
        };
        let own = "service \"edge\" {\n  policy = \"write\"\n}\n";
        assert_eq!(of("edge", None), format!("{own}{READS}"));
        let within = of("edge.shop", Some(""));
        assert!(within.starts_with("namespace \"shop\" {\n  service \"edge\" {\n"));
        assert!(within.contains("  }\n}\nnamespace_prefix \"\" {\n  node_prefix \"\" {\n"));
        assert!(of("edge", Some("")).starts_with("namespace \"default\""));
    }

    #[test]
    fn names_cannot_add_rules() {
        for name in ["", "a.", ".b", "a.b.c", "a\" {}", "a b", "a\n"] {
            assert!(name.parse::<GatewayName>().is_err(), "{name:?}");
        }
    }
}
