//! Access logs.

use super::core::{DATA_SOURCE, STRUCT};
use crate::decode::table::{Field, Kind, Message};

pub(in crate::decode) static ACCESS_LOG: Message = Message {
    name: "envoy.config.accesslog.v3.AccessLog",
    fields: &[
        Field::served(2, "filter", Kind::Message(&LOG_FILTER)),
        Field::served(4, "typed_config", Kind::Any(&LOGS)),
        // Only the type of the configuration decides.
        Field::harmless(1, "name", Kind::String),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static LOG_FILTER: Message = Message {
    name: "envoy.config.accesslog.v3.AccessLogFilter",
    fields: &[Field::served(
        9,
        "response_flag_filter",
        Kind::Message(&FLAG_FILTER),
    )],
    refused: &[
        (1, "status_code_filter"),
        (2, "duration_filter"),
        (3, "not_health_check_filter"),
        (4, "traceable_filter"),
        (5, "runtime_filter"),
        (6, "and_filter"),
        (7, "or_filter"),
        (8, "header_filter"),
        (10, "grpc_status_filter"),
        (11, "extension_filter"),
        (12, "metadata_filter"),
        (13, "log_type_filter"),
    ],
    choices: &[],
};

pub(in crate::decode) static FLAG_FILTER: Message = Message {
    name: "envoy.config.accesslog.v3.ResponseFlagFilter",
    fields: &[Field::served(1, "flags", Kind::String).many()],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static STDOUT_LOG: Message = Message {
    name: "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
    fields: &[Field::served(1, "log_format", Kind::Message(&LOG_FORMAT))],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static STDERR_LOG: Message = Message {
    name: "envoy.extensions.access_loggers.stream.v3.StderrAccessLog",
    fields: &[Field::served(1, "log_format", Kind::Message(&LOG_FORMAT))],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static FILE_LOG: Message = Message {
    name: "envoy.extensions.access_loggers.file.v3.FileAccessLog",
    fields: &[
        Field::served(1, "path", Kind::String),
        Field::served(5, "log_format", Kind::Message(&LOG_FORMAT)),
    ],
    refused: &[(2, "format"), (3, "json_format"), (4, "typed_json_format")],
    choices: &[],
};

pub(in crate::decode) static LOG_FORMAT: Message = Message {
    name: "envoy.config.core.v3.SubstitutionFormatString",
    fields: &[
        Field::served(1, "text_format", Kind::String),
        Field::served(2, "json_format", Kind::Message(&STRUCT)),
        Field::served(5, "text_format_source", Kind::Message(&DATA_SOURCE)),
        Field::served(3, "omit_empty_values", Kind::Bool),
        // Only bodies of HTTP responses have one.
        Field::harmless(4, "content_type", Kind::String),
    ],
    refused: &[(6, "formatters"), (7, "json_format_options")],
    choices: &[&[1, 2, 5]],
};

static LOGS: [&Message; 3] = [&STDOUT_LOG, &STDERR_LOG, &FILE_LOG];
