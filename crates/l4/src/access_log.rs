//! Access logs: when a connection is logged, where, and how the line is made.

mod flag;
mod template;
mod time;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

pub use flag::Flag;
use template::Template;

use crate::model::{Address, TlsVersion};

/// An access log.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// Where the lines go.
    pub sink: Sink,
    /// How a line is made.
    pub format: Format,
    /// Only connections with one of these response flags are logged; all if it is `None`.
    pub flags: Option<Vec<Flag>>,
}

/// Where the lines of an access log go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Sink {
    /// The standard output.
    Stdout,
    /// The standard error.
    Stderr,
    /// A file, appended to.
    File(PathBuf),
}

/// What is known about a connection when it has ended.
#[derive(Debug, Clone)]
pub struct Record<'a> {
    /// When it was accepted.
    pub start: SystemTime,
    /// How long it lasted.
    pub duration: Duration,
    /// Bytes from the caller.
    pub bytes_received: u64,
    /// Bytes to the caller.
    pub bytes_sent: u64,
    /// Why it ended, unless by its ends.
    pub flags: &'a [Flag],
    /// The host that was dialled last.
    pub upstream_host: Option<&'a Address>,
    /// The cluster's name in statistics, or its name if that is empty.
    pub upstream_cluster: Option<&'a str>,
    /// How many attempts to connect were made.
    pub attempts: u32,
    /// The own address of the connection to the host.
    pub upstream_local: Option<&'a Address>,
    /// Why TLS or the connection to the host failed.
    pub upstream_failure: Option<&'a str>,
    /// Why TLS with the caller failed.
    pub downstream_failure: Option<&'a str>,
    /// The address that the caller wanted to reach.
    pub downstream_local: Option<&'a Address>,
    /// The caller's address.
    pub downstream_remote: Option<&'a Address>,
    /// The server name in the caller's ClientHello.
    pub server_name: Option<&'a str>,
    /// The caller's TLS, if the proxy terminated it.
    pub tls: Option<Tls<'a>>,
    /// The connection's number.
    pub connection: u64,
    /// Why the proxy ended it, such as `rbac_access_denied_matched_policy[none]`.
    pub termination: Option<&'a str>,
    /// Why the proxy did not serve it: `filter_chain_not_found` if no chain matches, as in Envoy.
    pub details: Option<&'a str>,
    /// The name of its filter chain.
    pub chain: Option<&'a str>,
    /// The name of the machine.
    pub host_name: &'a str,
}

/// A caller's TLS.
#[derive(Debug, Clone, Copy)]
pub struct Tls<'a> {
    /// The version.
    pub version: TlsVersion,
    /// The cipher suite, as OpenSSL writes it.
    pub cipher: &'a str,
    /// The URIs in the caller's certificate.
    pub peer_uris: &'a [String],
}

/// How a line of an access log is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Format {
    shape: Shape,
    /// Whether what is not known leaves nothing in a text, instead of `-`. In JSON it is `null` in any case.
    omit_empty: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Text(Template),
    Json(BTreeMap<String, Item>),
}

/// A value of a JSON object.
#[derive(Debug, Clone, PartialEq)]
enum Item {
    Template(Template),
    Object(BTreeMap<String, Item>),
}

/// A format that the proxy does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} in an access log")]
pub struct Unknown(String);

/// Envoy's format if none is configured.
const DEFAULT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% \
    %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \
    \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \
    \"%UPSTREAM_HOST%\"\n";

impl Default for Format {
    fn default() -> Self {
        let shape = Shape::Text(Template::parse(DEFAULT).expect("a test parses it"));
        Format {
            shape,
            omit_empty: false,
        }
    }
}

impl Format {
    /// Parses a format of a text. The line has no end but what the format has.
    ///
    /// # Errors
    ///
    /// [`Unknown`] if it has an operator that the proxy does not have, or is malformed.
    pub fn text(format: &str, omit_empty: bool) -> Result<Format, Unknown> {
        let shape = Shape::Text(Template::parse(format)?);
        Ok(Format { shape, omit_empty })
    }

    /// Parses a format of a JSON object: its values are formats of a text, or objects. The names are sorted, and a value
    /// of one operator has its type.
    ///
    /// # Errors
    ///
    /// As [`Format::text`], and if there is a value of another type.
    pub fn json(format: &serde_json::Value, omit_empty: bool) -> Result<Format, Unknown> {
        match item(format)? {
            Item::Object(fields) => Ok(Format {
                shape: Shape::Json(fields),
                omit_empty,
            }),
            Item::Template(_) => Err(Unknown("a text instead of an object".to_owned())),
        }
    }

    /// The line of a connection. It ends as the format says; a JSON object ends with its line.
    pub fn line(&self, record: &Record<'_>) -> String {
        match &self.shape {
            Shape::Text(template) => template.text(record, self.omit_empty),
            Shape::Json(fields) => {
                let object = object(fields, record, self.omit_empty);
                format!("{}\n", serde_json::Value::Object(object))
            }
        }
    }
}

fn item(format: &serde_json::Value) -> Result<Item, Unknown> {
    match format {
        serde_json::Value::String(text) => Ok(Item::Template(Template::parse(text)?)),
        serde_json::Value::Object(fields) => {
            let fields = fields.iter();
            let items = fields.map(|(name, value)| Ok((name.clone(), item(value)?)));
            Ok(Item::Object(items.collect::<Result<_, Unknown>>()?))
        }
        other => Err(Unknown(format!("the value {other}"))),
    }
}

fn object(
    fields: &BTreeMap<String, Item>,
    record: &Record<'_>,
    omit_empty: bool,
) -> serde_json::Map<String, serde_json::Value> {
    let values = fields.iter().map(|(name, item)| {
        let value = match item {
            Item::Template(template) => template.json(record, omit_empty),
            Item::Object(fields) => object(fields, record, omit_empty).into(),
        };
        (name.clone(), value)
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::*;

    /// A connection that was served, with addresses of the documentation's networks.
    fn record<'a>(host: &'a Address, local: &'a Address) -> Record<'a> {
        Record {
            start: UNIX_EPOCH + Duration::from_millis(1_796_047_023_228),
            duration: Duration::from_micros(1_900),
            bytes_received: 3,
            bytes_sent: 11,
            flags: &[],
            upstream_host: Some(host),
            upstream_cluster: Some("alt"),
            attempts: 1,
            upstream_local: Some(local),
            upstream_failure: None,
            downstream_failure: None,
            downstream_local: Some(local),
            downstream_remote: Some(host),
            server_name: None,
            tls: None,
            connection: 7,
            termination: None,
            details: None,
            chain: Some("chain"),
            host_name: "vm",
        }
    }

    fn line(format: &Format, change: impl Fn(&mut Record<'_>)) -> String {
        let host = Address::Socket("127.0.0.1:18899".parse().unwrap());
        let local = Address::Socket("[::1]:52274".parse().unwrap());
        let mut record = record(&host, &local);
        change(&mut record);
        format.line(&record)
    }

    fn text(format: &str) -> String {
        line(&Format::text(format, false).unwrap(), |_| {})
    }

    /// As Envoy 1.38 printed it for such a connection.
    #[test]
    fn the_default() {
        let expected = "[2026-11-30T13:57:03.228Z] \"- - -\" 0 - 3 11 1 - \"-\" \"-\" \"-\" \"-\" \"127.0.0.1:18899\"\n";
        assert_eq!(line(&Format::default(), |_| {}), expected);
    }

    #[test]
    fn operators_in_a_text() {
        let cases = [
            (
                "%START_TIME(%d/%b/%Y:%H:%M:%S %z %s)%",
                "30/Nov/2026:13:57:03 +0000 1796047023",
            ),
            ("%START_TIME(%s(%3f))%|", "1796047023(228)|"),
            (
                "%UPSTREAM_CLUSTER% %UPSTREAM_REMOTE_ADDRESS% %UPSTREAM_REMOTE_PORT%",
                "alt 127.0.0.1:18899 18899",
            ),
            (
                "%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%",
                "[::1]:52274 ::1",
            ),
            (
                "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS% %DOWNSTREAM_REMOTE_PORT%",
                "127.0.0.1:18899 18899",
            ),
            (
                "%REQUESTED_SERVER_NAME% %DOWNSTREAM_TLS_VERSION% %PROTOCOL%",
                "- - -",
            ),
            (
                "%RESPONSE_FLAGS% %RESPONSE_FLAGS_LONG% %RESPONSE_CODE%",
                "- - 0",
            ),
            (
                "%CONNECTION_ID% %FILTER_CHAIN_NAME% %HOSTNAME%",
                "7 chain vm",
            ),
            ("%REQ(X?Y):10%%RESP(X)%%TRAILER(Y)% 100%%", "--- 100%"),
            ("plain", "plain"),
        ];
        for (format, expected) in cases {
            assert_eq!(text(format), expected, "{format}");
        }
    }

    #[test]
    fn what_went_wrong() {
        let format = "%RESPONSE_FLAGS% %RESPONSE_FLAGS_LONG% %UPSTREAM_TRANSPORT_FAILURE_REASON% %UPSTREAM_LOCAL_PORT%";
        let shown = line(&Format::text(format, false).unwrap(), |record| {
            record.flags = &[
                Flag::UpstreamRetryLimitExceeded,
                Flag::UpstreamConnectionFailure,
            ];
            record.upstream_failure = Some("delayed connect error: Connection refused");
            record.upstream_local = None;
        });
        let expected = "UF,URX UpstreamConnectionFailure,UpstreamRetryLimitExceeded \
                        delayed_connect_error:_Connection_refused -";
        assert_eq!(shown, expected);
    }

    #[test]
    fn what_a_caller_sent() {
        let uris = vec!["spiffe://a".to_owned(), "spiffe://b".to_owned()].leak();
        let format = "%REQUESTED_SERVER_NAME% %DOWNSTREAM_PEER_URI_SAN% %DOWNSTREAM_TLS_VERSION% %DOWNSTREAM_TLS_CIPHER%";
        let format = Format::text(format, false).unwrap();
        let shown = line(&format, |record| {
            record.server_name = Some("a_b.example");
            record.tls = Some(Tls {
                version: TlsVersion::V1_3,
                cipher: "TLS_AES_128_GCM_SHA256",
                peer_uris: uris,
            });
        });
        assert_eq!(
            shown,
            "a_b.example spiffe://a,spiffe://b TLSv1.3 TLS_AES_128_GCM_SHA256"
        );
        let shown = line(&format, |record| record.server_name = Some("a\nb"));
        assert_eq!(shown, "INVALID:a_b - - -");
    }

    /// As Envoy 1.38 printed it: sorted names, types, and `null` also if empty values are omitted.
    #[test]
    fn json_objects() {
        let format = json!({
            "b": "%BYTES_SENT%", "a": "%PROTOCOL%", "B": "x%PROTOCOL%y", "flags": "%RESPONSE_FLAGS%",
            "nested": {"p": "%PROTOCOL%", "quote\"": "a\"\\/<é\n%RESPONSE_CODE%"}, "empty": "",
            "socket": "%DOWNSTREAM_LOCAL_PORT%",
        });
        let pipe = Address::Pipe {
            path: "/run/web.sock".into(),
            mode: 0,
        };
        let host = Address::Socket("127.0.0.1:1".parse().unwrap());
        let show = |omit_empty| {
            Format::json(&format, omit_empty)
                .unwrap()
                .line(&record(&host, &pipe))
        };
        let expected = "{\"B\":\"x-y\",\"a\":null,\"b\":11,\"empty\":\"\",\"flags\":\"-\",\
                        \"nested\":{\"p\":null,\"quote\\\"\":\"a\\\"\\\\/<é\\n0\"},\"socket\":null}\n";
        assert_eq!(show(false), expected);
        assert_eq!(show(true), expected.replace("x-y", "xy"));
        let text = Format::text(
            "%DOWNSTREAM_LOCAL_ADDRESS% [%DOWNSTREAM_LOCAL_PORT%]",
            false,
        )
        .unwrap();
        assert_eq!(text.line(&record(&host, &pipe)), "/run/web.sock []");
    }

    #[test]
    fn formats_that_need_envoy() {
        for format in [
            "%",
            "%X",
            "%UNKNOWN%",
            "%DYNAMIC_METADATA(a:b)%",
            "%REQ%",
            "%REQ()%",
            "%REQ(a?b?c)%",
            "%REQ(a b)%",
            "%BYTES_SENT(1)%",
            "%BYTES_SENT:3%",
            "%START_TIME(%Q)%",
            "%START_TIME(%Y)",
            "%bytes_sent%",
            "%REQ(a):x%",
            "%REQ(a):99999999999%",
            "100%",
            "%DOWNSTREAM_PEER_SUBJECT%",
            "%ROUTE_NAME",
        ] {
            assert!(Format::text(format, false).is_err(), "{format}");
        }
        for format in [
            json!("text"),
            json!({"a": 1}),
            json!({"a": ["x"]}),
            json!({"a": {"b": "%X%"}}),
        ] {
            assert!(Format::json(&format, false).is_err(), "{format}");
        }
    }

    #[test]
    fn flags_by_name() {
        for flag in Flag::ALL {
            assert_eq!(Flag::named(flag.short()), Some(*flag));
        }
        assert_eq!(Flag::named(""), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(format in "(%[A-Z_]{0,12}(\\([^%]{0,5}\\))?(:[0-9]{0,3})?%?|.){0,6}") {
            if let Ok(format) = Format::text(&format, true) {
                line(&format, |_| {});
            }
        }
    }
}
