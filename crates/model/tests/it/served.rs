//! Every field of requests is served, refused or reported. The fields are derived from the types' own
//! decoders, so that none can be omitted, and the list of outcomes is `tests/golden/fields.txt`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use legate_model::acl::{AuthMethod, BindingRule, Policy, Role, Token, Variables};
use legate_model::json::{self, Request};
use legate_model::served;
use legate_model::transaction::Operation;
use legate_model::virtual_ip::AssignVirtualIps;
use legate_model::{
    ApiGateway, AutopilotConfiguration, BoundApiGateway, CaConfiguration, ChainOverrides,
    ConfigEntry, ConnectAuthorize, ControlPlaneRequestLimit, DeregisterRequest, EstablishPeering,
    ExportedServices, FileSystemCertificate, GeneratePeeringToken, HttpRoute, IngressGateway,
    InlineCertificate, Intention, Invalid, JwtProvider, Mesh, Namespace, NodeCoordinate, Partition,
    PreparedQuery, ProxyDefaults, RegisterRequest, SamenessGroup, ServiceDefaults,
    ServiceDefinition, ServiceIntentions, ServiceResolver, ServiceRouter, ServiceSplitter,
    SessionRequest, TcpRoute, TerminatingGateway,
};
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::{Value, json};

/// Type that a decoder expects at a position.
#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Struct(&'static str, &'static [&'static str]),
    Enum(&'static [&'static str]),
    Text,
    Flag,
    Number,
    /// Any value, or a type that is not among the others.
    Free,
}

/// Positions on the path to a field.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Field(&'static str),
    Item,
    Key,
}

/// A decoder that follows one path and records the type expected at its end.
struct Probe<'a> {
    way: &'a [&'static str],
    steps: &'a RefCell<Vec<Step>>,
    found: &'a RefCell<Option<Shape>>,
}

#[derive(Debug)]
struct Stop;

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the end of the way")
    }
}

impl std::error::Error for Stop {}

impl de::Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Stop
    }
}

impl<'a> Probe<'a> {
    fn end<T>(&self, shape: Shape) -> Result<T, Stop> {
        // The first type counts: visitors may request another one later.
        self.found.borrow_mut().get_or_insert(shape);
        Err(Stop)
    }

    fn inner(&self, step: Step) -> Probe<'a> {
        self.steps.borrow_mut().push(step);
        Probe { ..*self }
    }
}

macro_rules! ends {
    ($($method:ident => $shape:expr,)*) => {
        $(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
            self.end($shape)
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    ends! {
        deserialize_any => Shape::Free,
        deserialize_ignored_any => Shape::Free,
        deserialize_bool => Shape::Flag,
        deserialize_i8 => Shape::Number,
        deserialize_i16 => Shape::Number,
        deserialize_i32 => Shape::Number,
        deserialize_i64 => Shape::Number,
        deserialize_u8 => Shape::Number,
        deserialize_u16 => Shape::Number,
        deserialize_u32 => Shape::Number,
        deserialize_u64 => Shape::Number,
        deserialize_f32 => Shape::Number,
        deserialize_f64 => Shape::Number,
        deserialize_char => Shape::Text,
        deserialize_str => Shape::Text,
        deserialize_string => Shape::Text,
        deserialize_identifier => Shape::Text,
        deserialize_bytes => Shape::Free,
        deserialize_byte_buf => Shape::Free,
        deserialize_unit => Shape::Free,
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_seq(self.inner(Step::Item))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_map(One("key", self.inner(Step::Key)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match self.way {
            [] => self.end(Shape::Struct(name, fields)),
            [field, rest @ ..] => {
                let inner = Probe {
                    way: rest,
                    ..self.inner(Step::Field(field))
                };
                visitor.visit_map(One(field, inner))
            }
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Stop> {
        self.end(Shape::Enum(variants))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: V,
    ) -> Result<V::Value, Stop> {
        self.end(Shape::Free)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Stop> {
        self.end(Shape::Free)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        _: V,
    ) -> Result<V::Value, Stop> {
        self.end(Shape::Free)
    }
}

/// A map with one entry.
struct One<'a>(&'static str, Probe<'a>);

impl<'de> MapAccess<'de> for One<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Stop> {
        let key: StrDeserializer<'_, Stop> = self.0.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        seed.deserialize(Probe { ..self.1 })
    }
}

impl<'de> SeqAccess<'de> for Probe<'_> {
    type Error = Stop;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Stop> {
        seed.deserialize(Probe { ..*self }).map(Some)
    }
}

/// One field of a request.
struct Field {
    target: &'static str,
    name: &'static str,
    steps: Vec<Step>,
    shape: Shape,
}

impl Field {
    /// The path in the form of errors and reports.
    fn path(&self) -> String {
        let mut path = String::new();
        for step in &self.steps {
            let next = match step {
                Step::Field(name) if path.is_empty() => (*name).to_owned(),
                Step::Field(name) => format!(".{name}"),
                Step::Key => ".key".to_owned(),
                Step::Item => "[0]".to_owned(),
            };
            path.push_str(&next);
        }
        path
    }

    /// `base` with the field set.
    fn set(&self, base: &Value, value: Value) -> Value {
        let mut whole = base.clone();
        let mut place = &mut whole;
        for step in &self.steps {
            place = match step {
                Step::Field(name) => &mut place[*name],
                Step::Key => &mut place["key"],
                Step::Item => {
                    if place.is_null() {
                        *place = json!([null]);
                    }
                    &mut place[0]
                }
            };
        }
        *place = value;
        whole
    }

    /// Sample values that are not empty.
    fn samples(&self) -> Vec<Value> {
        match &self.shape {
            Shape::Struct(..) => Vec::new(),
            Shape::Enum(variants) => {
                let named = variants.iter().filter(|variant| !variant.is_empty());
                named.map(|variant| json!(variant)).collect()
            }
            Shape::Text => vec![json!("x")],
            Shape::Flag => vec![json!(true)],
            Shape::Number => vec![json!(7)],
            Shape::Free => vec![
                json!({"x": 1}),
                json!(["x"]),
                json!("7s"),
                json!(7),
                json!(true),
            ],
        }
    }
}

fn probe<T: DeserializeOwned>(way: &[&'static str]) -> (Vec<Step>, Shape) {
    let (steps, found) = (RefCell::default(), RefCell::default());
    let probe = Probe {
        way,
        steps: &steps,
        found: &found,
    };
    // Decoding never succeeds; only the recorded type is of interest.
    let _ = T::deserialize(probe);
    let shape = found.into_inner().unwrap_or_else(|| panic!("{way:?}"));
    (steps.into_inner(), shape)
}

fn fields<T: DeserializeOwned>() -> Vec<Field> {
    let mut found = Vec::new();
    let mut open: Vec<(Vec<&'static str>, Vec<&'static str>)> = vec![(Vec::new(), Vec::new())];
    while let Some((way, within)) = open.pop() {
        let (_, Shape::Struct(target, names)) = probe::<T>(&way) else {
            continue;
        };
        if within.contains(&target) {
            continue;
        }
        for name in names {
            let way: Vec<_> = way.iter().copied().chain([*name]).collect();
            let (steps, shape) = probe::<T>(&way);
            found.push(Field {
                target,
                name,
                steps,
                shape,
            });
            let within = within.iter().copied().chain([target]).collect();
            open.push((way, within));
        }
    }
    found
}

/// Decodes and validates; returns the paths that are reported.
type Accept = fn(&Value) -> Result<Vec<String>, String>;

fn accept<T: DeserializeOwned>(
    value: &Value,
    validate: impl Fn(&T) -> Result<(), Invalid>,
) -> Result<Vec<String>, String> {
    let Request { value, not_served } =
        json::request(value.to_string().as_bytes()).map_err(|error| error.to_string())?;
    validate(&value).map_err(|error| error.to_string())?;
    Ok(not_served)
}

/// A kind of request: its fields, a valid sample, and its validation.
type Kind = (Vec<Field>, Value, Accept);

fn requests() -> Vec<Kind> {
    let mut all = registrations();
    all.extend(entries());
    all.extend(entries_without_effect());
    all.extend(operation());
    all.extend(access_control());
    all.extend(keys());
    all
}

fn registrations() -> Vec<Kind> {
    let proxy = json!({
        "DestinationServiceName": "web", "LocalServicePort": 8080,
        "Upstreams": [{"DestinationName": "api", "LocalBindPort": 9191}],
        "EnvoyExtensions": [{"Name": "builtin/lua"}],
        "Expose": {"Paths": [{"Path": "/x", "ListenerPort": 1, "LocalPathPort": 2}]},
    });
    let register = json!({
        "Node": "n1", "Address": "10.0.0.1",
        "Service": {
            "Kind": "connect-proxy", "Service": "web-proxy", "Port": 20000, "Proxy": proxy,
        },
        "Check": {"Name": "c"}, "Checks": [{"Name": "d"}],
    });
    let define = json!({
        "Name": "web-proxy", "Kind": "connect-proxy", "Port": 20000, "Proxy": proxy,
        "Checks": [{"TTL": "10s", "FailuresBeforeCritical": 9}],
    });
    let query = json!({"Name": "q", "Service": {"Service": "web"}});
    vec![
        (fields::<RegisterRequest>(), register, |value| {
            accept(value, RegisterRequest::validate)
        }),
        (
            fields::<DeregisterRequest>(),
            json!({"Node": "n1"}),
            |value| accept(value, DeregisterRequest::validate),
        ),
        (fields::<ServiceDefinition>(), define, |value| {
            accept(value, ServiceDefinition::validate)
        }),
        (
            fields::<AssignVirtualIps>(),
            json!({"Service": "web"}),
            |value| accept(value, AssignVirtualIps::validate),
        ),
        (fields::<NodeCoordinate>(), json!({"Node": "n1"}), |value| {
            accept(value, NodeCoordinate::validate)
        }),
        (fields::<PreparedQuery>(), query, |value| {
            accept(value, |query: &PreparedQuery| {
                let checked = query.validate();
                checked.map_err(|error| Invalid::new("", error.to_string()))
            })
        }),
    ]
}

/// Sessions and transactions.
fn keys() -> Vec<Kind> {
    let session = json!({"ServiceChecks": [{"ID": "c"}]});
    let proxy = json!({
        "DestinationServiceName": "web", "LocalServicePort": 8080,
        "Upstreams": [{"DestinationName": "api", "LocalBindPort": 9191}],
        "EnvoyExtensions": [{"Name": "builtin/lua"}],
        "Expose": {"Paths": [{"Path": "/x", "ListenerPort": 1, "LocalPathPort": 2}]},
    });
    let operation = json!({
        "KV": {"Verb": "set", "Key": "k"},
        "Node": {"Verb": "set", "Node": {"Node": "n1", "Address": "10.0.0.1"}},
        "Service": {"Verb": "set", "Node": "n1", "Service": {
            "Kind": "connect-proxy", "Service": "web-proxy", "Port": 20000, "Proxy": proxy,
        }},
        "Check": {"Verb": "set", "Check": {"Node": "n1", "Name": "c"}},
        "Session": {"Verb": "delete", "Session": {"ID": "s"}},
    });
    vec![
        (fields::<SessionRequest>(), session, |value| {
            accept(value, |request: &SessionRequest| {
                let made = request.clone().into_session("n", "c", Duration::ZERO);
                made.map(|_| ())
                    .map_err(|error| Invalid::new("", error.to_string()))
            })
        }),
        (fields::<Operation>(), operation, |value| {
            accept(value, |operation: &Operation| {
                let operation = operation.clone();
                let node = operation.node.map(|node| node.node.into_registration());
                let service = operation.service.map(|service| service.into_registration());
                let check = operation.check.map(|check| check.into_registration());
                let all = [node, service, check];
                all.iter().flatten().try_for_each(RegisterRequest::validate)
            })
        }),
    ]
}

fn entries() -> Vec<Kind> {
    let permissions = json!([{"Action": "allow", "HTTP": {
        "PathExact": "/", "Header": [{"Name": "x", "Present": true}],
    }}]);
    let entry: Accept = |value| accept(value, ConfigEntry::validate);
    let expose = json!({"Paths": [{"Path": "/x", "ListenerPort": 1, "LocalPathPort": 2}]});
    let extensions = json!([{
        "Name": "builtin/lua", "Arguments": {"Listener": "inbound", "Script": "x"},
    }]);
    let service_defaults = json!({
        "Kind": "service-defaults", "Name": "web", "EnvoyExtensions": extensions,
        "Expose": expose, "UpstreamConfig": {"Overrides": [{"Name": "api"}]},
        "RateLimits": {"InstanceLevel": {"Routes": [{"PathExact": "/", "RequestsPerSecond": 1}]}},
    });
    let proxy_defaults = json!({
        "Kind": "proxy-defaults", "Name": "global", "EnvoyExtensions": extensions,
        "Expose": expose,
    });
    let intentions = json!({
        "Kind": "service-intentions", "Name": "web",
        "Sources": [{"Name": "api", "Permissions": permissions}],
    });
    let intention = json!({"SourceName": "a", "DestinationName": "b", "Permissions": permissions});
    vec![
        (
            fields::<TerminatingGateway>(),
            json!({"Kind": "terminating-gateway", "Name": "egress", "Services": [{"Name": "db"}]}),
            entry,
        ),
        (fields::<ServiceDefaults>(), service_defaults, entry),
        (fields::<ProxyDefaults>(), proxy_defaults, entry),
        (fields::<Mesh>(), json!({"Kind": "mesh"}), entry),
        (fields::<ServiceIntentions>(), intentions, entry),
        (
            fields::<ServiceRouter>(),
            json!({"Kind": "service-router", "Name": "web", "Routes": [{"Match": {"HTTP": {
                "PathPrefix": "/", "Header": [{"Name": "x", "Present": true}],
                "QueryParam": [{"Name": "q", "Present": true}],
            }}, "Destination": {"Service": "api"}}]}),
            entry,
        ),
        (
            fields::<ServiceSplitter>(),
            json!({"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": 100}]}),
            entry,
        ),
        (
            fields::<ServiceResolver>(),
            json!({"Kind": "service-resolver", "Name": "web", "Subsets": {"key": {}},
                "Failover": {"key": {"Targets": [{"Service": "api"}]}}}),
            entry,
        ),
        (fields::<JwtProvider>(), jwt_provider(), entry),
        (
            fields::<ConnectAuthorize>(),
            json!({"Target": "web"}),
            |value| accept::<ConnectAuthorize>(value, |_| Ok(())),
        ),
        (
            fields::<CaConfiguration>(),
            json!({"Provider": "consul"}),
            |value| accept::<CaConfiguration>(value, |_| Ok(())),
        ),
        (fields::<Intention>(), intention, |value| {
            accept(value, Intention::validate)
        }),
    ]
}

/// Kinds that are stored and reported as a whole.
fn entries_without_effect() -> Vec<Kind> {
    let entry: Accept = |value| accept(value, ConfigEntry::validate);
    let listener = json!({
        "Name": "l", "Port": 8443, "Protocol": "http",
        "TLS": {"Certificates": [{"Name": "cert"}]},
    });
    let rule = json!({
        "Matches": [{"Headers": [{"Match": "present", "Name": "x"}]}],
        "Services": [{"Name": "web"}],
    });
    let services = json!([{"Name": "web", "Consumers": [{"Peer": "east"}]}]);
    vec![
        (
            fields::<IngressGateway>(),
            json!({"Kind": "ingress-gateway", "Name": "in", "Listeners": [
                {"Port": 8080, "Protocol": "http", "Services": [{"Name": "web"}]},
            ]}),
            entry,
        ),
        (
            fields::<ApiGateway>(),
            json!({"Kind": "api-gateway", "Name": "api", "Listeners": [listener]}),
            entry,
        ),
        (
            fields::<BoundApiGateway>(),
            json!({"Kind": "bound-api-gateway", "Name": "api"}),
            entry,
        ),
        (
            fields::<HttpRoute>(),
            json!({"Kind": "http-route", "Name": "r", "Rules": [rule]}),
            entry,
        ),
        (
            fields::<TcpRoute>(),
            json!({"Kind": "tcp-route", "Name": "r"}),
            entry,
        ),
        (
            fields::<InlineCertificate>(),
            json!({"Kind": "inline-certificate", "Name": "c"}),
            entry,
        ),
        (
            fields::<FileSystemCertificate>(),
            json!({"Kind": "file-system-certificate", "Name": "c"}),
            entry,
        ),
        (
            fields::<ExportedServices>(),
            json!({"Kind": "exported-services", "Name": "default", "Services": services}),
            entry,
        ),
        (
            fields::<SamenessGroup>(),
            json!({"Kind": "sameness-group", "Name": "g"}),
            entry,
        ),
        (
            fields::<ControlPlaneRequestLimit>(),
            json!({"Kind": "control-plane-request-limit", "Name": "l"}),
            entry,
        ),
    ]
}

fn operation() -> Vec<Kind> {
    vec![
        (fields::<AutopilotConfiguration>(), json!({}), |value| {
            accept::<AutopilotConfiguration>(value, |_| Ok(()))
        }),
        (
            fields::<Namespace>(),
            json!({"Name": "n", "ACLs": {"PolicyDefaults": [{"Name": "p"}]}}),
            |value| accept(value, Namespace::validate),
        ),
        (fields::<Partition>(), json!({"Name": "p"}), |value| {
            accept(value, Partition::validate)
        }),
        (
            fields::<GeneratePeeringToken>(),
            json!({"PeerName": "east"}),
            |value| accept(value, GeneratePeeringToken::validate),
        ),
        (
            fields::<EstablishPeering>(),
            json!({"PeerName": "east", "PeeringToken": "x"}),
            |value| accept(value, EstablishPeering::validate),
        ),
    ]
}

fn jwt_provider() -> Value {
    json!({
        "Kind": "jwt-provider", "Name": "okta", "Locations": [{"Cookie": {"Name": "c"}}],
        "JSONWebKeySet": {"Remote": {"URI": "https://okta.example/keys", "JWKSCluster": {
            "TLSCertificates": {"TrustedCA": {"Filename": "/ca.pem"}},
        }}},
    })
}

fn access_control() -> Vec<Kind> {
    let token = json!({
        "Policies": [{"Name": "global-management"}],
        "ServiceIdentities": [{"ServiceName": "web"}],
        "NodeIdentities": [{"NodeName": "n", "Datacenter": "dc1"}],
    });
    vec![
        (fields::<Policy>(), json!({"Name": "p"}), |value| {
            accept(value, Policy::validate)
        }),
        (fields::<ChainOverrides>(), json!({}), |value| {
            accept(value, |overrides: &ChainOverrides| {
                overrides.protocol().map(|_| ())
            })
        }),
        (fields::<Role>(), json!({"Name": "r"}), |value| {
            accept(value, Role::validate)
        }),
        (fields::<Token>(), token, |value| {
            accept(value, Token::validate)
        }),
        (
            fields::<AuthMethod>(),
            json!({"Name": "m", "Type": "jwt"}),
            // The type-specific settings are a separate document.
            |value| accept::<AuthMethod>(value, |_| Ok(())),
        ),
        (
            fields::<BindingRule>(),
            json!({
                "AuthMethod": "m", "BindType": "templated-policy", "BindName": "builtin/service",
                "BindVars": {"Name": "web"},
            }),
            |value| {
                accept(value, |rule: &BindingRule| {
                    rule.validate(&Variables::default())
                })
            },
        ),
    ]
}

/// What happens to a field that is set: it is accepted, reported, or refused with an error.
fn outcomes(field: &Field, (base, accept): (&Value, Accept)) -> Vec<String> {
    let path = field.path();
    // For a list of texts the list is reported, and for a map the map.
    let (whole, map) = (path.trim_end_matches("[0]"), path.trim_end_matches(".key"));
    let reported = |paths: &[String]| paths.iter().any(|path| path == whole || path == map);
    let (mut stored, mut errors) = (Vec::new(), Vec::new());
    for sample in field.samples() {
        let result = match accept(&field.set(base, sample.clone())) {
            Ok(paths) if reported(&paths) => "reported",
            Ok(_) => "accepted",
            Err(error) => {
                let (_, reason) = error.split_once(": ").unwrap_or(("", &error));
                errors.push(format!("refused ({reason})"));
                continue;
            }
        };
        stored.push(match (&field.shape, sample) {
            (Shape::Enum(_), Value::String(name)) => format!("{name} is {result}"),
            _ => result.to_owned(),
        });
    }
    // Most samples of a free value have the wrong type.
    match field.shape == Shape::Free && !stored.is_empty() {
        true => stored,
        false => stored.into_iter().chain(errors).collect(),
    }
}

/// The outcomes for every field are those of the list. A new field is not in it, so that somebody looks
/// at what happens to it.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the environment says whether to compare or to write"
)]
fn every_field_is_served_refused_or_reported() {
    let mut all: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for (fields, base, accept) in requests() {
        accept(&base).unwrap_or_else(|error| panic!("{base}: {error}"));
        for field in fields {
            let of = all.entry((field.target, field.name)).or_default();
            of.extend(outcomes(&field, (&base, accept)));
        }
    }
    let lines = all.iter().map(|((target, name), outcomes)| {
        let outcomes: Vec<&str> = match outcomes.is_empty() {
            true => vec!["has fields"],
            false => outcomes.iter().map(String::as_str).collect(),
        };
        format!("{target}.{name}: {}\n", outcomes.join("; "))
    });
    let found: String = lines.collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/fields.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap();
    let (found_lines, expected_lines): (Vec<_>, Vec<_>) =
        (found.lines().collect(), expected.lines().collect());
    assert_eq!(found_lines, expected_lines, "UPDATE_GOLDEN=1 writes {path}");
    let stale: Vec<_> = served::rows()
        .filter(|row| !all.contains_key(row))
        .collect();
    assert!(stale.is_empty(), "rows without a field: {stale:?}");
}
