//! Intentions: which services may call which others.

use std::collections::BTreeMap;
use std::time::SystemTime;

use legate_filter::re2;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::invalid::Invalid;
use crate::jwt_requirement::JwtRequirement;
use crate::name::{self, WILDCARD};
use crate::named::named;
use crate::schema;
use crate::tenancy::{
    EVERY_TENANCY, Ignored, NotServed, PeerName, ServiceName, Tenancy, TenancyName,
};
use crate::timestamp;

/// The only type of intention source.
pub const SOURCE_TYPE_CONSUL: &str = "consul";

/// The maximum length of descriptions, in bytes.
const MAX_DESCRIPTION: usize = 512;

/// The maximum size of one source's permissions in a proxy's configuration in bytes, by
/// [`size_in_proxies`].
const MAX_SIZE: usize = 1 << 20;

/// Action for a connection or request.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum IntentionAction {
    /// Permit it.
    Allow,
    /// Deny it.
    Deny,
}

named! {
    IntentionAction { Allow = "allow", Deny = "deny" }
}

/// Action for requests that match conditions; the first matching permission applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct IntentionPermission {
    /// Action for matching requests.
    pub action: IntentionAction,
    /// Conditions on the request.
    #[serde(rename = "HTTP", default)]
    pub http: HttpPermission,
    /// The token that a matching request requires in order to be permitted. Has no effect if the
    /// action is to deny.
    #[serde(rename = "JWT", default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtRequirement>,
}

impl IntentionPermission {
    /// A permission without conditions, which can be added in `http`.
    pub fn new(action: IntentionAction) -> Self {
        IntentionPermission {
            action,
            http: HttpPermission::default(),
            jwt: None,
        }
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.http.validate().map_err(|error| error.within("HTTP"))?;
        match &self.jwt {
            None => Ok(()),
            Some(jwt) => jwt.validate().map_err(|error| error.within("JWT")),
        }
    }
}

/// Conditions on a request; all that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::at_most_one(&["pathExact", "pathPrefix", "pathRegex"]),
]))]
pub struct HttpPermission {
    /// The whole path.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = schema::PATH))]
    pub path_exact: String,
    /// Prefix of the path.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = schema::PATH))]
    pub path_prefix: String,
    /// A regular expression that the whole path must match (RE2 syntax).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path_regex: String,
    /// Conditions on headers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub header: Vec<HttpHeaderPermission>,
    /// Accepted methods; empty accepts any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub methods: Vec<String>,
}

/// A condition on one header; exactly one kind of match is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpHeaderPermission {
    /// The header.
    pub name: String,
    /// Whether the header must be present, with any value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub present: bool,
    /// Exact value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exact: String,
    /// Prefix of the value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Suffix of the value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub suffix: String,
    /// Substring of the value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub contains: String,
    /// A regular expression for the value (RE2 syntax).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub regex: String,
    /// Whether the condition is inverted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub invert: bool,
    /// Whether case is ignored; not together with `present` or `regex`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_case: bool,
}

/// An intention as the API returns it: one source of one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Intention {
    /// Id for the legacy intention endpoints; empty if the intention was written by other endpoints.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Free text of at most 512 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Namespace of the source, or `*`; empty means `default`.
    #[serde(rename = "SourceNS")]
    pub source_ns: String,
    /// Name of the source service, or `*`.
    pub source_name: String,
    /// Namespace of the destination, or `*`; empty means `default`.
    #[serde(rename = "DestinationNS")]
    pub destination_ns: String,
    /// Name of the destination service, or `*`.
    pub destination_name: String,
    /// Always `consul`.
    pub source_type: String,
    /// Action for every connection; unset when there are permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<IntentionAction>,
    /// Permissions by request attributes; empty when there is an action.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<IntentionPermission>,
    /// Free key/value pairs of the destination's config entry.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Computed from the names; higher values take precedence.
    pub precedence: u32,
    /// The token that every request requires, from the destination's config entry.
    #[serde(rename = "JWT", skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtRequirement>,
    /// The peer whose service is the source; unset for a service of this cluster. Only config entries can set it.
    #[serde(skip_serializing_if = "PeerName::is_empty")]
    pub source_peer: PeerName,
    /// Refused: sameness groups are not served.
    #[serde(skip_serializing)]
    pub source_sameness_group: NotServed,
    /// Partition of the source; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub source_partition: TenancyName,
    /// The partition of the service called; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub destination_partition: TenancyName,
    /// Ignored, as in Consul.
    #[serde(skip_serializing)]
    pub default_addr: Ignored,
    /// Ignored, as in Consul.
    #[serde(skip_serializing)]
    pub default_port: Ignored,
    /// When a legacy intention was created; set by the server.
    #[serde(
        deserialize_with = "ignored",
        serialize_with = "timestamp::option::serialize",
        skip_serializing_if = "Option::is_none"
    )]
    pub created_at: Option<SystemTime>,
    /// When a legacy intention was last changed; set by the server.
    #[serde(
        deserialize_with = "ignored",
        serialize_with = "timestamp::option::serialize",
        skip_serializing_if = "Option::is_none"
    )]
    pub updated_at: Option<SystemTime>,
    /// Part of intentions that Consul returns. Accepted and ignored.
    #[serde(skip_serializing)]
    pub hash: Ignored,
    /// Index of the write that created the destination's config entry.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// Accepts and discards any value.
fn ignored<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ignored::deserialize(deserializer).map(|Ignored| None)
}

impl Default for Intention {
    fn default() -> Self {
        Intention {
            id: String::new(),
            description: String::new(),
            source_ns: String::new(),
            source_name: String::new(),
            destination_ns: String::new(),
            destination_name: String::new(),
            source_type: SOURCE_TYPE_CONSUL.to_owned(),
            action: None,
            permissions: Vec::new(),
            meta: BTreeMap::new(),
            precedence: 0,
            jwt: None,
            source_peer: PeerName::default(),
            source_sameness_group: NotServed,
            source_partition: TenancyName::default(),
            destination_partition: TenancyName::default(),
            default_addr: Ignored,
            default_port: Ignored,
            created_at: None,
            updated_at: None,
            hash: Ignored,
            create_index: 0,
            modify_index: 0,
        }
    }
}

/// Precedence of a pair of services; higher values are more specific. For an exact destination: 9
/// with an exact source, 8 with a namespace's wildcard, 7 with the wildcard of all namespaces.
/// Likewise 6 to 4 for all destinations of a namespace, and 3 to 1 for all destinations.
pub fn precedence(source: &ServiceName, destination: &ServiceName) -> u32 {
    let every = |service: &ServiceName| {
        let parts = service.exact().into_iter();
        parts.map(|part| u32::from(part == WILDCARD)).sum::<u32>()
    };
    9 - 3 * every(destination) - every(source)
}

/// Validates where wildcards occur in a service of an intention. With Consul's error texts.
pub(crate) fn validate_wildcards(service: &ServiceName) -> Result<(), &'static str> {
    if service.tenancy.partition.as_ref() == EVERY_TENANCY {
        return Err("a partition cannot be a wildcard");
    }
    match service.exact() {
        [EVERY_TENANCY, name] if name != WILDCARD => {
            Err("exact value cannot follow wildcard namespace")
        }
        _ => Ok(()),
    }
}

impl Intention {
    /// The source service, in a tenancy of its peer if it has one.
    pub fn source(&self) -> ServiceName {
        let peer = self.source_peer.as_str();
        match peer.is_empty() {
            true => service(&self.source_partition, &self.source_ns, &self.source_name),
            false => {
                let partition = &self.destination_partition;
                let source = service(partition, &self.source_ns, &self.source_name);
                ServiceName::new(&source.tenancy.of_peer(peer), &source.name)
            }
        }
    }

    /// The destination service.
    pub fn destination(&self) -> ServiceName {
        let (partition, namespace) = (&self.destination_partition, &self.destination_ns);
        service(partition, namespace, &self.destination_name)
    }

    /// Sets the source and the destination.
    pub fn set_ends(&mut self, source: &ServiceName, destination: &ServiceName) {
        self.source_peer = source.tenancy.shown_peer();
        self.source_partition = match self.source_peer.is_empty() {
            true => source.tenancy.shown_partition(),
            false => TenancyName::default(),
        };
        self.source_ns = source.tenancy.namespace.as_ref().to_owned();
        self.source_name = source.name.as_ref().to_owned();
        self.destination_partition = destination.tenancy.shown_partition();
        self.destination_ns = destination.tenancy.namespace.as_ref().to_owned();
        self.destination_name = destination.name.as_ref().to_owned();
    }

    /// Sets computed and fixed values: tenancies, type and precedence; methods in upper case. An
    /// unset tenancy of the destination means `own`, and one of the source means the destination's. The namespace of a
    /// source of a peer is `default` if it is unset.
    pub fn normalise(&mut self, own: &Tenancy) {
        let name = |text: &str| text.parse::<TenancyName>().unwrap_or_default();
        let destination = own.resolve(&self.destination_partition, &name(&self.destination_ns));
        let source = match self.source_peer.is_empty() {
            true => {
                let source = destination.resolve(&self.source_partition, &name(&self.source_ns));
                ServiceName::new(&source, &self.source_name)
            }
            false => self.source(),
        };
        let destination = ServiceName::new(&destination, &self.destination_name);
        self.set_ends(&source, &destination);
        if self.source_type.is_empty() {
            self.source_type = SOURCE_TYPE_CONSUL.to_owned();
        }
        normalise_permissions(&mut self.permissions);
        self.precedence = precedence(&source, &destination);
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !self.id.is_empty() {
            return Err(Invalid::new(
                "ID",
                "ID must be empty when creating a new intention: leave it out, the two names \
                 identify the intention",
            ));
        }
        for (field, namespace) in [
            ("SourceNS", &self.source_ns),
            ("DestinationNS", &self.destination_ns),
        ] {
            if let Err(error) = namespace.parse::<TenancyName>() {
                return Err(Invalid::new(field, error.to_string()));
            }
        }
        for (field, service) in [
            ("SourceName", self.source()),
            ("DestinationName", self.destination()),
        ] {
            validate_wildcards(&service).map_err(|reason| Invalid::new(field, reason))?;
        }
        name::validate_intention_name(&self.source_name)
            .map_err(|error| Invalid::new("SourceName", error.to_string()))?;
        name::validate_intention_name(&self.destination_name)
            .map_err(|error| Invalid::new("DestinationName", error.to_string()))?;
        validate_source(
            &self.source_type,
            &self.description,
            self.action,
            &self.permissions,
            &self.destination_name,
        )
    }
}

/// A service of an intention. Invalid namespaces were refused earlier.
fn service(partition: &TenancyName, namespace: &str, name: &str) -> ServiceName {
    let namespace = namespace.parse().unwrap_or_default();
    ServiceName::new(&Tenancy::new(partition, &namespace), name)
}

pub(crate) fn normalise_permissions(permissions: &mut [IntentionPermission]) {
    for permission in permissions {
        for method in &mut permission.http.methods {
            method.make_ascii_uppercase();
        }
    }
}

/// Validates what an intention and a source of a config entry have in common.
pub(crate) fn validate_source(
    source_type: &str,
    description: &str,
    action: Option<IntentionAction>,
    permissions: &[IntentionPermission],
    destination: &str,
) -> Result<(), Invalid> {
    if !source_type.is_empty() && source_type != SOURCE_TYPE_CONSUL {
        return Err(Invalid::new(
            "Type",
            format!("must be set to '{SOURCE_TYPE_CONSUL}', not {source_type:?}"),
        ));
    }
    if description.len() > MAX_DESCRIPTION {
        return Err(Invalid::new(
            "Description",
            format!("exceeds maximum length {MAX_DESCRIPTION}"),
        ));
    }
    match (action, permissions) {
        (None, []) => Err(Invalid::new(
            "Action",
            "must be set to 'allow' or 'deny' if there are no Permissions",
        )),
        (Some(_), [_, ..]) => Err(Invalid::new(
            "Action",
            "must be omitted if Permissions are specified, which have their own actions",
        )),
        (None, [_, ..]) if destination == WILDCARD => Err(Invalid::new(
            "Permissions",
            "cannot be specified on intentions with wildcarded destinations, whose services \
             differ in protocol",
        )),
        (_, permissions) => {
            for (i, permission) in permissions.iter().enumerate() {
                permission
                    .validate()
                    .map_err(|error| error.within(format_args!("Permissions[{i}]")))?;
            }
            validate_size(permissions)
        }
    }
}

fn validate_size(permissions: &[IntentionPermission]) -> Result<(), Invalid> {
    let defaults = [IntentionAction::Allow, IntentionAction::Deny];
    let fits = |default| size_in_proxies(permissions, default) <= MAX_SIZE;
    if defaults.into_iter().all(fits) {
        return Ok(());
    }
    Err(Invalid::new(
        "Permissions",
        format!(
            "expand to more than {MAX_SIZE} bytes in a proxy, where each repeats the conditions of all \
             before it that have the other Action: use fewer, with a PathPrefix or PathRegex for several"
        ),
    ))
}

/// Estimates the size of permissions in a proxy's configuration, in bytes. RBAC rules there have no
/// order, so each rule repeats the conditions of earlier rules with the other action.
fn size_in_proxies(permissions: &[IntentionPermission], default: IntentionAction) -> usize {
    /// Overhead of a condition in addition to its text.
    const EACH: usize = 64;
    let (mut size, mut earlier) = (0, 0);
    for permission in permissions {
        let text = serde_json::to_string(&permission.http);
        let own = EACH + text.map_or(0, |text| text.len());
        let (decides, has_token) = (permission.action != default, permission.jwt.is_some());
        if decides || has_token {
            size += own + earlier;
        }
        if !decides || has_token {
            earlier += own;
        }
    }
    size
}

const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE",
];

impl HttpPermission {
    fn validate(&self) -> Result<(), Invalid> {
        let paths = [&self.path_exact, &self.path_prefix, &self.path_regex];
        match paths.iter().filter(|path| !path.is_empty()).count() {
            0 if self.header.is_empty() && self.methods.is_empty() => {
                return Err(Invalid::new(
                    "PathExact",
                    "HTTP should not be empty: set one of PathExact, PathPrefix, PathRegex, Header, \
                     Methods",
                ));
            }
            0 | 1 => {}
            _ => {
                return Err(Invalid::new(
                    "PathExact",
                    "HTTP should only contain at most one of PathExact, PathPrefix, or PathRegex",
                ));
            }
        }
        for (field, path) in [
            ("PathExact", &self.path_exact),
            ("PathPrefix", &self.path_prefix),
        ] {
            if !path.is_empty() && !path.starts_with('/') {
                return Err(Invalid::new(
                    field,
                    format!("doesn't start with '/': {path:?}"),
                ));
            }
        }
        re2::validate(&self.path_regex).map_err(|reason| Invalid::new("PathRegex", reason))?;
        for (i, header) in self.header.iter().enumerate() {
            header
                .validate()
                .map_err(|error| error.within(format_args!("Header[{i}]")))?;
        }
        for (i, method) in self.methods.iter().enumerate() {
            let field = format!("Methods[{i}]");
            if !METHODS
                .iter()
                .any(|known| known.eq_ignore_ascii_case(method))
            {
                return Err(Invalid::new(
                    field,
                    format!(
                        "contains an invalid method {method:?} (valid: {})",
                        METHODS.join(", ")
                    ),
                ));
            }
            if self.methods[..i]
                .iter()
                .any(|m| m.eq_ignore_ascii_case(method))
            {
                return Err(Invalid::new(
                    field,
                    format!("contains {method:?} more than once"),
                ));
            }
        }
        Ok(())
    }
}

impl HttpHeaderPermission {
    fn validate(&self) -> Result<(), Invalid> {
        if self.name.is_empty() {
            return Err(Invalid::new("Name", "missing required Name field"));
        }
        if self
            .name
            .chars()
            .any(|c| c.is_control() || c.is_whitespace())
        {
            return Err(Invalid::new(
                "Name",
                format!("{:?} has characters that no header has", self.name),
            ));
        }
        re2::validate(&self.regex).map_err(|reason| Invalid::new("Regex", reason))?;
        let texts = [
            &self.exact,
            &self.prefix,
            &self.suffix,
            &self.contains,
            &self.regex,
        ];
        let set = texts.iter().filter(|text| !text.is_empty()).count() + usize::from(self.present);
        if set != 1 {
            return Err(Invalid::new(
                "Name",
                "should only contain one of Present, Exact, Prefix, Suffix, Contains, or Regex",
            ));
        }
        if self.ignore_case && (self.present || !self.regex.is_empty()) {
            return Err(Invalid::new(
                "IgnoreCase",
                "should set one of Exact, Prefix, Suffix, or Contains when using IgnoreCase",
            ));
        }
        Ok(())
    }
}
