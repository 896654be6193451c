//! Every setting from every source, compared with a table of the settings of Consul's dataplane.
//! The table is independent of the declarations.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Map, Value as Json};

use super::super::table::{Kind, SETTINGS, Setting};
use super::*;

/// Flag, type (text, integer, boolean, duration, map), default, variable, key in the file. Empty if
/// there is none.
type Row = (&'static str, char, &'static str, &'static str, &'static str);

/// The settings of Consul's dataplane.
#[rustfmt::skip]
const ORIGINAL: [Row; 64] = [
    ("version", 'b', "false", "", ""),
    ("check-proxy-health", 'b', "false", "", ""),
    ("config-file", 't', "", "", ""),
    ("mode", 't', "sidecar", "DP_MODE", "mode"),
    ("addresses", 't', "", "DP_CONSUL_ADDRESSES", "consul.addresses"),
    ("grpc-port", 'i', "8502", "DP_CONSUL_GRPC_PORT", "consul.grpcPort"),
    ("server-watch-disabled", 'b', "false", "DP_SERVER_WATCH_DISABLED", "consul.serverWatchDisabled"),
    ("log-level", 't', "info", "DP_LOG_LEVEL", "logging.logLevel"),
    ("log-json", 'b', "false", "DP_LOG_JSON", "logging.logJSON"),
    ("proxy-node-name", 't', "", "DP_PROXY_NODE_NAME", "proxy.nodeName"),
    ("proxy-node-id", 't', "", "DP_PROXY_NODE_ID", "proxy.nodeID"),
    ("proxy-id", 't', "", "DP_PROXY_ID", "proxy.id"),
    ("proxy-id-path", 't', "", "DP_PROXY_ID_PATH", "proxy.idPath"),
    ("proxy-namespace", 't', "", "DP_PROXY_NAMESPACE", "proxy.namespace"),
    ("proxy-partition", 't', "", "DP_PROXY_PARTITION", "proxy.partition"),
    ("service-node-name", 't', "", "DP_SERVICE_NODE_NAME", "service.nodeName"),
    ("service-node-id", 't', "", "DP_SERVICE_NODE_ID", "service.nodeID"),
    ("proxy-service-id", 't', "", "DP_PROXY_SERVICE_ID", "service.serviceID"),
    ("proxy-service-id-path", 't', "", "DP_PROXY_SERVICE_ID_PATH", "service.serviceIDPath"),
    ("service-namespace", 't', "", "DP_SERVICE_NAMESPACE", "service.namespace"),
    ("service-partition", 't', "", "DP_SERVICE_PARTITION", "service.partition"),
    ("credential-type", 't', "", "DP_CREDENTIAL_TYPE", "consul.credentials.type"),
    ("static-token", 't', "", "DP_CREDENTIAL_STATIC_TOKEN", "consul.credentials.static.token"),
    ("login-auth-method", 't', "", "DP_CREDENTIAL_LOGIN_AUTH_METHOD", "consul.credentials.login.authMethod"),
    ("login-namespace", 't', "", "DP_CREDENTIAL_LOGIN_NAMESPACE", "consul.credentials.login.namespace"),
    ("login-partition", 't', "", "DP_CREDENTIAL_LOGIN_PARTITION", "consul.credentials.login.partition"),
    ("login-datacenter", 't', "", "DP_CREDENTIAL_LOGIN_DATACENTER", "consul.credentials.login.datacenter"),
    ("login-bearer-token", 't', "", "DP_CREDENTIAL_LOGIN_BEARER_TOKEN", "consul.credentials.login.bearerToken"),
    ("login-bearer-token-path", 't', "", "DP_CREDENTIAL_LOGIN_BEARER_TOKEN_PATH", "consul.credentials.login.bearerTokenPath"),
    ("login-meta", 'm', "", "DP_CREDENTIAL_LOGIN_META", "consul.credentials.login.meta"),
    ("telemetry-use-central-config", 'b', "true", "DP_TELEMETRY_USE_CENTRAL_CONFIG", "telemetry.useCentralConfig"),
    ("telemetry-prom-retention-time", 'd', "60s", "DP_TELEMETRY_PROM_RETENTION_TIME", "telemetry.prometheus.retentionTime"),
    ("telemetry-prom-ca-certs-path", 't', "", "DP_TELEMETRY_PROM_CA_CERTS_PATH", "telemetry.prometheus.caCertsPath"),
    ("telemetry-prom-key-file", 't', "", "DP_TELEMETRY_PROM_KEY_FILE", "telemetry.prometheus.keyFile"),
    ("telemetry-prom-cert-file", 't', "", "DP_TELEMETRY_PROM_CERT_FILE", "telemetry.prometheus.certFile"),
    ("telemetry-prom-service-metrics-url", 't', "", "DP_TELEMETRY_PROM_SERVICE_METRICS_URL", "telemetry.prometheus.serviceMetricsURL"),
    ("telemetry-prom-scrape-path", 't', "/metrics", "DP_TELEMETRY_PROM_SCRAPE_PATH", "telemetry.prometheus.scrapePath"),
    ("telemetry-prom-merge-port", 'i', "20100", "DP_TELEMETRY_PROM_MERGE_PORT", "telemetry.prometheus.mergePort"),
    ("envoy-admin-bind-address", 't', "127.0.0.1", "DP_ENVOY_ADMIN_BIND_ADDRESS", "envoy.adminBindAddress"),
    ("envoy-admin-bind-port", 'i', "19000", "DP_ENVOY_ADMIN_BIND_PORT", "envoy.adminBindPort"),
    ("envoy-ready-bind-address", 't', "", "DP_ENVOY_READY_BIND_ADDRESS", "envoy.readyBindAddress"),
    ("envoy-ready-bind-port", 'i', "0", "DP_ENVOY_READY_BIND_PORT", "envoy.readyBindPort"),
    ("envoy-concurrency", 'i', "2", "DP_ENVOY_CONCURRENCY", "envoy.concurrency"),
    ("envoy-drain-time-seconds", 'i', "30", "DP_ENVOY_DRAIN_TIME", "envoy.drainTimeSeconds"),
    ("envoy-drain-strategy", 't', "immediate", "DP_ENVOY_DRAIN_STRATEGY", "envoy.drainStrategy"),
    ("envoy-executable-path", 't', "", "DP_ENVOY_EXECUTABLE_PATH", "envoy.executablePath"),
    ("xds-bind-addr", 't', "127.0.0.1", "DP_XDS_BIND_ADDR", "xdsServer.bindAddress"),
    ("xds-bind-port", 'i', "0", "DP_XDS_BIND_PORT", "xdsServer.bindPort"),
    ("tls-disabled", 'b', "false", "DP_TLS_DISABLED", "consul.tls.disabled"),
    ("ca-certs", 't', "", "DP_CA_CERTS", "consul.tls.caCertsPath"),
    ("tls-cert", 't', "", "DP_TLS_CERT", "consul.tls.certFile"),
    ("tls-key", 't', "", "DP_TLS_KEY", "consul.tls.keyFile"),
    ("tls-server-name", 't', "", "DP_TLS_SERVER_NAME", "consul.tls.serverName"),
    ("tls-insecure-skip-verify", 'b', "false", "DP_TLS_INSECURE_SKIP_VERIFY", "consul.tls.insecureSkipVerify"),
    ("consul-dns-bind-addr", 't', "127.0.0.1", "DP_CONSUL_DNS_BIND_ADDR", "dnsServer.bindAddress"),
    ("consul-dns-bind-port", 'i', "-1", "DP_CONSUL_DNS_BIND_PORT", "dnsServer.bindPort"),
    ("shutdown-drain-listeners", 'b', "false", "DP_SHUTDOWN_DRAIN_LISTENERS", "envoy.shutdownDrainListenersEnabled"),
    ("shutdown-grace-period-seconds", 'i', "0", "DP_SHUTDOWN_GRACE_PERIOD_SECONDS", "envoy.shutdownGracePeriodSeconds"),
    ("graceful-shutdown-path", 't', "/graceful_shutdown", "DP_GRACEFUL_SHUTDOWN_PATH", "envoy.gracefulShutdownPath"),
    ("graceful-startup-path", 't', "/graceful_startup", "DP_GRACEFUL_STARTUP_PATH", "envoy.gracefulStartupPath"),
    ("graceful-addr", 't', "", "DP_GRACEFUL_ADDR", "envoy.gracefulAddr"),
    ("graceful-port", 'i', "20300", "DP_GRACEFUL_PORT", "envoy.gracefulPort"),
    ("startup-grace-period-seconds", 'i', "0", "DP_STARTUP_GRACE_PERIOD_SECONDS", "envoy.startupGracePeriodSeconds"),
    ("dump-envoy-config-on-exit", 'b', "false", "DP_DUMP_ENVOY_CONFIG_ON_EXIT", "envoy.dumpEnvoyConfigOnExitEnabled"),
];

/// Additional settings of this dataplane.
#[rustfmt::skip]
const OWN: [Row; 12] = [
    ("status", 'b', "false", "", ""),
    ("restart", 'b', "false", "", ""),
    ("drain", 'd', "", "", ""),
    ("telemetry-prom-ca-certs-file", 't', "", "DP_TELEMETRY_PROM_CA_CERTS_FILE", "telemetry.prometheus.caCertsFile"),
    ("telemetry-prom-bind-addr", 't', "::", "DP_TELEMETRY_PROM_BIND_ADDR", "telemetry.prometheus.bindAddress"),
    ("proxy", 't', "envoy", "DP_PROXY", "proxy.kind"),
    ("proxy-return-after", 'd', "5m", "DP_PROXY_RETURN_AFTER", "proxy.returnAfter"),
    ("proxy-close-outdated", 'b', "false", "DP_PROXY_CLOSE_OUTDATED", "proxy.closeOutdated"),
    ("envoy-hot-restart", 'b', "true", "DP_ENVOY_HOT_RESTART", "envoy.hotRestart"),
    ("envoy-bootstrap-refresh-interval", 'd', "5m", "DP_ENVOY_BOOTSTRAP_REFRESH_INTERVAL", "envoy.bootstrapRefreshInterval"),
    ("envoy-state-dir", 't', "", "DP_ENVOY_STATE_DIR", "envoy.stateDir"),
    ("shutdown-end-when-idle", 'b', "false", "DP_SHUTDOWN_END_WHEN_IDLE", "envoy.shutdownEndWhenIdle"),
];

fn rows() -> impl Iterator<Item = Row> {
    ORIGINAL.into_iter().chain(OWN)
}

#[test]
fn every_declaration_is_a_row_and_every_row_a_declaration() {
    for row in rows() {
        let flag = row.0;
        let setting = SETTINGS.iter().find(|setting| setting.flag == flag);
        let Setting {
            kind: declared,
            default: declared_default,
            env: declared_env,
            file: declared_file,
            ..
        } = setting.unwrap_or_else(|| panic!("-{flag} is not declared"));
        let letter = match declared {
            Kind::Text | Kind::Secret => 't',
            Kind::Int => 'i',
            Kind::Bool => 'b',
            Kind::Duration => 'd',
            Kind::Pairs => 'm',
        };
        // A missing default is the zero value.
        let zero = if letter == 'b' { "false" } else { "" };
        let declared = (
            flag,
            letter,
            declared_default.unwrap_or(zero),
            declared_env.unwrap_or_default(),
            declared_file.unwrap_or_default(),
        );
        assert_eq!(declared, row);
    }
    let rows: BTreeSet<&str> = rows().map(|row| row.0).collect();
    let declared: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.flag).collect();
    let missing: Vec<_> = declared.difference(&rows).collect();
    assert!(
        missing.is_empty(),
        "no row for {missing:?}: what Consul's dataplane has not belongs into OWN"
    );
}

/// How to test a setting.
struct Case {
    /// Three valid values, each with the expected result.
    values: [(&'static str, &'static str); 3],
    /// Other flags that it needs to take effect.
    together: &'static [&'static str],
    /// Extracts the result from the settings.
    seen: fn(&Settings) -> String,
}

fn same(values: [&'static str; 3]) -> [(&'static str, &'static str); 3] {
    values.map(|value| (value, value))
}

const TEXTS: [&str; 3] = ["one", "two", "three"];
const NUMBERS: [&str; 3] = ["1", "2", "3"];
const LOOPBACKS: [&str; 3] = ["127.0.0.2", "127.0.0.3", "::1"];
const PATHS: [&str; 3] = ["/one", "/two", "/three"];
const SWITCHED_ON: [&str; 3] = ["true", "false", "true"];
const SWITCHED_OFF: [&str; 3] = ["false", "true", "false"];
const LOGIN: &[&str] = &[
    "-credential-type=login",
    "-login-auth-method=m",
    "-login-bearer-token=b",
];

fn case(
    values: [&'static str; 3],
    together: &'static [&'static str],
    seen: fn(&Settings) -> String,
) -> Case {
    Case {
        values: same(values),
        together,
        seen,
    }
}

/// `None` for flags that have neither variable nor key and are evaluated before there are settings.
fn trial_of(flag: &str) -> Option<Case> {
    let asked = [
        "version",
        "check-proxy-health",
        "status",
        "restart",
        "drain",
    ];
    if asked.contains(&flag) || flag == "config-file" {
        return None;
    }
    let found = servers(flag)
        .or_else(|| credentials(flag))
        .or_else(|| proxy(flag))
        .or_else(|| listeners(flag))
        .or_else(|| telemetry(flag))
        .or_else(|| envoy(flag))
        .or_else(|| lifecycle(flag));
    assert!(found.is_some(), "say here how to try -{flag}");
    found
}

fn servers(flag: &str) -> Option<Case> {
    Some(match flag {
        "addresses" => case(TEXTS, &[], |s| s.servers.addresses.clone()),
        "grpc-port" => case(NUMBERS, &[], |s| s.servers.grpc_port.to_string()),
        "server-watch-disabled" => case(SWITCHED_ON, &[], |s| s.servers.watch_disabled.to_string()),
        "tls-disabled" => case(SWITCHED_ON, &[], |s| s.servers.tls.is_none().to_string()),
        "ca-certs" => case(PATHS, &[], |s| path(server_tls(s).ca)),
        "tls-cert" => case(PATHS, &["-tls-key=/k"], |s| {
            path(
                server_tls(s)
                    .client_certificate
                    .map(|(certificate, _)| certificate),
            )
        }),
        "tls-key" => case(PATHS, &["-tls-cert=/c"], |s| {
            path(server_tls(s).client_certificate.map(|(_, key)| key))
        }),
        "tls-server-name" => case(TEXTS, &[], |s| {
            server_tls(s).server_name.unwrap_or_default()
        }),
        "tls-insecure-skip-verify" => case(SWITCHED_ON, &[], |s| {
            server_tls(s).insecure_skip_verify.to_string()
        }),
        _ => return None,
    })
}

fn credentials(flag: &str) -> Option<Case> {
    const EITHER: &[&str] = &[
        "-static-token=s",
        "-login-auth-method=m",
        "-login-bearer-token=b",
    ];
    const WITHOUT_METHOD: &[&str] = &["-credential-type=login", "-login-bearer-token=b"];
    const WITHOUT_BEARER: &[&str] = &["-credential-type=login", "-login-auth-method=m"];
    Some(match flag {
        "credential-type" => case(["static", "login", "static"], EITHER, |s| {
            match s.servers.credentials {
                Credentials::None => "",
                Credentials::Static(_) => "static",
                Credentials::Login(_) => "login",
            }
            .to_owned()
        }),
        "static-token" => case(TEXTS, &["-credential-type=static"], |s| {
            match &s.servers.credentials {
                Credentials::Static(token) => token.expose().to_owned(),
                _ => String::new(),
            }
        }),
        "login-auth-method" => case(TEXTS, WITHOUT_METHOD, |s| login(s).auth_method),
        "login-namespace" => case(TEXTS, LOGIN, |s| login(s).namespace),
        "login-partition" => case(TEXTS, LOGIN, |s| login(s).partition),
        "login-datacenter" => case(TEXTS, LOGIN, |s| login(s).datacenter),
        "login-bearer-token" => case(TEXTS, WITHOUT_BEARER, |s| match login(s).bearer {
            Bearer::Token(token) => token.expose().to_owned(),
            Bearer::File(path) => panic!("{path:?}"),
        }),
        "login-bearer-token-path" => case(PATHS, WITHOUT_BEARER, |s| match login(s).bearer {
            Bearer::Token(_) => panic!("no path"),
            Bearer::File(file) => path(Some(file)),
        }),
        "login-meta" => case(["k=1", "k=2", "k=3"], LOGIN, |s| {
            let pairs = login(s).meta.into_iter();
            pairs.map(|(key, value)| format!("{key}={value}")).collect()
        }),
        _ => return None,
    })
}

/// The values are the names of id files in a folder.
fn proxy(flag: &str) -> Option<Case> {
    Some(match flag {
        "proxy-node-name" | "service-node-name" => case(TEXTS, &[], |s| s.proxy.node_name.clone()),
        "proxy-node-id" | "service-node-id" => case(TEXTS, &[], |s| s.proxy.node_id.clone()),
        "proxy-id" | "proxy-id-path" | "proxy-service-id" | "proxy-service-id-path" => {
            case(TEXTS, &[], |s| s.proxy.id.clone())
        }
        "proxy-namespace" | "service-namespace" => case(TEXTS, &[], |s| s.proxy.namespace.clone()),
        "proxy-partition" | "service-partition" => case(TEXTS, &[], |s| s.proxy.partition.clone()),
        _ => return None,
    })
}

fn listeners(flag: &str) -> Option<Case> {
    Some(match flag {
        "mode" => case(["dns-proxy", "sidecar", "dns-proxy"], &[], |s| {
            match s.mode {
                Mode::Sidecar => "sidecar",
                Mode::DnsProxy => "dns-proxy",
            }
            .to_owned()
        }),
        "log-level" => case(["TRACE", "Warn", "error"], &[], |s| {
            format!("{:?}", s.logging.level)
        })
        .showing(["Trace", "Warn", "Error"]),
        "log-json" => case(SWITCHED_ON, &[], |s| s.logging.json.to_string()),
        "xds-bind-addr" => case(
            ["127.0.0.2", "unix:///run/xds", "[::1]"],
            &[],
            |s| match &s.xds {
                XdsAddress::Tcp(address) => address.ip().to_string(),
                XdsAddress::Unix(socket) => format!("socket {}", socket.display()),
            },
        )
        .showing(["127.0.0.2", "socket /run/xds", "::1"]),
        "xds-bind-port" => case(NUMBERS, &[], |s| match &s.xds {
            XdsAddress::Tcp(address) => address.port().to_string(),
            XdsAddress::Unix(socket) => panic!("{socket:?}"),
        }),
        "consul-dns-bind-addr" => case(LOOPBACKS, &["-consul-dns-bind-port=53"], |s| ip(s.dns)),
        "consul-dns-bind-port" => case(NUMBERS, &[], |s| port(s.dns)),
        _ => return None,
    })
}

fn telemetry(flag: &str) -> Option<Case> {
    const WITHOUT_CA: &[&str] = &[
        "-telemetry-prom-cert-file=/c",
        "-telemetry-prom-key-file=/k",
    ];
    const WITHOUT_KEY: &[&str] = &[
        "-telemetry-prom-cert-file=/c",
        "-telemetry-prom-ca-certs-path=/ca",
    ];
    const WITHOUT_CERT: &[&str] = &[
        "-telemetry-prom-key-file=/k",
        "-telemetry-prom-ca-certs-path=/ca",
    ];
    Some(match flag {
        "telemetry-use-central-config" => case(SWITCHED_OFF, &[], |s| {
            s.telemetry.use_central_config.to_string()
        }),
        "telemetry-prom-retention-time" => case(["1s", "2m", "3h"], &[], |s| {
            s.telemetry.retention.as_secs().to_string()
        })
        .showing(["1", "120", "10800"]),
        "telemetry-prom-ca-certs-path" | "telemetry-prom-ca-certs-file" => {
            case(PATHS, WITHOUT_CA, |s| {
                path(prometheus_tls(s).map(|tls| tls.ca))
            })
        }
        "telemetry-prom-key-file" => case(PATHS, WITHOUT_KEY, |s| {
            path(prometheus_tls(s).map(|tls| tls.key))
        }),
        "telemetry-prom-cert-file" => case(PATHS, WITHOUT_CERT, |s| {
            path(prometheus_tls(s).map(|tls| tls.certificate))
        }),
        "telemetry-prom-service-metrics-url" => case(TEXTS, &[], |s| {
            s.telemetry.service_metrics_url.clone().unwrap_or_default()
        }),
        "telemetry-prom-scrape-path" => case(PATHS, &[], |s| s.telemetry.scrape_path.clone()),
        "telemetry-prom-bind-addr" => case(LOOPBACKS, &[], |s| s.telemetry.bind.to_string()),
        "telemetry-prom-merge-port" => case(NUMBERS, &[], |s| s.telemetry.merge_port.to_string()),
        _ => return None,
    })
}

fn envoy(flag: &str) -> Option<Case> {
    Some(match flag {
        "envoy-admin-bind-address" => case(LOOPBACKS, &[], |s| ip(Some(s.envoy.admin))),
        "envoy-admin-bind-port" => case(NUMBERS, &[], |s| port(Some(s.envoy.admin))),
        "envoy-ready-bind-address" => case(LOOPBACKS, &["-envoy-ready-bind-port=1"], |s| {
            ip(s.envoy.ready)
        }),
        "envoy-ready-bind-port" => case(NUMBERS, &["-envoy-ready-bind-address=::"], |s| {
            port(s.envoy.ready)
        }),
        "envoy-concurrency" => case(NUMBERS, &[], |s| s.envoy.concurrency.to_string()),
        "envoy-drain-time-seconds" => {
            case(NUMBERS, &[], |s| s.envoy.drain_time.as_secs().to_string())
        }
        "envoy-drain-strategy" => case(["gradual", "immediate", "gradual"], &[], |s| {
            s.envoy.drain_strategy.as_str().to_owned()
        }),
        "proxy-return-after" => case(["10s", "2m", "3h"], &[], |s| {
            s.envoy.return_after.as_secs().to_string()
        })
        .showing(["10", "120", "10800"]),
        "proxy-close-outdated" => case(SWITCHED_ON, &[], |s| s.envoy.close_outdated.to_string()),
        "proxy" => case(["builtin", "auto", "builtin"], &[], |s| {
            s.envoy.kind.as_str().to_owned()
        }),
        "envoy-executable-path" => case(PATHS, &[], |s| path(s.envoy.executable.clone())),
        "envoy-hot-restart" => case(SWITCHED_OFF, &[], |s| s.envoy.hot_restart.to_string()),
        "envoy-bootstrap-refresh-interval" => case(["10s", "2m", "3h"], &[], |s| {
            s.envoy.bootstrap_refresh.as_secs().to_string()
        })
        .showing(["10", "120", "10800"]),
        "envoy-state-dir" => case(PATHS, &["-xds-bind-port=1"], |s| {
            path(s.envoy.state_dir.clone())
        }),
        _ => return None,
    })
}

fn lifecycle(flag: &str) -> Option<Case> {
    Some(match flag {
        "shutdown-drain-listeners" => case(SWITCHED_ON, &[], |s| {
            s.lifecycle.drain_listeners.to_string()
        }),
        "shutdown-end-when-idle" => case(SWITCHED_ON, &["-shutdown-drain-listeners"], |s| {
            s.lifecycle.end_when_idle.to_string()
        }),
        "shutdown-grace-period-seconds" => case(NUMBERS, &[], |s| {
            s.lifecycle.shutdown_grace.as_secs().to_string()
        }),
        "graceful-shutdown-path" => case(PATHS, &[], |s| s.lifecycle.shutdown_path.clone()),
        "graceful-startup-path" => case(PATHS, &[], |s| s.lifecycle.startup_path.clone()),
        "graceful-addr" => case(LOOPBACKS, &[], |s| ip(Some(s.lifecycle.bind))),
        "graceful-port" => case(NUMBERS, &[], |s| port(Some(s.lifecycle.bind))),
        "startup-grace-period-seconds" => case(NUMBERS, &[], |s| {
            s.lifecycle.startup_grace.as_secs().to_string()
        }),
        "dump-envoy-config-on-exit" => case(SWITCHED_ON, &[], |s| {
            s.lifecycle.dump_envoy_config.to_string()
        }),
        _ => return None,
    })
}

impl Case {
    fn showing(mut self, seen: [&'static str; 3]) -> Self {
        for (value, seen) in self.values.iter_mut().zip(seen) {
            value.1 = seen;
        }
        self
    }
}

fn server_tls(settings: &Settings) -> TlsConfig {
    settings.servers.tls.clone().unwrap()
}

fn prometheus_tls(settings: &Settings) -> Option<PrometheusTls> {
    settings.telemetry.prometheus_tls.clone()
}

fn login(settings: &Settings) -> LoginConfig {
    match &settings.servers.credentials {
        Credentials::Login(login) => login.clone(),
        other => panic!("{other:?}"),
    }
}

fn path(path: Option<PathBuf>) -> String {
    path.map(|path| path.display().to_string())
        .unwrap_or_default()
}

fn ip(address: Option<SocketAddr>) -> String {
    address
        .map(|address| address.ip().to_string())
        .unwrap_or_default()
}

fn port(address: Option<SocketAddr>) -> String {
    address
        .map(|address| address.port().to_string())
        .unwrap_or_default()
}

/// One invocation, built step by step.
struct Given<'a> {
    row: Row,
    case: &'a Case,
    /// A folder of files whose content is their name.
    ids: &'a Path,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    config: Option<(TempDir, String)>,
}

impl<'a> Given<'a> {
    /// Contains all required settings except the one under test.
    fn new(row: Row, case: &'a Case, ids: &'a Path) -> Self {
        let flag = row.0;
        let deprecated = flag.starts_with("service-") || flag.starts_with("proxy-service-");
        let id = match flag {
            "proxy-id" | "proxy-id-path" | "proxy-service-id" | "proxy-service-id-path" => None,
            _ if deprecated => Some("-proxy-service-id=web"),
            _ => Some("-proxy-id=web"),
        };
        let addresses = (flag != "addresses").then_some("-addresses=10.0.0.1");
        let flags = id.into_iter().chain(addresses);
        Self {
            row,
            case,
            ids,
            arguments: flags
                .chain(case.together.iter().copied())
                .map(str::to_owned)
                .collect(),
            variables: Vec::new(),
            config: None,
        }
    }

    /// The value in the form in which it is passed.
    fn value(&self, value: &str) -> String {
        match self.row.0 {
            "proxy-id-path" | "proxy-service-id-path" if !value.is_empty() => {
                self.ids.join(value).display().to_string()
            }
            _ => value.to_owned(),
        }
    }

    fn in_file(&mut self, value: &str) {
        let value = self.value(value);
        let leaf = match self.row.1 {
            'i' => json!(value.parse::<i64>().unwrap()),
            'b' => json!(value == "true"),
            'm' => {
                let (key, value) = value.split_once('=').unwrap();
                Json::Object(Map::from_iter([(key.to_owned(), json!(value))]))
            }
            _ => json!(value),
        };
        let document = self.row.4.rsplit('.').fold(leaf, |inner, name| {
            Json::Object(Map::from_iter([(name.to_owned(), inner)]))
        });
        let (folder, path) = config_file(&document);
        self.arguments.push(format!("-config-file={path}"));
        self.config = Some((folder, path));
    }

    fn in_variable(&mut self, value: &str) {
        let slot = if self.row.1 == 'm' { "1" } else { "" };
        let variable = (format!("{}{slot}", self.row.3), self.value(value));
        self.variables.push(variable);
    }

    fn in_flag(&mut self, value: &str) {
        let value = self.value(value);
        self.arguments.push(format!("-{}={value}", self.row.0));
    }

    /// The result, or the error.
    fn seen(&self) -> Result<String, String> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let variables = self.variables.iter();
        let variables: Vec<_> = variables
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        run(&arguments, &variables).map(|(settings, _)| (self.case.seen)(&settings))
    }
}

/// The name of a source, and how to set a value there.
type Source = (&'static str, fn(&mut Given));

fn ids() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for id in TEXTS {
        std::fs::write(folder.path().join(id), format!("{id}\n")).unwrap();
    }
    folder
}

#[test]
fn each_source_wins_over_the_weaker_ones() {
    let ids = ids();
    for row in rows() {
        let Some(case) = trial_of(row.0) else {
            assert_eq!((row.3, row.4), ("", ""), "-{}", row.0);
            continue;
        };
        let mut given = Given::new(row, &case, ids.path());
        let [in_file, in_variable, in_flag] = case.values;
        given.in_file(in_file.0);
        assert_eq!(given.seen().as_deref(), Ok(in_file.1), "{}", row.4);
        given.in_variable(in_variable.0);
        assert_eq!(given.seen().as_deref(), Ok(in_variable.1), "{}", row.3);
        given.in_flag(in_flag.0);
        assert_eq!(given.seen().as_deref(), Ok(in_flag.1), "-{}", row.0);
    }
}

#[test]
fn without_any_source_there_is_the_default() {
    let ids = ids();
    for row in rows() {
        let Some(case) = trial_of(row.0) else {
            continue;
        };
        let absent = Given::new(row, &case, ids.path()).seen();
        let mut given = Given::new(row, &case, ids.path());
        // A map has no empty value to pass.
        if row.1 != 'm' {
            given.in_flag(row.2);
        }
        assert_eq!(given.seen(), absent, "-{}", row.0);
    }
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let ids = ids();
    for row in rows() {
        let Some(case) = trial_of(row.0) else {
            continue;
        };
        let mut given = Given::new(row, &case, ids.path());
        given.in_file(case.values[0].0);
        let without = given.seen();
        let slot = if row.1 == 'm' { "1" } else { "" };
        given
            .variables
            .push((format!("{}{slot}", row.3), String::new()));
        assert_eq!(given.seen(), without, "{}", row.3);
    }
}

#[test]
fn metadata_has_nine_variables_and_joins_with_the_rest() {
    let base = [&MINIMAL[..], LOGIN].concat();
    let names: Vec<String> = (0..=10)
        .map(|slot| format!("DP_CREDENTIAL_LOGIN_META{slot}"))
        .collect();
    let pairs: Vec<String> = (0..=10).map(|slot| format!("k{slot}=v{slot}")).collect();
    let variables: Vec<(&str, &str)> = names
        .iter()
        .map(String::as_str)
        .zip(pairs.iter().map(String::as_str))
        .collect();
    let file = json!({"k1": "file", "k10": "file", "of": "file"});
    let (_folder, config) =
        config_file(&json!({"consul": {"credentials": {"login": {"meta": file}}}}));
    let flags = [
        "-config-file",
        &config,
        "-login-meta=k2=flag",
        "-login-meta=more=a=b",
    ];
    let (settings, _) = run(&[&base[..], &flags].concat(), &variables).unwrap();
    let expected = [
        ("k1", "v1"),
        ("k10", "file"),
        ("k2", "flag"),
        ("k3", "v3"),
        ("k4", "v4"),
        ("k5", "v5"),
        ("k6", "v6"),
        ("k7", "v7"),
        ("k8", "v8"),
        ("k9", "v9"),
        ("more", "a=b"),
        ("of", "file"),
    ];
    let meta = login(&settings).meta;
    let meta: Vec<(&str, &str)> = meta
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(meta, expected);
}

/// One current name from any source disables all six deprecated ones.
#[test]
fn deprecated_names_yield_to_any_current_one_from_any_source() {
    let ids = ids();
    let current = [
        "proxy-node-name",
        "proxy-node-id",
        "proxy-id",
        "proxy-id-path",
        "proxy-namespace",
        "proxy-partition",
    ];
    for row in rows().filter(|row| current.contains(&row.0)) {
        let case = trial_of(row.0).unwrap();
        let given = || Given {
            arguments: vec![
                "-addresses=x".to_owned(),
                "-proxy-service-id=old".to_owned(),
            ],
            ..Given::new(row, &case, ids.path())
        };
        let sources: [Source; 4] = [
            ("file", |given| given.in_file("one")),
            ("variable", |given| given.in_variable("one")),
            ("flag", |given| given.in_flag("one")),
            ("empty flag", |given| given.in_flag("")),
        ];
        for (source, give) in sources {
            let mut given = given();
            give(&mut given);
            let with_id = ["proxy-id", "proxy-id-path"].contains(&row.0) && source != "empty flag";
            let expected = if with_id {
                Ok("one".to_owned())
            } else {
                Err("proxy ID not specified".to_owned())
            };
            assert_eq!(given.seen(), expected, "-{} from {source}", row.0);
        }
    }
}
