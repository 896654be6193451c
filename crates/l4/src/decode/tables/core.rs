//! What several messages have, and well-known types.

use crate::decode::table::{Enum, Field, Kind, Message};

pub(in crate::decode) static ADDRESS: Message = Message {
    name: "envoy.config.core.v3.Address",
    fields: &[
        Field::served(1, "socket_address", Kind::Message(&SOCKET_ADDRESS)),
        Field::served(2, "pipe", Kind::Message(&PIPE)),
    ],
    refused: &[(3, "envoy_internal_address")],
    choices: &[&[1, 2]],
};

pub(in crate::decode) static SOCKET_ADDRESS: Message = Message {
    name: "envoy.config.core.v3.SocketAddress",
    fields: &[
        Field::served(1, "protocol", Kind::Enum(&SOCKET_PROTOCOL)),
        Field::served(2, "address", Kind::String),
        Field::served(3, "port_value", Kind::U32),
    ],
    refused: &[
        (4, "named_port"),
        (5, "resolver_name"),
        (6, "ipv4_compat"),
        (7, "network_namespace_filepath"),
    ],
    choices: &[],
};

pub(in crate::decode) static PIPE: Message = Message {
    name: "envoy.config.core.v3.Pipe",
    fields: &[
        Field::served(1, "path", Kind::String),
        Field::served(2, "mode", Kind::U32),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static CIDR_RANGE: Message = Message {
    name: "envoy.config.core.v3.CidrRange",
    fields: &[
        Field::served(1, "address_prefix", Kind::String),
        Field::served(2, "prefix_len", Kind::Message(&U32_VALUE)),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static DATA_SOURCE: Message = Message {
    name: "envoy.config.core.v3.DataSource",
    fields: &[
        Field::served(2, "inline_bytes", Kind::Bytes),
        Field::served(3, "inline_string", Kind::String),
    ],
    refused: &[
        (1, "filename"),
        (4, "environment_variable"),
        (5, "watched_directory"),
    ],
    choices: &[&[2, 3]],
};

pub(in crate::decode) static CONFIG_SOURCE: Message = Message {
    name: "envoy.config.core.v3.ConfigSource",
    fields: &[
        Field::served(3, "ads", Kind::Message(&ADS)),
        Field::served(6, "resource_api_version", Kind::Enum(&API_VERSION)),
        // Nothing waits: a cluster without endpoints has no host, a chain without its secrets is not served.
        Field::harmless(4, "initial_fetch_timeout", Kind::Message(&DURATION)),
    ],
    refused: &[
        (1, "path"),
        (2, "api_config_source"),
        (5, "self"),
        (7, "authorities"),
        (8, "path_config_source"),
    ],
    choices: &[],
};

pub(in crate::decode) static ADS: Message = Message {
    name: "envoy.config.core.v3.AggregatedConfigSource",
    fields: &[],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static STRING_MATCHER: Message = Message {
    name: "envoy.type.matcher.v3.StringMatcher",
    fields: &[
        Field::served(1, "exact", Kind::String),
        Field::served(5, "safe_regex", Kind::Message(&REGEX_MATCHER)),
    ],
    refused: &[
        (2, "prefix"),
        (3, "suffix"),
        (6, "ignore_case"),
        (7, "contains"),
        (8, "custom"),
    ],
    choices: &[&[1, 5]],
};

pub(in crate::decode) static REGEX_MATCHER: Message = Message {
    name: "envoy.type.matcher.v3.RegexMatcher",
    fields: &[
        Field::served(2, "regex", Kind::String),
        // The only engine there is; an older limit in it is refused.
        Field::harmless(1, "google_re2", Kind::Message(&GOOGLE_RE2)),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static GOOGLE_RE2: Message = Message {
    name: "envoy.type.matcher.v3.RegexMatcher.GoogleRE2",
    fields: &[],
    refused: &[(1, "max_program_size")],
    choices: &[],
};

pub(in crate::decode) static SOCKET_PROTOCOL: Enum = Enum {
    name: "envoy.config.core.v3.SocketAddress.Protocol",
    values: &[(0, "TCP"), (1, "UDP")],
};

pub(in crate::decode) static API_VERSION: Enum = Enum {
    name: "envoy.config.core.v3.ApiVersion",
    values: &[(0, "AUTO"), (1, "V2"), (2, "V3")],
};

pub(in crate::decode) static BOOL_VALUE: Message = Message {
    name: "google.protobuf.BoolValue",
    fields: &[Field::served(1, "value", Kind::Bool)],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static U32_VALUE: Message = Message {
    name: "google.protobuf.UInt32Value",
    fields: &[Field::served(1, "value", Kind::U32)],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static U64_VALUE: Message = Message {
    name: "google.protobuf.UInt64Value",
    fields: &[Field::served(1, "value", Kind::U64)],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static DURATION: Message = Message {
    name: "google.protobuf.Duration",
    fields: &[
        Field::served(1, "seconds", Kind::I64),
        Field::served(2, "nanos", Kind::I32),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static STRUCT: Message = Message {
    name: "google.protobuf.Struct",
    fields: &[Field::served(1, "fields", Kind::Map(&VALUE))],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static VALUE: Message = Message {
    name: "google.protobuf.Value",
    fields: &[
        Field::served(3, "string_value", Kind::String),
        Field::served(5, "struct_value", Kind::Message(&STRUCT)),
    ],
    refused: &[
        (1, "null_value"),
        (2, "number_value"),
        (4, "bool_value"),
        (6, "list_value"),
    ],
    choices: &[&[3, 5]],
};
