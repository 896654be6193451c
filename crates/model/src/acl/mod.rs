//! Access control: tokens, policies and roles, the permissions that they grant, and how logins create
//! tokens.

mod auth_method;
mod authorizer;
mod binding_rule;
mod hash;
mod identity;
mod interpolation;
mod jwt;
mod kubernetes;
mod links;
mod method_config;
mod owned;
mod policy;
mod resource;
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
pub use identity::{NodeIdentity, ServiceIdentity};
pub use interpolation::{InterpolationError, interpolate};
pub use jwt::{ClaimError, JwtAlgorithm, JwtConfig, KeySource, Location};
pub use kubernetes::{KubernetesConfig, SERVICE_NAME_ANNOTATION, ServiceAccount};
pub use owned::Owned;
pub use policy::{
    GLOBAL_MANAGEMENT, GLOBAL_MANAGEMENT_ID, GLOBAL_READ_ONLY, GLOBAL_READ_ONLY_ID,
    NAMESPACE_MANAGEMENT, Policy, PolicyLink,
};
pub use resource::{Access, Names, Resource};
pub use role::Role;
pub use rules::{InvalidRules, Rule, Rules};
pub use scope::{Scope, Tenants};
pub use template::{TEMPLATES, Template, TemplateVariables, TemplatedPolicy};
pub use token::{ANONYMOUS_ACCESSOR, ANONYMOUS_SECRET, RoleLink, Token};
pub use variables::Variables;
