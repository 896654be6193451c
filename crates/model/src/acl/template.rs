//! Templated policies: built-in rule templates for a name. Service and node identities are expanded
//! with two of them.

use serde::{Deserialize, Serialize};

use crate::acl::identity::{NodeIdentity, ServiceIdentity};
use crate::acl::policy::Policy;
use crate::invalid::Invalid;
use crate::name;

/// Placeholder of the name in a template.
const NAME: &str = "{{.Name}}";

/// The JSON schema of variables with a name; Consul's text.
const NAME_SCHEMA: &str = "{\n\t\"type\": \"object\",\n\t\"properties\": {\n\t\t\"name\": { \"type\": \"string\", \"$ref\": \"#/definitions/min-length-one\" }\n\t},\n\t\"required\": [\"name\"],\n\t\"definitions\": {\n\t\t\"min-length-one\": {\n\t\t\t\t\"type\": \"string\",\n\t\t\t\t\"minLength\": 1\n\t\t}\n\t}\n}";

/// The FNV-1a hash of the empty input, the suffix of the template ids in Consul.
const EMPTY_FNV: &str = "6c62272e07bb014262b821756295c58d";

/// A rule template as the API returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Template {
    /// Id of the template; the API does not return it.
    #[serde(skip)]
    id: &'static str,
    /// Name that tokens refer to.
    #[serde(rename = "TemplateName")]
    pub name: &'static str,
    /// The JSON schema of its variables; empty when it has none.
    pub schema: &'static str,
    /// The rules, with the placeholder `{{.Name}}`.
    pub template: &'static str,
    /// Free text for operators; not interpreted.
    pub description: &'static str,
}

/// Every template of Consul 1.21, sorted by name.
pub const TEMPLATES: [Template; 6] = [
    Template {
        id: "00000000-0000-0000-0000-000000000008",
        name: "builtin/api-gateway",
        schema: NAME_SCHEMA,
        template: "mesh = \"read\"\nnode_prefix \"\" {\n\tpolicy = \"read\"\n}\nservice_prefix \"\" {\n\tpolicy = \"read\"\n}\nservice \"{{.Name}}\" {\n\tpolicy = \"write\"\n}",
        description: "Gives the token or role permissions for a Consul api gateway",
    },
    Template {
        id: "00000000-0000-0000-0000-000000000005",
        name: "builtin/dns",
        schema: "",
        template: "\nnode_prefix \"\" {\n\tpolicy = \"read\"\n}\nservice_prefix \"\" {\n\tpolicy = \"read\"\n}\nquery_prefix \"\" {\n\tpolicy = \"read\"\n}",
        description: "Gives the token or role permissions for the Consul DNS to query services in the network.",
    },
    NODE,
    Template {
        id: "00000000-0000-0000-0000-000000000009",
        name: "builtin/nomad-client",
        schema: "",
        template: "agent_prefix \"\" {\n  policy = \"read\"\n}\nnode_prefix \"\" {\n  policy = \"read\"\n}\nservice_prefix \"\" {\n  policy = \"write\"\n}\nkey_prefix \"\" {\n  policy = \"read\"\n}",
        description: "Gives the token or role permissions required for integration with a nomad client.",
    },
    Template {
        id: "00000000-0000-0000-0000-000000000006",
        name: "builtin/nomad-server",
        schema: "",
        template: "\nacl = \"write\"\nagent_prefix \"\" {\n  policy = \"read\"\n}\nnode_prefix \"\" {\n  policy = \"read\"\n}\nservice_prefix \"\" {\n  policy = \"write\"\n}",
        description: "Gives the token or role permissions required for integration with a nomad server.",
    },
    SERVICE,
];

const NODE: Template = Template {
    id: "00000000-0000-0000-0000-000000000004",
    name: "builtin/node",
    schema: NAME_SCHEMA,
    template: "\nnode \"{{.Name}}\" {\n\tpolicy = \"write\"\n}\nservice_prefix \"\" {\n\tpolicy = \"read\"\n}",
    description: "Gives the token or role permissions for a register an agent/node into the catalog. A node is typically a consul agent but can also be a physical server, cloud instance or a container.",
};

const SERVICE: Template = Template {
    id: "00000000-0000-0000-0000-000000000003",
    name: "builtin/service",
    schema: NAME_SCHEMA,
    template: "\nservice \"{{.Name}}\" {\n\tpolicy = \"write\"\n}\nservice \"{{.Name}}-sidecar-proxy\" {\n\tpolicy = \"write\"\n}\nservice_prefix \"\" {\n\tpolicy = \"read\"\n}\nnode_prefix \"\" {\n\tpolicy = \"read\"\n}",
    description: "Gives the token or role permissions to register a service and discover services in the Consul catalog. It also gives the specified service's sidecar proxy the permission to discover and route traffic to other services.",
};

impl Template {
    /// The template with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        TEMPLATES.into_iter().find(|template| template.name == name)
    }

    /// Whether it requires a name.
    pub fn needs_name(&self) -> bool {
        !self.schema.is_empty()
    }

    /// Expands the template for a name.
    fn policy(&self, name: &str, datacenters: &[String]) -> Policy {
        let rules = self.template.replace(NAME, name);
        let mut id: String = rules.bytes().map(|byte| format!("{byte:02x}")).collect();
        id += EMPTY_FNV;
        Policy {
            name: format!("synthetic-policy-{id}"),
            id,
            description: format!(
                "synthetic policy generated from templated policy: {}",
                self.name
            ),
            rules,
            datacenters: datacenters.to_vec(),
            ..Policy::default()
        }
    }
}

/// Variables of a templated policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateVariables {
    /// The service or node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A template with its variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TemplatedPolicy {
    /// The template's id, derived from its name.
    #[serde(rename = "TemplateID", skip_serializing_if = "String::is_empty")]
    pub template_id: String,
    /// Name of the template.
    pub template_name: String,
    /// Values of the template's variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_variables: Option<TemplateVariables>,
    /// Datacenters in which it is valid; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

impl TemplatedPolicy {
    fn name(&self) -> &str {
        let variables = self.template_variables.as_ref();
        variables.map_or("", |variables| variables.name.as_str())
    }

    /// Whether it uses the node template.
    pub(crate) fn is_of_node(&self) -> bool {
        self.template_name == NODE.name
    }

    /// What it contributes to the content hash.
    pub(crate) fn hashed(&self) -> impl Iterator<Item = &str> {
        let own = [&*self.template_id, &*self.template_name, self.name()];
        own.into_iter()
            .chain(self.datacenters.iter().map(String::as_str))
    }

    /// Sets the template's id.
    pub(crate) fn normalize(&mut self) {
        if let Some(template) = Template::by_name(&self.template_name) {
            template.id.clone_into(&mut self.template_id);
        }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first invalid field.
    pub fn validate(&self) -> Result<(), Invalid> {
        let template = Template::by_name(&self.template_name).ok_or_else(|| {
            Invalid::new(
                "TemplateName",
                format!(
                    "no such ACL templated policy with Name {:?}; there are {}",
                    self.template_name,
                    TEMPLATES.map(|template| template.name).join(", ")
                ),
            )
        })?;
        let known = self.template_id.is_empty() || self.template_id == template.id;
        if !known {
            return Err(Invalid::new(
                "TemplateID",
                format!("{} has the id {}; leave it out", template.name, template.id),
            ));
        }
        for (i, datacenter) in self.datacenters.iter().enumerate() {
            name::validate_datacenter(datacenter)
                .map_err(|error| Invalid::new(format!("Datacenters[{i}]"), error.to_string()))?;
        }
        if !template.needs_name() {
            return Ok(());
        }
        // Names are inserted into quoted strings of every template: they must not be able to end
        // them.
        name::validate_identity_name(self.name())
            .map_err(|error| Invalid::new("TemplateVariables.name", error.to_string()))
    }

    /// The policy that it expands to, or `None` when the template does not exist.
    pub fn policy(&self) -> Option<Policy> {
        let template = Template::by_name(&self.template_name)?;
        Some(template.policy(self.name(), &self.datacenters))
    }
}

impl ServiceIdentity {
    /// The policy that it expands to.
    pub fn policy(&self) -> Policy {
        SERVICE.policy(&self.service_name, &self.datacenters)
    }
}

impl NodeIdentity {
    /// The policy that it expands to.
    pub fn policy(&self) -> Policy {
        NODE.policy(&self.node_name, std::slice::from_ref(&self.datacenter))
    }
}
