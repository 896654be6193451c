//! Access control: tokens, what they permit, and how logins become tokens.

mod auth_method;
mod authorizer;
mod binding_rule;
mod interpolation;
mod jwt;
mod kubernetes;
mod selector;
mod token;
mod variables;

pub use auth_method::{AuthMethod, MethodConfig, TokenLocality};
pub use authorizer::{Authorizer, DefaultPolicy};
pub use binding_rule::{BindError, BindType, BindingRule, Bindings, bind};
pub use interpolation::{InterpolationError, interpolate};
pub use jwt::{ClaimError, JwtAlgorithm, JwtConfig, KeySource, Location};
pub use kubernetes::{KubernetesConfig, SERVICE_NAME_ANNOTATION, ServiceAccount};
pub use selector::{Selector, SelectorError};
pub use token::{
    ANONYMOUS_ACCESSOR, ANONYMOUS_SECRET, GLOBAL_MANAGEMENT, GLOBAL_MANAGEMENT_ID, NodeIdentity,
    PolicyLink, ServiceIdentity, Token,
};
pub use variables::Variables;
