//! Formats tokens, roles, policies and the like as Consul's command line does. Pure.

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::output::{go_time, joined, json, list, number, text};

/// A list of titles of equal width with their values.
struct Lines {
    out: String,
    indent: &'static str,
    width: usize,
}

impl Lines {
    fn new(indent: &'static str, width: usize) -> Self {
        Self {
            out: String::new(),
            indent,
            width,
        }
    }

    fn field(&mut self, title: &str, value: &str) {
        let (indent, width) = (self.indent, self.width);
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.out, "{indent}{title:width$}{value}");
    }

    /// Adds the tenant, if the server returns it.
    fn tenant(&mut self, value: &Value) {
        for (title, field) in [("Partition:", "Partition"), ("Namespace:", "Namespace")] {
            let value = text(value, field);
            if !value.is_empty() {
                self.field(title, value);
            }
        }
    }

    fn hash(&mut self, value: &Value) {
        let hash = STANDARD.decode(text(value, "Hash")).unwrap_or_default();
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        self.field("Hash:", &hash);
    }

    fn indexes(&mut self, value: &Value) {
        self.field("Create Index:", &number(value, "CreateIndex").to_string());
        self.field("Modify Index:", &number(value, "ModifyIndex").to_string());
    }
}

/// Formats a token.
pub(super) fn token(token: &Value, meta: bool) -> String {
    let mut lines = token_head(token, meta);
    links(&mut lines.out, token, "");
    lines.out
}

fn token_head(token: &Value, meta: bool) -> Lines {
    let mut lines = Lines::new("", 18);
    lines.field("AccessorID:", text(token, "AccessorID"));
    lines.field("SecretID:", text(token, "SecretID"));
    lines.tenant(token);
    lines.field("Description:", text(token, "Description"));
    lines.field(
        "Local:",
        if token["Local"] == true {
            "true"
        } else {
            "false"
        },
    );
    let method = text(token, "AuthMethod");
    if !method.is_empty() {
        let namespace = text(token, "AuthMethodNamespace");
        lines.field(
            "Auth Method:",
            &format!("{method} (Namespace: {namespace})"),
        );
    }
    lines.field("Create Time:", &go_time(text(token, "CreateTime")));
    let expires = text(token, "ExpirationTime");
    if !expires.is_empty() && !expires.starts_with("0001-") {
        lines.field("Expiration Time:", &go_time(expires));
    }
    if meta {
        lines.hash(token);
        lines.indexes(token);
    }
    lines
}

/// Formats a role.
pub(super) fn role(role: &Value, meta: bool) -> String {
    let mut lines = Lines::new("", 14);
    lines.field("ID:", text(role, "ID"));
    lines.field("Name:", text(role, "Name"));
    role_rest(lines, role, meta)
}

/// Formats a role in a list.
pub(super) fn listed_role(role: &Value, meta: bool) -> String {
    let mut lines = Lines::new("   ", 14);
    lines.out = format!("{}:\n", text(role, "Name"));
    lines.field("ID:", text(role, "ID"));
    role_rest(lines, role, meta)
}

fn role_rest(mut lines: Lines, role: &Value, meta: bool) -> String {
    lines.tenant(role);
    lines.field("Description:", text(role, "Description"));
    if meta {
        lines.hash(role);
        lines.indexes(role);
    }
    let indent = lines.indent;
    links(&mut lines.out, role, indent);
    lines.out
}

/// Formats the policies and identities of a token or role.
fn links(out: &mut String, of: &Value, indent: &str) {
    let mut section = |title: &str, field: &str, line: &dyn Fn(&Value) -> String| {
        let links = list(of, field);
        if !links.is_empty() {
            let _ = writeln!(out, "{indent}{title}:");
        }
        for link in links {
            let _ = writeln!(out, "{indent}   {}", line(link));
        }
    };
    let linked = |link: &Value| format!("{} - {}", text(link, "ID"), text(link, "Name"));
    section("Policies", "Policies", &linked);
    section("Roles", "Roles", &linked);
    section("Service Identities", "ServiceIdentities", &|identity| {
        let name = text(identity, "ServiceName");
        format!("{name} (Datacenters: {})", datacenters(identity))
    });
    section("Node Identities", "NodeIdentities", &|identity| {
        let (name, datacenter) = (text(identity, "NodeName"), text(identity, "Datacenter"));
        format!("{name} (Datacenter: {datacenter})")
    });
    section("Templated Policies", "TemplatedPolicies", &|policy| {
        let mut shown = text(policy, "TemplateName").to_owned();
        // Servers write it in lower case.
        let variables = &policy["TemplateVariables"];
        let name = match text(variables, "Name") {
            "" => text(variables, "name"),
            name => name,
        };
        if !name.is_empty() {
            let _ = write!(shown, "\n{indent}      Name: {name}");
        }
        let _ = write!(
            shown,
            "\n{indent}      Datacenters: {}",
            datacenters(policy)
        );
        shown
    });
}

fn datacenters(of: &Value) -> String {
    match list(of, "Datacenters").is_empty() {
        true => "all".to_owned(),
        false => joined(of, "Datacenters", ", "),
    }
}

/// Formats a policy.
pub(super) fn policy(policy: &Value, meta: bool) -> String {
    let mut lines = Lines::new("", 14);
    lines.field("ID:", text(policy, "ID"));
    lines.field("Name:", text(policy, "Name"));
    policy_rest(&mut lines, policy, meta);
    format!("{}Rules:\n{}", lines.out, text(policy, "Rules"))
}

/// Formats a policy in a list.
pub(super) fn listed_policy(policy: &Value, meta: bool) -> String {
    let mut lines = Lines::new("   ", 14);
    lines.out = format!("{}:\n", text(policy, "Name"));
    lines.field("ID:", text(policy, "ID"));
    policy_rest(&mut lines, policy, meta);
    lines.out
}

fn policy_rest(lines: &mut Lines, policy: &Value, meta: bool) {
    lines.tenant(policy);
    lines.field("Description:", text(policy, "Description"));
    lines.field("Datacenters:", &joined(policy, "Datacenters", ", "));
    if meta {
        lines.hash(policy);
        lines.indexes(policy);
    }
}

/// Formats an auth method.
pub(super) fn auth_method(method: &Value, meta: bool) -> String {
    let mut lines = Lines::new("", 15);
    lines.field("Name:", text(method, "Name"));
    lines.field("Type:", text(method, "Type"));
    lines.tenant(method);
    let optional = |lines: &mut Lines, field: &str| {
        let value = text(method, field);
        if !value.is_empty() && value != "0s" {
            lines.field(&format!("{field}:"), value);
        }
    };
    optional(&mut lines, "DisplayName");
    lines.field("Description:", text(method, "Description"));
    optional(&mut lines, "MaxTokenTTL");
    optional(&mut lines, "TokenLocality");
    let rules = list(method, "NamespaceRules");
    if !rules.is_empty() {
        lines.out.push_str("NamespaceRules:\n");
    }
    for rule in rules {
        lines.field("   Selector:      ", text(rule, "Selector"));
        lines.field("   BindNamespace: ", text(rule, "BindNamespace"));
    }
    if meta {
        lines.indexes(method);
    }
    format!("{}Config:\n{}", lines.out, json(&method["Config"], "  "))
}

/// Formats an auth method in a list.
pub(super) fn listed_auth_method(method: &Value, meta: bool) -> String {
    let mut lines = Lines::new("   ", 14);
    lines.out = format!("{}:\n", text(method, "Name"));
    lines.field("Type:", text(method, "Type"));
    lines.tenant(method);
    let shown = text(method, "DisplayName");
    if !shown.is_empty() {
        lines.field("DisplayName:", shown);
    }
    lines.field("Description:", text(method, "Description"));
    if meta {
        lines.indexes(method);
    }
    lines.out
}

/// Formats a binding rule.
pub(super) fn binding_rule(rule: &Value, meta: bool) -> String {
    let mut lines = Lines::new("", 14);
    lines.field("ID:", text(rule, "ID"));
    rule_rest(lines, rule, meta, "     - Name: ")
}

/// Formats a binding rule in a list.
pub(super) fn listed_binding_rule(rule: &Value, meta: bool) -> String {
    let mut lines = Lines::new("   ", 14);
    lines.out = format!("{}:\n", text(rule, "ID"));
    rule_rest(lines, rule, meta, "      - Name: ")
}

fn rule_rest(mut lines: Lines, rule: &Value, meta: bool, variable: &str) -> String {
    lines.tenant(rule);
    for (title, field) in [
        ("AuthMethod:", "AuthMethod"),
        ("Description:", "Description"),
        ("BindType:", "BindType"),
        ("BindName:", "BindName"),
    ] {
        lines.field(title, text(rule, field));
    }
    let name = match text(&rule["BindVars"], "Name") {
        "" => text(&rule["BindVars"], "name"),
        name => name,
    };
    if !name.is_empty() {
        lines.field("BindVars:", &format!("\n{variable}{name}"));
    }
    lines.field("Selector:", text(rule, "Selector"));
    if meta {
        lines.indexes(rule);
    }
    lines.out
}

/// Formats a templated policy.
pub(super) fn templated_policy(policy: &Value, meta: bool) -> String {
    let name = text(policy, "TemplateName");
    let mut lines = Lines::new("", 17);
    lines.field("Name:", name);
    lines.field("Description:", text(policy, "Description"));
    let mut out = format!("{}Input variables:", lines.out);
    let variable = match name {
        "builtin/service" => Some(("The name of the service", "api")),
        "builtin/node" => Some(("The node name", "node-1")),
        "builtin/api-gateway" => Some(("The api gateway service name", "api-gateway")),
        _ => None,
    };
    let usage = format!("Example usage:\n\tconsul acl token create -templated-policy {name}");
    let _ = match (variable, name) {
        (Some((what, example)), _) => writeln!(
            out,
            "\n\tName: String - Required - {what}.\n{usage} -var name:{example}"
        ),
        (None, "builtin/dns" | "builtin/nomad-server" | "builtin/nomad-client") => {
            writeln!(out, " None\n{usage}")
        }
        (None, _) => writeln!(out, "   None"),
    };
    if meta {
        let schema = text(policy, "Schema");
        if !schema.is_empty() {
            let _ = write!(out, "Schema:\n{schema}\n\n");
        }
        let _ = writeln!(out, "Raw Template:\n{}", text(policy, "Template"));
    }
    out
}

/// Formats a token with all its permissions and their sources.
pub(super) fn expanded_token(token: &Value, meta: bool) -> String {
    let mut out = token_head(token, meta).out;
    let policies = list(token, "ExpandedPolicies");
    let roles = list(token, "ExpandedRoles");
    expanded_links(&mut out, token, policies, "");
    let linked = list(token, "Roles");
    if !linked.is_empty() {
        out.push_str("Roles:\n");
    }
    for link in linked {
        if let Some(role) = roles.iter().find(|role| role["ID"] == link["ID"]) {
            expanded_role(&mut out, role, policies);
        }
    }
    out.push_str("=== End of Authorizer Layer 0: Token ===\n");
    expanded_defaults(&mut out, token, policies, roles);
    out.push_str(
        "=== Start of Authorizer Layer 2: Agent Configuration Defaults (Inherited) ===\n\
         Description: Defined at request-time by the agent that resolves the ACL token; other agents \
         may have different configuration defaults\n",
    );
    let _ = write!(
        out,
        "Resolved By Agent: \"{}\"\n\nDefault Policy: {}\n\tDescription: Backstop rule used if no \
         preceding layer has a matching rule (refer to default_policy option in agent \
         configuration)\n\nDown Policy: {}\n\tDescription: Defines what to do if this Token's \
         information cannot be read from the primary_datacenter (refer to down_policy option in agent \
         configuration)\n\n",
        text(token, "ResolvedByAgent"),
        text(token, "AgentACLDefaultPolicy"),
        text(token, "AgentACLDownPolicy"),
    );
    out
}

fn expanded_role(out: &mut String, role: &Value, policies: &[Value]) {
    let _ = writeln!(out, "\tRole Name: {}", text(role, "Name"));
    let _ = writeln!(out, "\t\tID: {}", text(role, "ID"));
    let _ = writeln!(out, "\t\tDescription: {}", text(role, "Description"));
    expanded_links(out, role, policies, "\t\t");
}

/// Formats the defaults that a token inherits from its namespace.
fn expanded_defaults(out: &mut String, token: &Value, policies: &[Value], roles: &[Value]) {
    let of_policies = list(token, "NamespaceDefaultPolicyIDs");
    let of_roles = list(token, "NamespaceDefaultRoleIDs");
    if of_policies.is_empty() && of_roles.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "=== Start of Authorizer Layer 1: Token Namespace\u{2019}s Defaults (Inherited) ===\n\
         Description: ACL Roles inherited by all Tokens in Namespace \"{}\"\n\n\
         Namespace Policy Defaults:\n",
        text(token, "Namespace")
    );
    for id in of_policies {
        if let Some(policy) = policies.iter().find(|policy| policy["ID"] == *id) {
            expanded_policy(out, policy, "\t");
        }
    }
    out.push_str("Namespace Role Defaults:\n");
    for id in of_roles {
        if let Some(role) = roles.iter().find(|role| role["ID"] == *id) {
            expanded_role(out, role, policies);
        }
    }
    out.push_str(
        "=== End of Authorizer Layer 1: Token Namespace\u{2019}s Defaults (Inherited) ===\n",
    );
}

fn expanded_policy(out: &mut String, policy: &Value, indent: &str) {
    let _ = writeln!(out, "{indent}Policy Name: {}", text(policy, "Name"));
    let _ = writeln!(out, "{indent}\tID: {}", text(policy, "ID"));
    let _ = writeln!(
        out,
        "{indent}\tDescription: {}",
        text(policy, "Description")
    );
    let rules = text(policy, "Rules").replace('\n', &format!("\n{indent}\t\t"));
    let _ = write!(out, "{indent}\tRules:\n{indent}\t\t{rules}\n\n");
}

fn expanded_links(out: &mut String, of: &Value, policies: &[Value], indent: &str) {
    let linked = list(of, "Policies");
    if !linked.is_empty() {
        let _ = writeln!(out, "{indent}Policies:");
    }
    for link in linked {
        if let Some(policy) = policies.iter().find(|policy| policy["ID"] == link["ID"]) {
            expanded_policy(out, policy, &format!("{indent}\t"));
        }
    }
    let mut rest = of.clone();
    for field in ["Policies", "Roles"] {
        rest[field] = Value::Null;
    }
    links(out, &rest, indent);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_lists_its_links() {
        let value = json!({
            "AccessorID": "a", "SecretID": "s", "Description": "d", "Local": false,
            "CreateTime": "2026-01-02T03:04:05Z", "Hash": "YWI=", "CreateIndex": 1, "ModifyIndex": 2,
            "Policies": [{"ID": "p", "Name": "n"}],
            "ServiceIdentities": [{"ServiceName": "web", "Datacenters": ["dc1", "dc2"]}],
            "TemplatedPolicies": [{"TemplateName": "builtin/service",
                "TemplateVariables": {"Name": "api"}}],
        });
        assert_eq!(
            token(&value, true),
            "AccessorID:       a\nSecretID:         s\nDescription:      d\nLocal:            false\n\
             Create Time:      2026-01-02 03:04:05 +0000 UTC\nHash:             6162\n\
             Create Index:     1\nModify Index:     2\nPolicies:\n   p - n\nService Identities:\n   \
             web (Datacenters: dc1, dc2)\nTemplated Policies:\n   builtin/service\n      Name: api\n      \
             Datacenters: all\n"
        );
    }

    #[test]
    fn an_expanded_token_lists_the_defaults_of_its_namespace() {
        let value = json!({
            "AccessorID": "a", "Namespace": "team", "NamespaceDefaultPolicyIDs": ["p"],
            "ExpandedPolicies": [{"ID": "p", "Name": "shared", "Rules": "acl = \"read\""}],
        });
        let shown = expanded_token(&value, false);
        let (_, layer) = shown.split_once("Layer 1").unwrap();
        assert!(layer.contains("in Namespace \"team\""), "{shown}");
        assert!(
            layer.contains("\tPolicy Name: shared\n\t\tID: p\n"),
            "{shown}"
        );
    }

    #[test]
    fn rules_of_a_policy_are_printed_verbatim() {
        let value = json!({"ID": "i", "Name": "n", "Rules": "key \"\" {}"});
        assert_eq!(
            policy(&value, false),
            "ID:           i\nName:         n\nDescription:  \nDatacenters:  \nRules:\nkey \"\" {}"
        );
    }
}
