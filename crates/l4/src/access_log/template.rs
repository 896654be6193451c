//! Texts with operators, such as `%BYTES_SENT%`.

use std::borrow::Cow;

use serde_json::{Value as Json, json};

use super::time::TimeFormat;
use super::{Record, Tls, Unknown};
use crate::model::{Address, TlsVersion};

/// A text with operators.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    Operator(Operator),
}

#[derive(Debug, Clone, PartialEq)]
enum Operator {
    StartTime(TimeFormat),
    Duration,
    BytesReceived,
    BytesSent,
    Flags,
    FlagsLong,
    UpstreamHost,
    UpstreamRemote(Part),
    UpstreamCluster,
    UpstreamLocal(Part),
    UpstreamFailure,
    DownstreamLocal(Part),
    DownstreamRemote(Part),
    DownstreamFailure,
    ServerName,
    PeerUris,
    TlsVersion,
    TlsCipher,
    ConnectionId,
    Termination,
    Details,
    Attempts,
    ChainName,
    HostName,
    /// Always 0 for a connection.
    Zero,
    /// What only requests have.
    Absent,
}

/// Which part of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    WithoutPort,
    Port,
}

/// An operator for a part of an address.
type OfAddress = fn(Part) -> Operator;

/// What an operator gives.
enum Given<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    /// Not known: `-` or `null`.
    Nothing,
    /// A port of an address that has none: an empty text or `null`.
    NoPort,
}

impl Template {
    pub(super) fn parse(format: &str) -> Result<Template, Unknown> {
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            text.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('%') {
                text.push('%');
                rest = after;
                continue;
            }
            let (operator, after) = operator(rest)?;
            rest = after;
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(Piece::Operator(operator));
        }
        text.push_str(rest);
        if !text.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Text(text));
        }
        Ok(Template(pieces))
    }

    pub(super) fn text(&self, record: &Record<'_>, omit_empty: bool) -> String {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Operator(operator) => match operator.give(record) {
                    Given::Text(text) => out.push_str(&text),
                    Given::Number(number) => out.push_str(&number.to_string()),
                    Given::Nothing if !omit_empty => out.push('-'),
                    Given::Nothing | Given::NoPort => {}
                },
            }
        }
        out
    }

    /// The value in JSON: what a single operator gives has its type, everything else is a string.
    pub(super) fn json(&self, record: &Record<'_>, omit_empty: bool) -> Json {
        let [Piece::Operator(operator)] = self.0.as_slice() else {
            return json!(self.text(record, omit_empty));
        };
        match operator.give(record) {
            Given::Text(text) => json!(text),
            Given::Number(number) => json!(number),
            Given::Nothing | Given::NoPort => Json::Null,
        }
    }
}

/// Parses an operator after its first `%`, and returns what follows it.
fn operator(text: &str) -> Result<(Operator, &str), Unknown> {
    let malformed = || {
        let shown: String = text.chars().take(60).collect();
        Unknown(format!("no operator at \"%{shown}\""))
    };
    let end = text.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
    let (name, mut rest) = text.split_at(end.ok_or_else(malformed)?);
    let mut parameter = None;
    if let Some(inside) = rest.strip_prefix('(') {
        // The parameter may have brackets itself: it ends where an operator may end.
        let ends = inside.match_indices(')').map(|(at, _)| at);
        let end = ends
            .into_iter()
            .find(|at| length(&inside[at + 1..]).is_some());
        let end = end.ok_or_else(malformed)?;
        parameter = Some(&inside[..end]);
        rest = &inside[end + 1..];
    }
    let (length, rest) = length(rest).ok_or_else(malformed)?;
    let shown = &text[..text.len() - rest.len()];
    let unknown = || Unknown(format!("%{shown}"));
    // What only requests have; a header needs a name, and may be cut.
    if matches!((name, parameter), ("REQ" | "RESP" | "TRAILER", Some(header)) if header_name(header))
    {
        return Ok((Operator::Absent, rest));
    }
    if length {
        return Err(unknown());
    }
    let operator = match (name, parameter) {
        ("START_TIME", format) => {
            let format = TimeFormat::parse(format.unwrap_or_default());
            Operator::StartTime(format.ok_or_else(unknown)?)
        }
        ("RESPONSE_CODE_DETAILS", None) => Operator::Details,
        (name, None) => plain(name).ok_or_else(unknown)?,
        _ => return Err(unknown()),
    };
    Ok((operator, rest))
}

/// Reads an optional length and the `%` at the end of an operator: whether there is a length, and what follows.
fn length(text: &str) -> Option<(bool, &str)> {
    if let Some(rest) = text.strip_prefix('%') {
        return Some((false, rest));
    }
    let number = text.strip_prefix(':')?;
    let (digits, rest) = number.split_once('%')?;
    let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (valid && digits.parse::<u32>().is_ok()).then_some((true, rest))
}

/// Whether it is the name of a header, perhaps with the name of another one.
fn header_name(names: &str) -> bool {
    let mut names = names.split('?');
    let (first, second, third) = (names.next(), names.next(), names.next());
    let valid = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    first.is_some_and(valid) && second.is_none_or(valid) && third.is_none()
}

/// The operators without parameters.
fn plain(name: &str) -> Option<Operator> {
    let address = |name: &str, operator: OfAddress| match name {
        "ADDRESS" => Some(operator(Part::Whole)),
        "ADDRESS_WITHOUT_PORT" => Some(operator(Part::WithoutPort)),
        "PORT" => Some(operator(Part::Port)),
        _ => None,
    };
    // Nothing changes the addresses of a connection, so the direct ones are the same, but for the local one: it is not
    // that of a redirection.
    let addresses: [(&str, OfAddress); 5] = [
        ("UPSTREAM_LOCAL_", Operator::UpstreamLocal),
        ("UPSTREAM_REMOTE_", Operator::UpstreamRemote),
        ("DOWNSTREAM_LOCAL_", Operator::DownstreamLocal),
        ("DOWNSTREAM_REMOTE_", Operator::DownstreamRemote),
        ("DOWNSTREAM_DIRECT_REMOTE_", Operator::DownstreamRemote),
    ];
    for (prefix, operator) in addresses {
        if let Some(part) = name.strip_prefix(prefix)
            && let Some(operator) = address(part, operator)
        {
            return Some(operator);
        }
    }
    Some(match name {
        "DURATION" => Operator::Duration,
        "BYTES_RECEIVED" => Operator::BytesReceived,
        "BYTES_SENT" => Operator::BytesSent,
        "RESPONSE_FLAGS" => Operator::Flags,
        "RESPONSE_FLAGS_LONG" => Operator::FlagsLong,
        "UPSTREAM_HOST" => Operator::UpstreamHost,
        "UPSTREAM_CLUSTER" => Operator::UpstreamCluster,
        "UPSTREAM_TRANSPORT_FAILURE_REASON" => Operator::UpstreamFailure,
        "DOWNSTREAM_TRANSPORT_FAILURE_REASON" => Operator::DownstreamFailure,
        "REQUESTED_SERVER_NAME" => Operator::ServerName,
        "DOWNSTREAM_PEER_URI_SAN" => Operator::PeerUris,
        "DOWNSTREAM_TLS_VERSION" => Operator::TlsVersion,
        "DOWNSTREAM_TLS_CIPHER" => Operator::TlsCipher,
        "CONNECTION_ID" => Operator::ConnectionId,
        "CONNECTION_TERMINATION_DETAILS" => Operator::Termination,
        "UPSTREAM_REQUEST_ATTEMPT_COUNT" => Operator::Attempts,
        "FILTER_CHAIN_NAME" => Operator::ChainName,
        "HOSTNAME" => Operator::HostName,
        "RESPONSE_CODE" => Operator::Zero,
        "PROTOCOL" | "UPSTREAM_PROTOCOL" | "ROUTE_NAME" | "VIRTUAL_CLUSTER_NAME" => {
            Operator::Absent
        }
        _ => return None,
    })
}

impl Operator {
    fn give<'a>(&self, record: &Record<'a>) -> Given<'a> {
        match self {
            Operator::StartTime(format) => Given::Text(format.show(record.start).into()),
            Operator::Duration => {
                let milliseconds = record.duration.as_millis();
                Given::Number(u64::try_from(milliseconds).unwrap_or(u64::MAX))
            }
            Operator::BytesReceived => Given::Number(record.bytes_received),
            Operator::BytesSent => Given::Number(record.bytes_sent),
            Operator::Flags => flags(record, super::Flag::short),
            Operator::FlagsLong => flags(record, super::Flag::long),
            Operator::UpstreamHost => address(record.upstream_host, Part::Whole),
            // Known once the connection exists, and then the host's.
            Operator::UpstreamRemote(part) => {
                let connected = record.upstream_local.and(record.upstream_host);
                address(connected, *part)
            }
            Operator::UpstreamCluster => text(record.upstream_cluster),
            Operator::UpstreamLocal(part) => address(record.upstream_local, *part),
            Operator::UpstreamFailure => one_word(record.upstream_failure),
            Operator::DownstreamLocal(part) => address(record.downstream_local, *part),
            Operator::DownstreamRemote(part) => address(record.downstream_remote, *part),
            Operator::DownstreamFailure => one_word(record.downstream_failure),
            Operator::ServerName => server_name(record.server_name),
            Operator::PeerUris => tls(record, |tls| tls.peer_uris.join(",").into()),
            Operator::TlsVersion => tls(record, |tls| version(tls.version).into()),
            Operator::TlsCipher => tls(record, |tls| tls.cipher.into()),
            Operator::ConnectionId => Given::Number(record.connection),
            Operator::Termination => text(record.termination),
            Operator::Details => one_word(record.details),
            Operator::Attempts => Given::Number(record.attempts.into()),
            Operator::ChainName => text(record.chain),
            Operator::HostName => text(Some(record.host_name)),
            Operator::Zero => Given::Number(0),
            Operator::Absent => Given::Nothing,
        }
    }
}

fn text(text: Option<&str>) -> Given<'_> {
    match text {
        None | Some("") => Given::Nothing,
        Some(text) => Given::Text(text.into()),
    }
}

/// A reason in words, as one word.
fn one_word(reason: Option<&str>) -> Given<'_> {
    match reason {
        None | Some("") => Given::Nothing,
        Some(reason) => Given::Text(reason.replace(' ', "_").into()),
    }
}

/// What a caller sent as a name may be anything; Envoy marks what is no name.
fn server_name(name: Option<&str>) -> Given<'_> {
    let name = match name {
        None | Some("") => return Given::Nothing,
        Some(name) => name,
    };
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.chars().all(valid) {
        return Given::Text(name.into());
    }
    // One underscore for each byte.
    let bytes = name.bytes();
    let marked: String = bytes
        .map(|byte| {
            if valid(char::from(byte)) {
                char::from(byte)
            } else {
                '_'
            }
        })
        .collect();
    Given::Text(format!("INVALID:{marked}").into())
}

/// The flags in Envoy's order, separated by commas; `-` also in JSON if there is none.
fn flags<'a>(record: &Record<'_>, name: fn(super::Flag) -> &'static str) -> Given<'a> {
    let mut flags = record.flags.to_vec();
    flags.sort_unstable();
    flags.dedup();
    let names: Vec<&str> = flags.into_iter().map(name).collect();
    Given::Text(if names.is_empty() {
        "-".into()
    } else {
        names.join(",").into()
    })
}

fn tls<'a>(record: &Record<'a>, of: impl FnOnce(Tls<'a>) -> Cow<'a, str>) -> Given<'a> {
    match record.tls.map(of) {
        Some(text) if !text.is_empty() => Given::Text(text),
        _ => Given::Nothing,
    }
}

fn version(version: TlsVersion) -> &'static str {
    match version {
        TlsVersion::Auto => "",
        TlsVersion::V1_0 => "TLSv1",
        TlsVersion::V1_1 => "TLSv1.1",
        TlsVersion::V1_2 => "TLSv1.2",
        TlsVersion::V1_3 => "TLSv1.3",
    }
}

fn address(address: Option<&Address>, part: Part) -> Given<'_> {
    let Some(address) = address else {
        return Given::Nothing;
    };
    match (address, part) {
        (Address::Socket(address), Part::Whole) => Given::Text(address.to_string().into()),
        (Address::Socket(address), Part::WithoutPort) => {
            Given::Text(address.ip().to_string().into())
        }
        (Address::Socket(address), Part::Port) => Given::Number(address.port().into()),
        (Address::Pipe { .. }, Part::Port) => Given::NoPort,
        (Address::Pipe { path, .. }, _) => Given::Text(path.to_string_lossy()),
        (Address::Dns(name, port), Part::Whole) => Given::Text(format!("{name}:{port}").into()),
        (Address::Dns(name, _), Part::WithoutPort) => Given::Text((&**name).into()),
        (Address::Dns(_, port), Part::Port) => Given::Number((*port).into()),
    }
}
