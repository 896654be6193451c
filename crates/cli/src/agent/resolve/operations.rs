//! Operational settings of the server: TLS, access to the HTTP API, limits, logs, the audit log and
//! telemetry.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use http::{HeaderName, HeaderValue};
use legate_runtime::logging::{Level, LogOptions};
use legate_runtime::rotating_file::Rotation;
use legate_server::{
    AuditSink, HttpPolicy, LimitMode, QueryTimes, RequestLimits, ServerConfig, SizeLimits,
    TelemetryConfig, TlsPolicy, TlsVersion,
};

use super::super::config::{
    Audit, Limits, Protocol, RequestRates, Settings, Sink, Telemetry, Tls, time,
};

/// The maximum of `max_header_bytes`.
const MAX_HEADER: i64 = 16 * 1024 * 1024;

/// The maximum limit for values and transactions.
const MAX_STORED: u64 = 64 * 1024 * 1024;

/// Files with a certificate and its key.
type Pair = Option<(PathBuf, PathBuf)>;

/// An additional file for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFile {
    pub(crate) path: PathBuf,
    pub(crate) rotation: Rotation,
}

/// Adds the operational settings to a server's configuration.
pub(super) fn with(
    server: ServerConfig,
    settings: &Settings,
    dev: bool,
) -> anyhow::Result<ServerConfig> {
    let all = settings.tls.clone().unwrap_or_default();
    let (https_files, https_policy) = tls("https", &all, all.https.as_ref())?;
    let (grpc_tls_files, grpc_tls_policy) = tls("grpc", &all, all.grpc.as_ref())?;
    let session_ttl_min = time("session_ttl_min", settings.session_ttl_min.as_deref())?;
    Ok(ServerConfig {
        https_files,
        https_policy,
        grpc_tls_files,
        grpc_tls_policy,
        http_policy: http_policy(settings)?,
        request_limits: request_limits(settings.limits.as_ref())?,
        sizes: sizes(settings.limits.as_ref())?,
        query_times: query_times(settings)?,
        session_ttl_min: session_ttl_min.unwrap_or(server.session_ttl_min),
        audit: audit(settings.audit.as_ref())?,
        telemetry: telemetry(settings.telemetry.as_ref())?,
        debug: settings.enable_debug.unwrap_or(dev),
        ..server
    })
}

/// TLS settings of a listener. `tls.defaults` applies to fields that are not set.
pub(super) fn tls(
    name: &str,
    all: &Tls,
    own: Option<&Protocol>,
) -> anyhow::Result<(Pair, TlsPolicy)> {
    let key = format!("tls.{name}");
    let defaults = all.defaults.clone().unwrap_or_default();
    let own = own.cloned().unwrap_or_default();
    let pair = match files(&key, &own)? {
        Some(pair) => Some(pair),
        None => files("tls.defaults", &defaults)?,
    };
    let set = |own: Option<String>, default: Option<String>| {
        own.filter(|text| !text.is_empty())
            .or(default)
            .filter(|text| !text.is_empty())
    };
    let authorities = [
        set(own.ca_file, defaults.ca_file),
        set(own.ca_path, defaults.ca_path),
    ];
    let authorities: Vec<PathBuf> = authorities
        .into_iter()
        .flatten()
        .map(PathBuf::from)
        .collect();
    let verify_incoming = own.verify_incoming.or(defaults.verify_incoming) == Some(true);
    if verify_incoming && authorities.is_empty() {
        bail!("{key}.verify_incoming requires {key}.ca_file or {key}.ca_path, the CAs of clients");
    }
    let version = set(own.tls_min_version, defaults.tls_min_version);
    let min_version = match version.as_deref().unwrap_or("TLSv1_2") {
        "TLS_AUTO" | "TLSv1_2" | "tls12" => TlsVersion::V1_2,
        "TLSv1_3" | "tls13" => TlsVersion::V1_3,
        other => bail!("{key}.tls_min_version {other:?} must be TLSv1_2 or TLSv1_3"),
    };
    let suites = set(own.tls_cipher_suites, defaults.tls_cipher_suites).unwrap_or_default();
    let suites = suites
        .split(',')
        .map(str::trim)
        .filter(|suite| !suite.is_empty());
    let policy = TlsPolicy {
        verify_incoming,
        client_authorities: authorities,
        min_version,
        cipher_suites: suites.map(ToOwned::to_owned).collect(),
    };
    Ok((pair, policy))
}

fn files(key: &str, files: &Protocol) -> anyhow::Result<Pair> {
    let named = |file: &Option<String>| file.clone().filter(|file| !file.is_empty());
    match (named(&files.cert_file), named(&files.key_file)) {
        (Some(cert), Some(key)) => Ok(Some((cert.into(), key.into()))),
        (None, None) => Ok(None),
        _ => bail!("{key} requires both cert_file and key_file"),
    }
}

/// Access restrictions of the HTTP API.
fn http_policy(settings: &Settings) -> anyhow::Result<HttpPolicy> {
    let http = settings.http_config.clone().unwrap_or_default();
    let default = HttpPolicy::default();
    let networks = http.allow_write_http_from.unwrap_or_default();
    let networks = networks.iter().map(|network| {
        network.parse().with_context(|| {
            format!("http_config.allow_write_http_from: {network:?} is not a network")
        })
    });
    let headers = http.response_headers.unwrap_or_default();
    let headers = headers.iter().map(|(name, value)| {
        let key = || format!("http_config.response_headers: {name:?} cannot be sent");
        let parsed = HeaderName::from_bytes(name.as_bytes()).with_context(key)?;
        Ok((parsed, HeaderValue::from_str(value).with_context(key)?))
    });
    let max_header_bytes = match http.max_header_bytes {
        None | Some(0) => default.max_header_bytes,
        Some(bytes @ 8192..=MAX_HEADER) => usize::try_from(bytes)?,
        Some(other) => {
            bail!("http_config.max_header_bytes is {other}: it must be from 8192 to {MAX_HEADER}")
        }
    };
    let handshake = settings.limits.as_ref();
    let handshake = handshake.and_then(|limits| limits.https_handshake_timeout.as_deref());
    Ok(HttpPolicy {
        block_endpoints: http.block_endpoints.unwrap_or_default(),
        allow_write_from: networks.collect::<anyhow::Result<_>>()?,
        response_headers: headers.collect::<anyhow::Result<_>>()?,
        hosts: settings
            .ui_config
            .clone()
            .and_then(|ui| ui.hosts)
            .unwrap_or_default(),
        max_header_bytes,
        handshake_timeout: time("limits.https_handshake_timeout", handshake)?
            .filter(|time| !time.is_zero())
            .unwrap_or(default.handshake_timeout),
    })
}

/// Limits for requests.
fn request_limits(limits: Option<&Limits>) -> anyhow::Result<RequestLimits> {
    let rates = limits.and_then(|limits| limits.request_limits.clone());
    let RequestRates {
        mode,
        read_rate,
        write_rate,
    } = rates.unwrap_or_default();
    let mode = match mode.as_deref().unwrap_or("disabled") {
        "disabled" | "" => LimitMode::Disabled,
        "permissive" => LimitMode::Permissive,
        "enforcing" => LimitMode::Enforcing,
        other => {
            bail!("limits.request_limits.mode {other:?} must be disabled, permissive or enforcing")
        }
    };
    // A negative rate means no limit, as in Consul.
    let rate = |rate: Option<f64>| rate.filter(|rate| *rate >= 0.0 && rate.is_finite());
    Ok(RequestLimits {
        mode,
        read_rate: rate(read_rate),
        write_rate: rate(write_rate),
    })
}

/// Size limits of stored data.
fn sizes(limits: Option<&Limits>) -> anyhow::Result<SizeLimits> {
    let default = SizeLimits::default();
    let size = |key: &str, size: Option<u64>, default: usize| match size {
        None | Some(0) => Ok(default),
        Some(size) if size <= MAX_STORED => Ok(usize::try_from(size)?),
        Some(size) => bail!("limits.{key} is {size}: it must be at most {MAX_STORED}"),
    };
    let kv = limits.and_then(|limits| limits.kv_max_value_size);
    let transaction = limits.and_then(|limits| limits.txn_max_req_len);
    let kv_value = size("kv_max_value_size", kv, default.kv_value)?;
    Ok(SizeLimits {
        kv_value,
        // As in Consul, the default for transactions is the limit of values.
        transaction: size("txn_max_req_len", transaction, kv_value)?,
    })
}

/// The wait times of blocking queries.
fn query_times(settings: &Settings) -> anyhow::Result<QueryTimes> {
    let limits = QueryTimes::default();
    let max = time("max_query_time", settings.max_query_time.as_deref())?.unwrap_or(limits.max);
    let default = time("default_query_time", settings.default_query_time.as_deref())?;
    let default = default.unwrap_or_else(|| limits.default.min(max));
    let longest = Duration::from_secs(24 * 3600);
    if default.is_zero() || max > longest {
        bail!("default_query_time must be more than 0, and max_query_time at most 24h");
    }
    Ok(QueryTimes {
        default: default.min(max),
        max,
    })
}

/// The sinks of the audit log.
fn audit(audit: Option<&Audit>) -> anyhow::Result<Vec<AuditSink>> {
    let audit = audit.cloned().unwrap_or_default();
    if audit.enabled != Some(true) {
        return Ok(Vec::new());
    }
    let sinks = audit.sink.unwrap_or_default();
    if sinks.is_empty() {
        bail!("audit.enabled requires a sink: audit {{ sink \"NAME\" {{ path = \"FILE\" }} }}");
    }
    let sinks = sinks.into_iter().map(|(name, sink)| {
        let key = format!("audit.sink {name:?}");
        self::sink(name, sink).context(key)
    });
    sinks.collect()
}

fn sink(name: String, sink: Sink) -> anyhow::Result<AuditSink> {
    for (key, set, served) in [
        ("type", sink.r#type, "file"),
        ("format", sink.format, "json"),
        ("delivery_guarantee", sink.delivery_guarantee, "best-effort"),
    ] {
        if let Some(set) = set.filter(|set| !set.is_empty() && set != served) {
            bail!("{key} = {set:?} is not supported: it is always {served:?}");
        }
    }
    let path = sink
        .path
        .filter(|path| !path.is_empty())
        .context("path is required")?;
    let mode = match sink.mode.filter(|mode| !mode.is_empty()) {
        None => None,
        Some(text) => match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 => Some(mode),
            _ => bail!("mode {text:?} must be permissions in octal, such as 0600"),
        },
    };
    let rotation = rotation(
        "rotate_",
        sink.rotate_bytes,
        sink.rotate_duration,
        sink.rotate_max_files,
    )?;
    Ok(AuditSink {
        name,
        path: path.into(),
        mode,
        rotation,
    })
}

fn rotation(
    key: &str,
    bytes: Option<i64>,
    age: Option<String>,
    keep: Option<i64>,
) -> anyhow::Result<Rotation> {
    let default = Rotation::default();
    let bytes = bytes.unwrap_or_default();
    let age = time(&format!("{key}duration"), age.as_deref())?;
    Ok(Rotation {
        bytes: u64::try_from(bytes).with_context(|| format!("{key}bytes must not be negative"))?,
        age: age.filter(|age| !age.is_zero()).unwrap_or(default.age),
        keep: match keep.unwrap_or_default() {
            0 => None,
            keep => Some(usize::try_from(keep).unwrap_or(0)),
        },
    })
}

/// Telemetry to other systems.
fn telemetry(telemetry: Option<&Telemetry>) -> anyhow::Result<TelemetryConfig> {
    let set = telemetry.cloned().unwrap_or_default();
    let default = TelemetryConfig::default();
    let named = |text: Option<String>| text.filter(|text| !text.is_empty());
    let ratio = set.otlp_traces_ratio.unwrap_or(default.traces_ratio);
    if !(0.0..=1.0).contains(&ratio) {
        bail!("telemetry.otlp_traces_ratio is {ratio}: it must be from 0 to 1");
    }
    let interval = time("telemetry.otlp_interval", set.otlp_interval.as_deref())?;
    let interval = interval.unwrap_or(default.interval);
    if interval < Duration::from_secs(1) {
        bail!("telemetry.otlp_interval must be at least 1s");
    }
    Ok(TelemetryConfig {
        otlp_endpoint: named(set.otlp_endpoint),
        otlp_headers: set.otlp_headers.unwrap_or_default(),
        interval,
        traces_ratio: ratio,
        statsd: named(set.statsd_address),
        dogstatsd: named(set.dogstatsd_addr),
        dogstatsd_tags: set.dogstatsd_tags.unwrap_or_default(),
    })
}

/// Log settings.
pub(super) fn log(settings: &Settings) -> anyhow::Result<LogOptions> {
    let level = settings
        .log_level
        .as_deref()
        .filter(|level| !level.is_empty());
    let level = match level.unwrap_or("info").to_ascii_lowercase().as_str() {
        "err" => "error".to_owned(),
        other => other.to_owned(),
    };
    Ok(LogOptions {
        name: "legate",
        level: level.parse::<Level>().context("log_level")?,
        json: settings.log_json == Some(true),
    })
}

/// The additional log file.
pub(super) fn log_file(settings: &Settings) -> anyhow::Result<Option<LogFile>> {
    let rotation = rotation(
        "log_rotate_",
        settings.log_rotate_bytes,
        settings.log_rotate_duration.clone(),
        settings.log_rotate_max_files,
    )?;
    let Some(path) = settings.log_file.clone().filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    // A directory gets a file with Consul's name.
    let path = match path.ends_with('/') {
        true => PathBuf::from(path).join("consul.log"),
        false => PathBuf::from(path),
    };
    Ok(Some(LogFile { path, rotation }))
}
