//! `builtin/lua`: a script that sees requests and responses.

use serde::{Deserialize, Serialize};

use super::direction::{Direction, validate_proxy_type};
use crate::invalid::Invalid;

/// The arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Lua {
    /// `connect-proxy`, or left out.
    pub proxy_type: String,
    /// The listeners that it is for.
    pub listener: Direction,
    /// The script.
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
