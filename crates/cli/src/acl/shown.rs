//! Formats tokens, roles, policies and the like as Consul's command line does. Pure.

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::output::{go_time, joined, json, list, number, text};

/// Lines of an object: titles of equal width with their values.
struct Lines<'v> {
    out: String,
    value: &'v Value,
    indent: &'static str,
    width: usize,
}

impl<'v> Lines<'v> {
    fn new(value: &'v Value, width: usize) -> Self {
        Self {
            out: String::new(),
            value,
            indent: "",
            width,
        }
    }

    /// Starts with fields. An element of a list is indented below `name`, one of them.
    fn of(value: &'v Value, width: usize, listed: bool, name: &str, fields: &[&str]) -> Self {
        let mut lines = Self::new(value, width);
        if listed {
            lines.indent = "   ";
            lines.width = 14;
            lines.out = format!("{}:\n", text(value, name));
        }
        let fields = fields.iter().filter(|field| !listed || **field != name);
        fields.for_each(|field| lines.fields(&[field]));
        lines
    }

    fn line(&mut self, title: &str, value: &str) {
        let (indent, width) = (self.indent, self.width);
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.out, "{indent}{title:width$}{value}");
    }

    /// Adds fields under their own names.
    fn fields(&mut self, names: &[&str]) {
        for name in names {
            self.line(&format!("{name}:"), text(self.value, name));
        }
    }

    /// Adds fields that servers may omit.
    fn optional(&mut self, names: &[&str]) {
        for name in names {
            match (*name, text(self.value, name)) {
                (_, "") | ("MaxTokenTTL", "0s") => {}
                _ => self.fields(&[name]),
            }
        }
    }

    /// Adds the tenant, if the server returns it.
    fn tenant(&mut self) {
        self.optional(&["Partition", "Namespace"]);
    }

    fn hash(&mut self) {
        let hash = STANDARD.decode(text(self.value, "Hash"));
        let hash = hash.unwrap_or_default().into_iter();
        let hash: String = hash.map(|byte| format!("{byte:02x}")).collect();
        self.line("Hash:", &hash);
    }

    fn indexes(&mut self) {
        for (title, field) in [
            ("Create Index:", "CreateIndex"),
            ("Modify Index:", "ModifyIndex"),
        ] {
            self.line(title, &number(self.value, field).to_string());
        }
    }
}

/// Formats a token.
pub(super) fn token(token: &Value, meta: bool) -> String {
    let mut lines = token_head(token, meta);
    links(&mut lines.out, token, "");
    lines.out
}

fn token_head(token: &Value, meta: bool) -> Lines<'_> {
    let mut lines = Lines::new(token, 18);
    lines.fields(&["AccessorID", "SecretID"]);
    lines.tenant();
    lines.fields(&["Description"]);
    lines.line("Local:", &(token["Local"] == true).to_string());
    let method = text(token, "AuthMethod");
    if !method.is_empty() {
        let namespace = text(token, "AuthMethodNamespace");
        lines.line(
            "Auth Method:",
            &format!("{method} (Namespace: {namespace})"),
        );
    }
    lines.line("Create Time:", &go_time(text(token, "CreateTime")));
    let expires = text(token, "ExpirationTime");
    if !expires.is_empty() && !expires.starts_with("0001-") {
        lines.line("Expiration Time:", &go_time(expires));
    }
    if meta {
        lines.hash();
        lines.indexes();
    }
    lines
}

/// Formats a role.
pub(super) fn role(role: &Value, meta: bool, listed: bool) -> String {
    let mut lines = named_with_id(role, listed);
    if meta {
        lines.hash();
        lines.indexes();
    }
    let indent = lines.indent;
    links(&mut lines.out, role, indent);
    lines.out
}

/// The first lines of a role or policy.
fn named_with_id(value: &Value, listed: bool) -> Lines<'_> {
    let mut lines = Lines::of(value, 14, listed, "Name", &["ID", "Name"]);
    lines.tenant();
    lines.fields(&["Description"]);
    lines
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

/// Formats a policy; in a list, without its rules.
pub(super) fn policy(policy: &Value, meta: bool, listed: bool) -> String {
    let mut lines = named_with_id(policy, listed);
    lines.line("Datacenters:", &joined(policy, "Datacenters", ", "));
    if meta {
        lines.hash();
        lines.indexes();
    }
    match listed {
        true => lines.out,
        false => format!("{}Rules:\n{}", lines.out, text(policy, "Rules")),
    }
}

/// Formats an auth method; in a list, without its configuration.
pub(super) fn auth_method(method: &Value, meta: bool, listed: bool) -> String {
    let mut lines = Lines::of(method, 15, listed, "Name", &["Name", "Type"]);
    lines.tenant();
    lines.optional(&["DisplayName"]);
    lines.fields(&["Description"]);
    if !listed {
        lines.optional(&["MaxTokenTTL", "TokenLocality"]);
        let rules = list(method, "NamespaceRules");
        if !rules.is_empty() {
            lines.out.push_str("NamespaceRules:\n");
        }
        for rule in rules {
            lines.line("   Selector:      ", text(rule, "Selector"));
            lines.line("   BindNamespace: ", text(rule, "BindNamespace"));
        }
    }
    if meta {
        lines.indexes();
    }
    match listed {
        true => lines.out,
        false => format!("{}Config:\n{}", lines.out, json(&method["Config"], "  ")),
    }
}

/// Formats a binding rule.
pub(super) fn binding_rule(rule: &Value, meta: bool, listed: bool) -> String {
    let mut lines = Lines::of(rule, 14, listed, "ID", &["ID"]);
    lines.tenant();
    lines.fields(&["AuthMethod", "Description", "BindType", "BindName"]);
    let name = match text(&rule["BindVars"], "Name") {
        "" => text(&rule["BindVars"], "name"),
        name => name,
    };
    if !name.is_empty() {
        let space = if listed { "      " } else { "     " };
        lines.line("BindVars:", &format!("\n{space}- Name: {name}"));
    }
    lines.fields(&["Selector"]);
    if meta {
        lines.indexes();
    }
    lines.out
}

/// Formats a templated policy.
pub(super) fn templated_policy(policy: &Value, meta: bool) -> String {
    let name = text(policy, "TemplateName");
    let mut lines = Lines::new(policy, 17);
    lines.line("Name:", name);
    lines.fields(&["Description"]);
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
            policy(&value, false, false),
            "ID:           i\nName:         n\nDescription:  \nDatacenters:  \nRules:\nkey \"\" {}"
        );
    }
}
