//! Access control: tokens, the policies and roles that they are linked to, what they permit, and how
//! logins become tokens.

mod auth_method;
mod authorizer;
mod binding_rule;
mod hash;
mod interpolation;
mod jwt;
mod kubernetes;
mod links;
mod owned;
mod policy;
mod role;
mod rules;
mod scope;
mod selector;
mod template;
mod token;
mod trie;
mod variables;

pub use auth_method::{AuthMethod, MethodConfig, NamespaceRule, TokenLocality};
pub use authorizer::{Authorizer, BadQuestion, DefaultPolicy};
pub use binding_rule::{BindError, BindType, BindingRule, Bindings, bind};
pub use hash::ContentHash;
pub use interpolation::{InterpolationError, interpolate};
pub use jwt::{ClaimError, JwtAlgorithm, JwtConfig, KeySource, Location};
pub use kubernetes::{KubernetesConfig, SERVICE_NAME_ANNOTATION, ServiceAccount};
pub use owned::Owned;
pub use policy::{GLOBAL_READ_ONLY, GLOBAL_READ_ONLY_ID, NAMESPACE_MANAGEMENT, Policy};
pub use role::Role;
pub use rules::{Access, InvalidRules, Names, Resource, Rule, Rules};
pub use scope::{Scope, Tenants};
pub use template::{TEMPLATES, Template, TemplateVariables, TemplatedPolicy};
pub use token::{
    ANONYMOUS_ACCESSOR, ANONYMOUS_SECRET, GLOBAL_MANAGEMENT, GLOBAL_MANAGEMENT_ID, NodeIdentity,
    PolicyLink, RoleLink, ServiceIdentity, Token,
};
pub use variables::Variables;
