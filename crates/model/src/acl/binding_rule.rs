//! Binding rules: the policies, roles and identities that a login's token is linked to.

use serde::{Deserialize, Serialize};

use crate::acl::identity::{NodeIdentity, ServiceIdentity};
use crate::acl::interpolation::{InterpolationError, interpolate};
use crate::acl::selector;
use crate::acl::template::{TemplateVariables, TemplatedPolicy};
use crate::acl::variables::Variables;
use crate::invalid::Invalid;
use crate::name;
use crate::tenancy::TenancyName;

/// Kind of link that a rule adds to a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BindType {
    /// A service identity.
    #[default]
    Service,
    /// A node identity in the login's datacenter.
    Node,
    /// The policy with this name, if it exists at the time of the login.
    Policy,
    /// The role with this name, if it exists at the time of the login.
    Role,
    /// A templated policy.
    #[serde(rename = "templated-policy")]
    TemplatedPolicy,
}

/// Links the tokens of matching logins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BindingRule {
    /// UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Free text for operators; not interpreted.
    pub description: String,
    /// The auth method whose logins the rule applies to.
    pub auth_method: String,
    /// Selector over a login's variables; empty matches every login.
    pub selector: String,
    /// Kind of the link.
    pub bind_type: BindType,
    /// Name of the link's target; may contain variables as `${value.x}`. For a templated policy, the
    /// name of the template.
    pub bind_name: String,
    /// Variables of a templated policy; they may contain variables as in `bind_name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind_vars: Option<TemplateVariables>,
    /// Namespace; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// All links that the rules of an auth method add to a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bindings {
    /// Service identities, without duplicates.
    pub service_identities: Vec<ServiceIdentity>,
    /// Node identities, without duplicates.
    pub node_identities: Vec<NodeIdentity>,
    /// Templated policies, without duplicates.
    pub templated_policies: Vec<TemplatedPolicy>,
    /// Names of policies, without duplicates. Policies that do not exist are skipped.
    pub policies: Vec<String>,
    /// Names of roles, without duplicates. Roles that do not exist are skipped.
    pub roles: Vec<String>,
}

impl Bindings {
    /// Whether no rule matched; such a login is refused.
    pub fn is_empty(&self) -> bool {
        *self == Bindings::default()
    }
}

/// A rule that cannot be applied to a login.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("binding rule {rule}: {reason}")]
pub struct BindError {
    rule: String,
    reason: String,
}

impl BindingRule {
    /// Validates the rule. `known` are the variables of its auth method, whatever their values.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the first invalid field.
    pub fn validate(&self, known: &Variables) -> Result<(), Invalid> {
        if self.auth_method.is_empty() {
            return Err(Invalid::new("AuthMethod", "it must name an auth method"));
        }
        if self.bind_name.is_empty() {
            return Err(Invalid::new("BindName", "it must not be empty"));
        }
        selector::check(&self.selector, known)
            .map_err(|error| Invalid::new("Selector", error.to_string()))?;
        // Values are unknown until a login: a valid sample lets only the fixed parts be checked.
        let mut sample = known.clone();
        sample
            .values
            .values_mut()
            .for_each(|value| *value = "x".to_owned());
        if self.bind_vars.is_some() && self.bind_type != BindType::TemplatedPolicy {
            let reason = "it is for the bind type templated-policy: leave it out";
            return Err(Invalid::new("BindVars", reason));
        }
        if self.bind_type == BindType::TemplatedPolicy {
            let templated = self
                .templated_policy(&sample)
                .map_err(|error| Invalid::new("BindVars", error.to_string()))?;
            return templated.validate().map_err(|error| {
                let field = match error.path() {
                    "TemplateName" => "BindName",
                    _ => "BindVars",
                };
                Invalid::new(field, error.reason())
            });
        }
        let bound = interpolate(&self.bind_name, &sample)
            .map_err(|error: InterpolationError| Invalid::new("BindName", error.to_string()))?;
        self.validate_bound(&bound)
            .map_err(|error| Invalid::new("BindName", error.to_string()))
    }

    /// Validates the name of the link's target.
    fn validate_bound(&self, bound: &str) -> Result<(), name::InvalidName> {
        match self.bind_type {
            BindType::Service | BindType::Node => name::validate_identity_name(bound),
            BindType::Policy | BindType::Role => name::validate_auth_method(bound),
            // Template names are checked elsewhere.
            BindType::TemplatedPolicy => Ok(()),
        }
    }

    /// Builds the templated policy for a login.
    fn templated_policy(
        &self,
        variables: &Variables,
    ) -> Result<TemplatedPolicy, InterpolationError> {
        let fill = |vars: &TemplateVariables| {
            let name = interpolate(&vars.name, variables)?;
            Ok(TemplateVariables { name })
        };
        Ok(TemplatedPolicy {
            template_name: self.bind_name.clone(),
            template_variables: self.bind_vars.as_ref().map(fill).transpose()?,
            ..TemplatedPolicy::default()
        })
    }
}

/// Applies the rules of an auth method to a login.
///
/// # Errors
///
/// [`BindError`] names the rule. The login must be refused rather than granted only part of its
/// links.
pub fn bind<'a>(
    rules: impl IntoIterator<Item = &'a BindingRule>,
    variables: &Variables,
    datacenter: &str,
) -> Result<Bindings, BindError> {
    let mut bindings = Bindings::default();
    for rule in rules {
        let fail = |reason: String| BindError {
            rule: rule.id.clone(),
            reason,
        };
        let fits = selector::matches(&rule.selector, variables);
        if !fits.map_err(|error| fail(error.to_string()))? {
            continue;
        }
        if rule.bind_type == BindType::TemplatedPolicy {
            let templated = rule.templated_policy(variables);
            let templated = templated.map_err(|error| fail(error.to_string()))?;
            templated
                .validate()
                .map_err(|error| fail(error.to_string()))?;
            push_new(&mut bindings.templated_policies, templated);
            continue;
        }
        let bound =
            interpolate(&rule.bind_name, variables).map_err(|error| fail(error.to_string()))?;
        rule.validate_bound(&bound)
            .map_err(|error| fail(error.to_string()))?;
        match rule.bind_type {
            BindType::Service => push_new(
                &mut bindings.service_identities,
                ServiceIdentity {
                    service_name: bound,
                    datacenters: Vec::new(),
                },
            ),
            BindType::Node => push_new(
                &mut bindings.node_identities,
                NodeIdentity {
                    node_name: bound,
                    datacenter: datacenter.to_owned(),
                },
            ),
            BindType::Policy => push_new(&mut bindings.policies, bound),
            BindType::Role => push_new(&mut bindings.roles, bound),
            BindType::TemplatedPolicy => {}
        }
    }
    Ok(bindings)
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}
