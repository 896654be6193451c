//! Flags for the policies and identities of a token or role, and their form in the API.

use anyhow::{Context, bail, ensure};
use clap::Args;
use legate_model::hcl;
use serde_json::{Value, json};

use super::ids::{policy_id, role_id};
use crate::input;
use crate::output::text;
use crate::server_api::Api;

/// Policies and identities.
#[derive(Args, Default)]
pub(super) struct Links {
    /// Id of a policy, or a unique prefix; may be repeated
    #[arg(long, value_name = "ID")]
    pub(super) policy_id: Vec<String>,
    /// Name of a policy; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) policy_name: Vec<String>,
    /// Service identity; may be repeated
    #[arg(long, value_name = "NAME[:DATACENTERS]")]
    pub(super) service_identity: Vec<String>,
    /// Node identity; may be repeated
    #[arg(long, value_name = "NAME:DATACENTER")]
    pub(super) node_identity: Vec<String>,
    /// Variable of a templated policy; may be repeated
    #[arg(long, value_name = "NAME:VALUE")]
    pub(super) var: Vec<String>,
}

impl Links {
    pub(super) fn is_empty(&self) -> bool {
        self.policy_id.is_empty()
            && self.policy_name.is_empty()
            && self.service_identity.is_empty()
            && self.node_identity.is_empty()
    }
}

/// Templated policies of a new token or role.
#[derive(Args, Default)]
pub(super) struct Templates {
    /// Name of a templated policy, such as builtin/service
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(super) templated_policy: String,
    /// File with templated policies, in HCL or JSON
    #[arg(long, default_value = "", value_name = "FILE")]
    pub(super) templated_policy_file: String,
}

/// Changes of the templated policies of an existing token or role.
#[derive(Args)]
pub(super) struct ChangedTemplates {
    /// Name of a templated policy to add
    #[arg(long, default_value = "", value_name = "NAME")]
    append_templated_policy: String,
    /// Name of a templated policy that replaces all others
    #[arg(long, default_value = "", value_name = "NAME")]
    replace_templated_policy: String,
    /// File with templated policies to add
    #[arg(long, default_value = "", value_name = "FILE")]
    append_templated_policy_file: String,
    /// File with templated policies that replace all others
    #[arg(long, default_value = "", value_name = "FILE")]
    replace_templated_policy_file: String,
}

impl ChangedTemplates {
    /// Applies the changes to a token or role.
    pub(super) fn apply(&self, to: &mut Value, variables: &[String]) -> anyhow::Result<()> {
        let some = |name: &str, file: &str| !name.is_empty() || !file.is_empty();
        let (name, file) = (
            &self.replace_templated_policy,
            &self.replace_templated_policy_file,
        );
        let (added, added_file) = (
            &self.append_templated_policy,
            &self.append_templated_policy_file,
        );
        ensure!(
            !(some(name, file) && some(added, added_file)),
            "Cannot combine the use of -append-templated-policy flags with \
             replace-templated-policy. To set or overwrite existing templated policies, use \
             -replace-templated-policy or -replace-templated-policy-file. To append to existing \
             templated policies, use -append-templated-policy or -append-templated-policy-file."
        );
        if some(name, file) {
            to["TemplatedPolicies"] = templated_policies(name, file, variables)?.into();
        } else {
            let added = templated_policies(added, added_file, variables)?;
            for policy in added {
                push(to, "TemplatedPolicies", policy);
            }
        }
        Ok(())
    }
}

/// Adds an element to a list, which may be absent.
pub(super) fn push(to: &mut Value, field: &str, element: Value) {
    match to[field].as_array_mut() {
        Some(list) => list.push(element),
        None => to[field] = json!([element]),
    }
}

/// Links to policies, by id and by name.
pub(super) async fn policies(
    api: &Api,
    ids: &[String],
    names: &[String],
) -> anyhow::Result<Vec<Value>> {
    let mut links: Vec<Value> = names.iter().map(|name| json!({"Name": name})).collect();
    for id in ids {
        let whole = policy_id(api, id).await;
        let whole = whole.with_context(|| format!("Error resolving policy ID {id}"))?;
        links.push(json!({"ID": whole}));
    }
    Ok(links)
}

/// Links to roles, by id and by name.
pub(super) async fn roles(
    api: &Api,
    ids: &[String],
    names: &[String],
) -> anyhow::Result<Vec<Value>> {
    let mut links: Vec<Value> = names.iter().map(|name| json!({"Name": name})).collect();
    for id in ids {
        let whole = role_id(api, id).await;
        let whole = whole.with_context(|| format!("Error resolving role ID {id}"))?;
        links.push(json!({"ID": whole}));
    }
    Ok(links)
}

/// `NAME` or `NAME:DATACENTER,DATACENTER`.
pub(super) fn service_identities(given: &[String]) -> anyhow::Result<Vec<Value>> {
    let of = |text: &String| match text.split(':').collect::<Vec<_>>().as_slice() {
        [name] => Ok(json!({"ServiceName": name})),
        [name, datacenters] => Ok(json!({
            "ServiceName": name,
            "Datacenters": datacenters.split(',').collect::<Vec<_>>(),
        })),
        _ => bail!("Malformed -service-identity argument: {text:?}"),
    };
    given.iter().map(of).collect()
}

/// `NAME:DATACENTER`.
pub(super) fn node_identities(given: &[String]) -> anyhow::Result<Vec<Value>> {
    let of = |text: &String| match text.split(':').collect::<Vec<_>>().as_slice() {
        [name, datacenter] => Ok(json!({"NodeName": name, "Datacenter": datacenter})),
        _ => bail!("Malformed -node-identity argument: {text:?}"),
    };
    given.iter().map(of).collect()
}

/// The templated policies of the flags and of a file.
pub(super) fn templated_policies(
    name: &str,
    file: &str,
    variables: &[String],
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
        let given = ["web".to_owned(), "db:dc1,dc2".to_owned()];
        let identities = service_identities(&given).unwrap();
        assert_eq!(
            identities,
            [
                json!({"ServiceName": "web"}),
                json!({"ServiceName": "db", "Datacenters": ["dc1", "dc2"]})
            ]
        );
        assert!(service_identities(&["a:b:c".to_owned()]).is_err());
        assert!(node_identities(&["n".to_owned()]).is_err());
    }

    #[test]
    fn templates_come_from_flags_and_files() {
        let variables = ["name:api".to_owned()];
        let policies = templated_policies("builtin/service", "", &variables).unwrap();
        let expected =
            json!({"TemplateName": "builtin/service", "TemplateVariables": {"Name": "api"}});
        assert_eq!(policies, std::slice::from_ref(&expected));
        let file = "TemplatedPolicy \"builtin/service\" { Name = \"api\" }\n\
                    TemplatedPolicy \"builtin/dns\" {}";
        let policies = of_file(file).unwrap();
        assert_eq!(policies, [expected, json!({"TemplateName": "builtin/dns"})]);
    }
}
