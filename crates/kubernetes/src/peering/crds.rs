//! The CustomResourceDefinitions of the two kinds, from their types.

use serde_json::{Value, json};

use super::kinds::{Kind, Spec};
use super::status::Status;
use crate::config::crds::{Names, columns, custom_resource};
use crate::config::schema::{RULES, structural};

/// The CustomResourceDefinition of a kind.
#[must_use]
pub fn definition(kind: Kind) -> Value {
    let description = match kind {
        Kind::Acceptor => {
            "Peers this cluster with another one, which uses a token that is made here."
        }
        Kind::Dialer => "Peers this cluster with another one, whose token is used here.",
    };
    let schema = json!({
        "type": "object",
        "description": description,
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": structural(<Spec as schemars::JsonSchema>::json_schema),
            "status": structural(<Status as schemars::JsonSchema>::json_schema),
        },
        "required": ["spec"],
        // Names of resources are letters, digits, '-' and '.' already.
        RULES: [{
            "rule": "size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",
            "message": "the name is that of the peer: at most 63 lower-case letters, digits and '-'",
        }],
    });
    let names = Names {
        kind: kind.as_str(),
        plural: kind.plural(),
        short: Some(kind.short_name()),
    };
    custom_resource(&names, columns("peering", "established"), &schema)
}
