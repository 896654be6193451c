//! The rules of authorisation.

use super::core::STRING_MATCHER;
use crate::decode::table::{Enum, Field, Kind, Message};

pub(in crate::decode) static RBAC_FILTER: Message = Message {
    name: "envoy.extensions.filters.network.rbac.v3.RBAC",
    fields: &[
        Field::served(1, "rules", Kind::Message(&RBAC)),
        Field::served(3, "stat_prefix", Kind::String),
        Field::served(4, "enforcement_type", Kind::Enum(&ENFORCEMENT_TYPE)),
    ],
    refused: &[
        (2, "shadow_rules"),
        (5, "shadow_rules_stat_prefix"),
        (6, "matcher"),
        (7, "shadow_matcher"),
        (8, "delay_deny"),
    ],
    choices: &[],
};

pub(in crate::decode) static RBAC: Message = Message {
    name: "envoy.config.rbac.v3.RBAC",
    fields: &[
        Field::served(1, "action", Kind::Enum(&RBAC_ACTION)),
        Field::served(2, "policies", Kind::Map(&POLICY)),
    ],
    refused: &[(3, "audit_logging_options")],
    choices: &[],
};

pub(in crate::decode) static POLICY: Message = Message {
    name: "envoy.config.rbac.v3.Policy",
    fields: &[
        Field::served(1, "permissions", Kind::Message(&PERMISSION)).many(),
        Field::served(2, "principals", Kind::Message(&PRINCIPAL)).many(),
    ],
    refused: &[
        (3, "condition"),
        (4, "checked_condition"),
        (5, "cel_config"),
    ],
    choices: &[],
};

pub(in crate::decode) static PERMISSION: Message = Message {
    name: "envoy.config.rbac.v3.Permission",
    fields: &[Field::served(3, "any", Kind::Bool)],
    refused: &[
        (1, "and_rules"),
        (2, "or_rules"),
        (4, "header"),
        (5, "destination_ip"),
        (6, "destination_port"),
        (7, "metadata"),
        (8, "not_rule"),
        (9, "requested_server_name"),
        (10, "url_path"),
        (11, "destination_port_range"),
        (12, "matcher"),
        (13, "uri_template"),
        (14, "sourced_metadata"),
    ],
    choices: &[],
};

pub(in crate::decode) static PRINCIPAL: Message = Message {
    name: "envoy.config.rbac.v3.Principal",
    fields: &[
        Field::served(1, "and_ids", Kind::Message(&PRINCIPAL_SET)),
        Field::served(2, "or_ids", Kind::Message(&PRINCIPAL_SET)),
        Field::served(3, "any", Kind::Bool),
        Field::served(4, "authenticated", Kind::Message(&AUTHENTICATED)),
        Field::served(8, "not_id", Kind::Message(&PRINCIPAL)),
    ],
    refused: &[
        (5, "source_ip"),
        (6, "header"),
        (7, "metadata"),
        (9, "url_path"),
        (10, "direct_remote_ip"),
        (11, "remote_ip"),
        (12, "filter_state"),
        (13, "sourced_metadata"),
        (14, "custom"),
    ],
    choices: &[&[1, 2, 3, 4, 8]],
};

pub(in crate::decode) static PRINCIPAL_SET: Message = Message {
    name: "envoy.config.rbac.v3.Principal.Set",
    fields: &[Field::served(1, "ids", Kind::Message(&PRINCIPAL)).many()],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static AUTHENTICATED: Message = Message {
    name: "envoy.config.rbac.v3.Principal.Authenticated",
    fields: &[Field::served(
        2,
        "principal_name",
        Kind::Message(&STRING_MATCHER),
    )],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static ENFORCEMENT_TYPE: Enum = Enum {
    name: "envoy.extensions.filters.network.rbac.v3.RBAC.EnforcementType",
    values: &[(0, "ONE_TIME_ON_FIRST_BYTE"), (1, "CONTINUOUS")],
};

pub(in crate::decode) static RBAC_ACTION: Enum = Enum {
    name: "envoy.config.rbac.v3.RBAC.Action",
    values: &[(0, "ALLOW"), (1, "DENY"), (2, "LOG")],
};
