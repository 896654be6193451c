//! Flags for the policies, roles and identities of a token or role, and their form in the API.

use anyhow::{Context, bail, ensure};
use legate_model::hcl;
use serde_json::{Value, json};

use super::noun::{Noun, put};
use super::table::{
    Flag, Given,
    Takes::{Many, Text},
};
use super::{policy, role};
use crate::input;
use crate::output::text;
use crate::server_api::Api;

/// Policies and identities.
#[rustfmt::skip] // One row a line.
pub(super) const LINKS: &[Flag] = &[
    ("policy-id", Many("ID"), "Id of a policy, or a unique prefix; may be repeated"),
    ("policy-name", Many("NAME"), "Name of a policy; may be repeated"),
    ("service-identity", Many("NAME[:DATACENTERS]"), "Service identity; may be repeated"),
    ("node-identity", Many("NAME:DATACENTER"), "Node identity; may be repeated"),
    ("var", Many("NAME:VALUE"), "Variable of a templated policy; may be repeated"),
];

#[rustfmt::skip] // One row a line.
pub(super) const ROLES: &[Flag] = &[
    ("role-id", Many("ID"), "Id of a role, or a unique prefix; may be repeated"),
    ("role-name", Many("NAME"), "Name of a role; may be repeated"),
];

/// Templated policies of a new token or role.
#[rustfmt::skip] // One row a line.
pub(super) const TEMPLATES: &[Flag] = &[
    ("templated-policy", Text("NAME"), "Name of a templated policy, such as builtin/service"),
    ("templated-policy-file", Text("FILE"), "File with templated policies, in HCL or JSON"),
];

/// Changes of the templated policies of an existing token or role.
#[rustfmt::skip] // One row a line.
pub(super) const CHANGED_TEMPLATES: &[Flag] = &[
    ("append-templated-policy", Text("NAME"), "Name of a templated policy to add"),
    ("replace-templated-policy", Text("NAME"), "Name of a templated policy that replaces all others"),
    ("append-templated-policy-file", Text("FILE"), "File with templated policies to add"),
    ("replace-templated-policy-file", Text("FILE"), "File with templated policies that replace all others"),
];

/// Refuses a new token or role without links.
pub(super) fn check(given: &Given, noun: &str, missing: &'static str) -> anyhow::Result<()> {
    let (template, file) = templates(given, "");
    let links = LINKS
        .iter()
        .chain(ROLES)
        .filter(|(flag, ..)| *flag != "var");
    let mut links = links.flat_map(|(flag, ..)| given.all(flag));
    ensure!(
        links.next().is_some() || !template.is_empty() || !file.is_empty(),
        missing
    );
    ensure!(
        template.is_empty() || file.is_empty(),
        "Cannot combine the use of templated-policy flag with templated-policy-file. To create a \
         {noun} with a single templated policy and simple use case, use -templated-policy. For \
         multiple templated policies and more complicated use cases, use -templated-policy-file"
    );
    Ok(())
}

/// Sets the links of a new token or role.
pub(super) async fn set(api: &Api, given: &Given, to: &mut Value) -> anyhow::Result<()> {
    for field in ["Policies", "Roles", "ServiceIdentities", "NodeIdentities"] {
        let links = of(api, given, "", field).await?;
        if !links.is_empty() {
            to[field] = links.into();
        }
    }
    to["TemplatedPolicies"] = templated_policies(given, "")?.into();
    Ok(())
}

/// The links of a field, from the flags with a prefix.
pub(super) async fn of(
    api: &Api,
    given: &Given,
    prefix: &str,
    field: &str,
) -> anyhow::Result<Vec<Value>> {
    match field {
        "Policies" => linked(api, given, prefix, &policy::NOUN).await,
        "Roles" => linked(api, given, prefix, &role::NOUN).await,
        "ServiceIdentities" => {
            let given = given.all(&format!("{prefix}service-identity"));
            given.into_iter().map(service_identity).collect()
        }
        _ => {
            let given = given.all(&format!("{prefix}node-identity"));
            given.into_iter().map(node_identity).collect()
        }
    }
}

/// Links to policies or roles, by name and by id.
async fn linked(api: &Api, given: &Given, prefix: &str, noun: &Noun) -> anyhow::Result<Vec<Value>> {
    let what = noun.command;
    let names = given.all(&format!("{prefix}{what}-name")).into_iter();
    let mut links: Vec<Value> = names.map(|name| json!({"Name": name})).collect();
    for id in given.all(&format!("{prefix}{what}-id")) {
        let whole = noun.whole_id(api, id).await;
        let whole = whole.with_context(|| format!("Error resolving {what} ID {id}"))?;
        links.push(json!({"ID": whole}));
    }
    Ok(links)
}

/// Whether a list has the link, by id or by name.
pub(super) fn is_linked(links: &[Value], link: &Value) -> bool {
    let is_same = |known: &Value| {
        let is_same = |key: &str| !link[key].is_null() && link[key] == known[key];
        is_same("ID") || is_same("Name")
    };
    links.iter().any(is_same)
}

/// `NAME` or `NAME:DATACENTER,DATACENTER`.
fn service_identity(given: &str) -> anyhow::Result<Value> {
    match given.split(':').collect::<Vec<_>>().as_slice() {
        [name] => Ok(json!({"ServiceName": name})),
        [name, datacenters] => Ok(json!({
            "ServiceName": name,
            "Datacenters": datacenters.split(',').collect::<Vec<_>>(),
        })),
        _ => bail!("Malformed -service-identity argument: {given:?}"),
    }
}

/// `NAME:DATACENTER`.
fn node_identity(given: &str) -> anyhow::Result<Value> {
    match given.split(':').collect::<Vec<_>>().as_slice() {
        [name, datacenter] => Ok(json!({"NodeName": name, "Datacenter": datacenter})),
        _ => bail!("Malformed -node-identity argument: {given:?}"),
    }
}

/// The templated policy and the file of the flags with a prefix.
fn templates<'g>(given: &'g Given, prefix: &str) -> (&'g str, &'g str) {
    let of = |rest: &str| given.text(&format!("{prefix}templated-policy{rest}"));
    (of(""), of("-file"))
}

/// Adds or replaces the templated policies of an existing token or role.
pub(super) fn change_templates(given: &Given, of: &mut Value) -> anyhow::Result<()> {
    let is_set = |prefix| templates(given, prefix) != ("", "");
    ensure!(
        !(is_set("replace-") && is_set("append-")),
        "Cannot combine the use of -append-templated-policy flags with \
         replace-templated-policy. To set or overwrite existing templated policies, use \
         -replace-templated-policy or -replace-templated-policy-file. To append to existing \
         templated policies, use -append-templated-policy or -append-templated-policy-file."
    );
    let field = "TemplatedPolicies";
    if is_set("replace-") {
        of[field] = templated_policies(given, "replace-")?.into();
    }
    for policy in templated_policies(given, "append-")? {
        put(of, field, policy, |_| false);
    }
    Ok(())
}

/// The templated policies of the flags with a prefix.
fn templated_policies(given: &Given, prefix: &str) -> anyhow::Result<Vec<Value>> {
    let (name, file) = templates(given, prefix);
    all_templated_policies(name, file, &given.all("var"))
}

/// The templated policies of a name with its variables, and of a file.
pub(super) fn all_templated_policies(
    name: &str,
    file: &str,
    variables: &[&str],
) -> anyhow::Result<Vec<Value>> {
    let mut policies = Vec::new();
    if !name.is_empty() {
        let mut policy = json!({"TemplateName": name});
        for variable in variables {
            let parts = variable
                .split_once(':')
                .filter(|(_, value)| !value.contains(':'));
            let (key, value) = parts.with_context(|| {
                format!("malformed -var argument: {variable:?}, expecting VariableName:Value")
            })?;
            // The only variable that exists.
            if key.eq_ignore_ascii_case("name") {
                policy["TemplateVariables"] = json!({"Name": value});
            }
        }
        policies.push(policy);
    }
    if !file.is_empty() {
        let content = input::text_or_file(&format!("@{file}"))?;
        policies.extend(of_file(&content)?);
    }
    Ok(policies)
}

/// Parses one or more blocks such as `TemplatedPolicy "builtin/service" { Name = "web" }`.
fn of_file(content: &str) -> anyhow::Result<Vec<Value>> {
    let content = hcl::to_json(content)?;
    let mut policies = Vec::new();
    for by_name in each(&content["TemplatedPolicy"]) {
        for (name, all) in by_name.as_object().into_iter().flatten() {
            for variables in each(all) {
                let mut policy = json!({"TemplateName": name});
                let value = text(variables, "Name");
                if !value.is_empty() {
                    policy["TemplateVariables"] = json!({"Name": value});
                }
                policies.push(policy);
            }
        }
    }
    Ok(policies)
}

/// The elements of a list; a value that is not a list counts as its only element.
fn each(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Null => Vec::new(),
        one => vec![one],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_have_their_datacenters() {
        let identities = ["web", "db:dc1,dc2"].map(|given| service_identity(given).unwrap());
        assert_eq!(
            identities,
            [
                json!({"ServiceName": "web"}),
                json!({"ServiceName": "db", "Datacenters": ["dc1", "dc2"]})
            ]
        );
        assert!(service_identity("a:b:c").is_err());
        assert!(node_identity("n").is_err());
    }

    #[test]
    fn templates_come_from_flags_and_files() {
        let policies = all_templated_policies("builtin/service", "", &["name:api"]).unwrap();
        let expected =
            json!({"TemplateName": "builtin/service", "TemplateVariables": {"Name": "api"}});
        assert_eq!(policies, std::slice::from_ref(&expected));
        let file = "TemplatedPolicy \"builtin/service\" { Name = \"api\" }\n\
                    TemplatedPolicy \"builtin/dns\" {}";
        let policies = of_file(file).unwrap();
        assert_eq!(policies, [expected, json!({"TemplateName": "builtin/dns"})]);
    }
}
