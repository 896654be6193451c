//! Access control: tokens, what they permit, and how logins become tokens.

mod auth_method;
mod authorizer;
mod binding_rule;
mod interpolation;
mod jwt;
mod selector;
mod token;
mod variables;

pub use auth_method::{AuthMethod, TokenLocality};
pub use authorizer::{Authorizer, DefaultPolicy};
pub use binding_rule::{BindError, BindType, BindingRule, Bindings, bind};
pub use interpolation::{InterpolationError, interpolate};
pub use jwt::{ClaimError, JwtAlgorithm, JwtConfig};
pub use selector::{Selector, SelectorError};
pub use token::{
    ANONYMOUS_ACCESSOR, ANONYMOUS_SECRET, GLOBAL_MANAGEMENT, GLOBAL_MANAGEMENT_ID, NodeIdentity,
    PolicyLink, ServiceIdentity, Token,
};
pub use variables::Variables;
