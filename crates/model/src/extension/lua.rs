//! `builtin/lua`: runs a script on requests and responses.

use serde::{Deserialize, Serialize};

use super::direction::{Direction, validate_proxy_type};
use crate::invalid::Invalid;

/// Arguments of the extension.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Lua {
    /// `connect-proxy` or empty.
    pub proxy_type: String,
    /// Listeners that it applies to.
    pub listener: Direction,
    /// The Lua script.
    pub script: String,
}

impl Lua {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.script.is_empty() {
            return Err(Invalid::new("Script", "missing Script value"));
        }
        self.listener.require("Listener")?;
        validate_proxy_type(&self.proxy_type)
    }
}
