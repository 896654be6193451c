//! Settings from the command line, the environment and files together.

use std::path::Path;
use std::time::Duration;

use legate_client::{Bearer, Credentials, LoginConfig, TlsConfig};
use legate_envoy::process::EnvoyLog;
use serde_json::json;
use tempfile::TempDir;

use super::lifecycle_paths;
use super::*;

mod reference;
mod secrets;
mod sources;

/// Settings required in sidecar mode.
const MINIMAL: [&str; 4] = ["-addresses", "10.0.0.1", "-proxy-id", "web"];

fn invoke(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Invocation, String> {
    let arguments = arguments.iter().map(OsString::from);
    let variables = variables
        .iter()
        .map(|(name, value)| (name.into(), value.into()));
    load(arguments, Environment::new(variables)).map_err(|error| error.to_string())
}

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Result<(Settings, Vec<String>), String> {
    match invoke(arguments, variables)? {
        Invocation::Run { settings, warnings } => Ok((*settings, warnings)),
        other => panic!("not a run: {other:?}"),
    }
}

fn settings(more: &[&str]) -> Settings {
    run(&[&MINIMAL, more].concat(), &[]).unwrap().0
}

fn refusal(more: &[&str]) -> String {
    run(&[&MINIMAL, more].concat(), &[]).unwrap_err()
}

/// A configuration file with this content, removed together with its folder.
fn config_file(content: &serde_json::Value) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, content.to_string()).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the environment selects comparing or writing"
)]
fn the_settings_page_matches_the_declarations() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
    let reference = reference::reference();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(page, &reference).unwrap();
    }
    assert!(
        std::fs::read_to_string(page).unwrap_or_default() == reference,
        "docs/settings.md does not match the declarations; UPDATE_GOLDEN=1 updates it"
    );
}

#[test]
fn the_example_on_the_settings_page_is_valid() {
    let page = reference::reference();
    let json = page.split("```json").nth(1).unwrap();
    let json = json.split("```").next().unwrap();
    let (_folder, path) = config_file(&serde_json::from_str(json).unwrap());
    let (settings, warnings) = run(&["-config-file", &path], &[]).unwrap();
    assert_eq!(settings.proxy.id, "web-sidecar-proxy");
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn the_usage_is_as_recorded() {
    insta::assert_snapshot!("usage", usage());
}

#[test]
fn defaults_are_those_of_consuls_dataplane() {
    let settings = settings(&[]);
    let expected = Settings {
        mode: Mode::Sidecar,
        servers: Servers {
            addresses: "10.0.0.1".to_owned(),
            grpc_port: 8502,
            watch_disabled: false,
            tls: Some(TlsConfig::default()),
            credentials: Credentials::None,
        },
        proxy: Proxy {
            id: "web".to_owned(),
            ..Proxy::default()
        },
        logging: EnvoyLog {
            level: legate_runtime::logging::Level::Info,
            json: false,
        },
        xds: XdsAddress::Tcp("127.0.0.1:0".parse().unwrap()),
        dns: None,
        telemetry: Telemetry {
            use_central_config: true,
            retention: Duration::from_secs(60),
            prometheus_tls: None,
            service_metrics_url: None,
            scrape_path: "/metrics".to_owned(),
            merge_port: 20100,
            bind: "::".parse().unwrap(),
        },
        envoy: Envoy {
            admin: "127.0.0.1:19000".parse().unwrap(),
            ready: None,
            kind: ProxyKind::Envoy,
            return_after: Duration::from_secs(300),
            close_outdated: false,
            concurrency: 2,
            drain_time: Duration::from_secs(30),
            drain_strategy: legate_envoy::process::DrainStrategy::Immediate,
            executable: None,
            hot_restart: true,
            bootstrap_refresh: Duration::from_secs(300),
            state_dir: None,
            extra_args: Vec::new(),
        },
        lifecycle: Lifecycle {
            bind: "127.0.0.1:20300".parse().unwrap(),
            shutdown_path: "/graceful_shutdown".to_owned(),
            startup_path: "/graceful_startup".to_owned(),
            startup_grace: Duration::ZERO,
            shutdown_grace: Duration::ZERO,
            drain_listeners: false,
            end_when_idle: false,
            dump_envoy_config: false,
        },
        environment: Environment::default(),
    };
    assert_eq!(settings, expected);
}

#[test]
fn values_reach_their_settings() {
    let settings = settings(&[
        "-grpc-port=8503",
        "-tls-server-name",
        "server.dc1.consul",
        "-ca-certs",
        "/ca",
        "-tls-cert=/c",
        "-tls-key=/k",
        "-credential-type",
        "login",
        "-login-auth-method",
        "jwt",
        "-login-bearer-token-path",
        "/token",
        "-login-meta",
        "pod=default/web",
        "-log-level",
        "TRACE",
        "-log-json",
        "-xds-bind-addr",
        "[::1]",
        "-xds-bind-port",
        "7001",
        "-envoy-ready-bind-address",
        "::",
        "-envoy-ready-bind-port",
        "21000",
        "-envoy-drain-strategy",
        "gradual",
        "-shutdown-grace-period-seconds",
        "30",
        "-shutdown-drain-listeners",
        "-graceful-addr",
        "::1",
        "-graceful-port",
        "20600",
        "-telemetry-prom-merge-port",
        "0",
        "--",
        "--base-id",
        "1",
    ]);
    let tls = settings.servers.tls.unwrap();
    assert_eq!(tls.client_certificate, Some(("/c".into(), "/k".into())));
    assert_eq!(tls.server_name.as_deref(), Some("server.dc1.consul"));
    let Credentials::Login(login) = settings.servers.credentials else {
        panic!("no login")
    };
    assert_eq!(login.bearer, Bearer::File("/token".into()));
    assert_eq!(login.meta["pod"], "default/web");
    assert_eq!(settings.xds, XdsAddress::Tcp("[::1]:7001".parse().unwrap()));
    assert_eq!(settings.envoy.ready, Some("[::]:21000".parse().unwrap()));
    assert_eq!(settings.lifecycle.bind, "[::1]:20600".parse().unwrap());
    assert_eq!(settings.lifecycle.shutdown_grace, Duration::from_secs(30));
    assert_eq!(settings.telemetry.merge_port, 20100);
    assert_eq!(settings.envoy.extra_args, ["--base-id", "1"]);
    let unix = self::settings(&["-xds-bind-addr", "unix:///run/xds.sock"]).xds;
    assert_eq!(unix, XdsAddress::Unix("/run/xds.sock".into()));
}

#[test]
fn errors_are_those_of_consuls_dataplane() {
    for (arguments, expected) in [
        (&[][..], "consul addresses not specified"),
        (
            &["-addresses", "", "-proxy-id", "web"],
            "consul addresses not specified",
        ),
        (&["-addresses", "x"], "proxy ID not specified"),
    ] {
        assert_eq!(run(arguments, &[]).unwrap_err(), expected);
    }
    for (more, expected) in [
        (
            &["-grpc-port", "0"][..],
            "consul server gRPC port not specified",
        ),
        (
            &["-envoy-admin-bind-address="],
            "envoy admin bind address not specified",
        ),
        (
            &["-envoy-admin-bind-port=0"],
            "envoy admin bind port not specified",
        ),
        (&["-xds-bind-addr="], "envoy xDS bind address not specified"),
        (
            &["-xds-bind-addr", "0.0.0.0"],
            "non-local xDS bind address not allowed",
        ),
        (
            &["-xds-bind-addr", "localhost"],
            "non-local xDS bind address not allowed",
        ),
        (
            &[
                "-consul-dns-bind-port",
                "53",
                "-consul-dns-bind-addr",
                "0.0.0.0",
            ],
            "non-local DNS proxy bind address not allowed when running as a sidecar",
        ),
        (
            &["-mode", "dns-proxy", "-proxy-namespace", "team"],
            "namespace must be empty or set to 'default' when running in dns-proxy mode",
        ),
        (
            &["-credential-type", "login", "-login-auth-method", "jwt"],
            "bearer token (or path to a file containing a bearer token) is required for login",
        ),
        (&["-credential-type", "foo"], "unknown credential type: foo"),
        (
            &["-telemetry-prom-cert-file", "/c"],
            "Must provide -telemetry-prom-ca-certs-path, -telemetry-prom-cert-file, and -telemetry-prom-key-file to enable TLS for prometheus metrics",
        ),
        (
            &["-telemetry-prom-retention-time", "-1s"],
            "-telemetry-prom-retention-time must be greater than zero",
        ),
        (
            &["-telemetry-prom-scrape-path="],
            "-telemetry-prom-scrape-path must not be empty",
        ),
        (
            &["-log-level", "loud"],
            "invalid log level. valid values - TRACE, DEBUG, INFO, WARN, ERROR",
        ),
        (
            &["-config-file", "config.yaml"],
            "invalid config file format. Should be a json file",
        ),
        (
            &["-config-file", "nope.json"],
            "open nope.json: no such file or directory",
        ),
    ] {
        assert_eq!(refusal(more), expected);
    }
}

#[test]
fn other_errors_name_the_setting() {
    for (more, expected) in [
        (
            &["-mode", "sidcar"][..],
            "unknown -mode \"sidcar\": use sidecar or dns-proxy",
        ),
        (
            &["-grpc-port", "70000"],
            "-grpc-port 70000 is not a port: use 0 to 65535",
        ),
        (
            &["-envoy-concurrency=-1"],
            "-envoy-concurrency -1 is out of range",
        ),
        (&["-tls-cert", "/c"], "-tls-cert and -tls-key go together"),
        (
            &["-envoy-admin-bind-address", "here"],
            "-envoy-admin-bind-address \"here\" is not an IP address",
        ),
        (
            &["-envoy-drain-strategy", "slow"],
            "unknown -envoy-drain-strategy \"slow\"",
        ),
        (
            &["-envoy-bootstrap-refresh-interval", "1s"],
            "-envoy-bootstrap-refresh-interval must be 0 (never) or at least 10s",
        ),
        (
            &["-envoy-state-dir", "/var/lib/legate"],
            "-envoy-state-dir needs a fixed address",
        ),
        (
            &["-shutdown-end-when-idle"],
            "-shutdown-end-when-idle needs -shutdown-drain-listeners",
        ),
        (
            &["-graceful-shutdown-path", "bye"],
            "-graceful-shutdown-path \"bye\" must start with /",
        ),
        (
            &[
                "-graceful-shutdown-path",
                "/a",
                "-graceful-startup-path",
                "/a",
            ],
            "are both \"/a\"",
        ),
        (
            &["-graceful-shutdown-path", "/ready"],
            "-graceful-shutdown-path \"/ready\" stands for /ready",
        ),
        (
            &["-graceful-startup-path", "/"],
            "-graceful-shutdown-path \"/graceful_shutdown\" and -graceful-startup-path \"/\" overlap",
        ),
        (
            &["-graceful-startup-path=/a/b", "-graceful-shutdown-path=/a/"],
            "-graceful-shutdown-path \"/a/\" and -graceful-startup-path \"/a/b\" overlap",
        ),
        (
            &["-graceful-startup-path", "/startup"],
            "-graceful-startup-path \"/startup\" stands for /startup",
        ),
        (
            &["-telemetry-prom-bind-addr", "everywhere"],
            "-telemetry-prom-bind-addr \"everywhere\" is not an IP address",
        ),
        (
            &["-credential-type=login", "-login-bearer-token=x"],
            "-login-auth-method",
        ),
        (
            &["-proxy-id-path", "/nope", "-proxy-id="],
            "proxy ID not specified",
        ),
    ] {
        let result = run(&[&MINIMAL, more].concat(), &[]);
        let error = result.expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn tls_of_prometheus_takes_either_name_of_the_authority() {
    let files = [
        "-telemetry-prom-cert-file=/c",
        "-telemetry-prom-key-file=/k",
    ];
    for (path, file, expected) in [
        ("/ca", "", "/ca"),
        ("", "/ca.pem", "/ca.pem"),
        ("/ca", "/ca.pem", "/ca"),
    ] {
        let authority = [
            format!("-telemetry-prom-ca-certs-path={path}"),
            format!("-telemetry-prom-ca-certs-file={file}"),
        ];
        let more = [&files[..], &[&authority[0], &authority[1]]].concat();
        assert_eq!(
            settings(&more).telemetry.prometheus_tls.unwrap().ca,
            Path::new(expected)
        );
    }
    let empty = [
        "-telemetry-prom-cert-file=",
        "-telemetry-prom-key-file=",
        "-telemetry-prom-ca-certs-path=",
    ];
    assert_eq!(settings(&empty).telemetry.prometheus_tls, None);
}

#[test]
fn credentials_without_effect_are_warned_about_and_never_shown() {
    let (settings, warnings) =
        run(&[&MINIMAL[..], &["-static-token", "hush"]].concat(), &[]).unwrap();
    assert_eq!(settings.servers.credentials, Credentials::None);
    assert!(
        warnings[0].contains("-credential-type=static"),
        "{warnings:?}"
    );
    let bearer = ["-login-bearer-token=hush", "-login-bearer-token-path=/f"];
    for (kind, flags, expected) in [
        ("", &["-login-auth-method=m"][..], "-login-auth-method is"),
        (
            "",
            &bearer,
            "-login-bearer-token, -login-bearer-token-path is",
        ),
        (
            "static",
            &["-static-token=x", bearer[0]],
            "-login-bearer-token is",
        ),
        (
            "login",
            &["-login-auth-method=m", bearer[0], "-static-token=x"],
            "-static-token is",
        ),
    ] {
        let kind = format!("-credential-type={kind}");
        let (_, warnings) = run(&[&MINIMAL[..], &[kind.as_str()], flags].concat(), &[]).unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with(expected), "{warnings:?}");
        assert!(!warnings[0].contains("hush"), "{warnings:?}");
    }
    let variables = [
        ("DP_CREDENTIAL_STATIC_TOKEN", "hush"),
        ("DP_CREDENTIAL_TYPE", "static"),
    ];
    let (settings, warnings) = run(&MINIMAL, &variables).unwrap();
    assert_eq!(warnings, [""; 0]);
    let Credentials::Static(token) = &settings.servers.credentials else {
        panic!("no token")
    };
    assert_eq!(token.expose(), "hush");
    assert!(!format!("{settings:?}").contains("hush"));
    let empty = ["-credential-type", "static", "-static-token="];
    let (settings, warnings) = run(&[&MINIMAL[..], &empty].concat(), &[]).unwrap();
    assert_eq!(settings.servers.credentials, Credentials::None);
    assert_eq!(warnings.len(), 1);
}

#[test]
fn deprecated_names_count_only_without_current_ones() {
    let old = [
        "-addresses",
        "x",
        "-proxy-service-id",
        "old",
        "-service-node-name=node",
        "-service-namespace",
        "ns",
    ];
    let (settings, warnings) = run(&old, &[]).unwrap();
    let proxy = &settings.proxy;
    assert_eq!(
        (
            proxy.id.as_str(),
            proxy.node_name.as_str(),
            proxy.namespace.as_str()
        ),
        ("old", "node", "ns")
    );
    assert_eq!(warnings, [""; 0]);

    // Any current setting, even an empty one from any source, disables all deprecated ones.
    let current = [&old[..], &["-proxy-partition="]].concat();
    assert_eq!(run(&current, &[]).unwrap_err(), "proxy ID not specified");
    let (_folder, path) = config_file(&json!({ "proxy": { "id": "new" } }));
    let (settings, warnings) = run(&[&old[..], &["-config-file", &path]].concat(), &[]).unwrap();
    assert_eq!(
        (
            settings.proxy.id.as_str(),
            settings.proxy.node_name.as_str()
        ),
        ("new", "")
    );
    assert!(
        warnings[0].contains("-service-node-name") && warnings[0].contains("-proxy-id"),
        "{warnings:?}"
    );
}

#[test]
fn ids_are_read_from_files_and_trimmed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxyid");
    std::fs::write(&path, "from-file\n").unwrap();
    let path = path.to_str().unwrap();
    let id = |arguments: &[&str], variables: &[(&str, &str)]| {
        run(&[&["-addresses", "x"], arguments].concat(), variables)
            .map(|(settings, _)| settings.proxy.id)
    };
    let read = Ok("from-file".to_owned());
    assert_eq!(id(&["-proxy-id-path", path], &[]), read);
    assert_eq!(id(&[], &[("DP_PROXY_ID_PATH", path)]), read);
    assert_eq!(id(&["-proxy-service-id-path", path], &[]), read);
    // An id takes precedence over a path of the same source, but not over one of a stronger source.
    assert_eq!(
        id(&["-proxy-id-path", path], &[("DP_PROXY_ID", "given")]),
        Ok("given".to_owned())
    );
    let (_folder, config) = config_file(&json!({ "proxy": { "id": "in-config" } }));
    assert_eq!(
        id(&["-proxy-id-path", path, "-config-file", &config], &[]),
        read
    );
    let (_folder, config) = config_file(&json!({ "proxy": { "idPath": path } }));
    assert_eq!(id(&["-config-file", &config], &[]), read);
    for flag in ["-proxy-id-path", "-proxy-service-id-path"] {
        let expected = format!("failed to read given {flag}: open /x: no such file or directory");
        assert_eq!(id(&[flag, "/x"], &[]), Err(expected));
    }
}

#[test]
fn dns_alone_needs_no_proxy() {
    let arguments = [
        "-mode",
        "dns-proxy",
        "-addresses",
        "x",
        "-consul-dns-bind-addr",
        "0.0.0.0",
        "-consul-dns-bind-port",
        "53",
        "-proxy-namespace",
        "default",
        "-xds-bind-addr",
        "0.0.0.0",
    ];
    let (settings, _) = run(&arguments, &[]).unwrap();
    assert_eq!(settings.mode, Mode::DnsProxy);
    assert_eq!(settings.dns, Some("0.0.0.0:53".parse().unwrap()));
    let (settings, _) = run(
        &[&MINIMAL[..], &["-consul-dns-bind-port", "0"]].concat(),
        &[],
    )
    .unwrap();
    assert_eq!(settings.dns, Some("127.0.0.1:0".parse().unwrap()));
}

#[test]
fn version_and_health_need_nothing_else() {
    assert!(matches!(
        invoke(&["-version", "-log-level", "loud"], &[]),
        Ok(Invocation::Version)
    ));
    let error = invoke(&["-version"], &[("DP_CONSUL_GRPC_PORT", "x")]).unwrap_err();
    assert_eq!(
        error,
        "unable to parse environment variable DP_CONSUL_GRPC_PORT=x as *int"
    );

    let health = |arguments: &[&str], variables: &[(&str, &str)]| match invoke(
        &[&["-check-proxy-health"], arguments].concat(),
        variables,
    )
    .unwrap()
    {
        Invocation::CheckHealth(addresses) => addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" "),
        other => panic!("no probe: {other:?}"),
    };
    assert_eq!(health(&[], &[]), "127.0.0.1:19000 [::1]:19000");
    assert_eq!(
        health(&[], &[("DP_ENVOY_ADMIN_BIND_PORT", "19001")]),
        "127.0.0.1:19001 [::1]:19001"
    );
    assert_eq!(
        health(&["-envoy-admin-bind-address", "::1"], &[]),
        "[::1]:19000"
    );
    assert_eq!(
        health(&["-envoy-admin-bind-address", "0.0.0.0"], &[]),
        "127.0.0.1:19000"
    );
    assert_eq!(
        health(&["-envoy-admin-bind-address", "::"], &[]),
        "[::1]:19000 127.0.0.1:19000"
    );
}

#[test]
fn a_running_dataplane_is_contacted_at_its_lifecycle_address() {
    let asked = |arguments: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["-status"], arguments].concat();
        match invoke(&arguments, variables).unwrap() {
            Invocation::Status { addresses, json } => {
                let addresses = addresses.iter().map(ToString::to_string);
                (addresses.collect::<Vec<_>>().join(" "), json)
            }
            other => panic!("no question: {other:?}"),
        }
    };
    let at = |arguments: &[&str]| asked(arguments, &[]).0;
    assert_eq!(at(&[]), "127.0.0.1:20300");
    assert_eq!(at(&["-graceful-port=0"]), "127.0.0.1:20300");
    assert_eq!(at(&["-graceful-addr=localhost"]), "127.0.0.1:20300");
    assert_eq!(at(&["-graceful-addr=10.0.0.9"]), "10.0.0.9:20300");
    assert_eq!(at(&["-graceful-addr=0.0.0.0"]), "127.0.0.1:20300");
    assert_eq!(at(&["-graceful-addr=[::]"]), "[::1]:20300 127.0.0.1:20300");
    let (_folder, path) = config_file(&json!({
        "envoy": { "gracefulAddr": "127.0.0.2", "gracefulPort": 20600 },
        // These are validated only when the dataplane runs.
        "logging": { "logLevel": "loud" }, "proxy": { "idPath": "/no/such/file" },
    }));
    let file = format!("-config-file={path}");
    assert_eq!(at(&[&file]), "127.0.0.2:20600");
    let variables = [("DP_GRACEFUL_PORT", "20601"), ("DP_LOG_JSON", "true")];
    let (addresses, json) = asked(&[&file], &variables);
    assert_eq!(addresses, "127.0.0.2:20601");
    assert!(!json, "the variable is about the log");
    assert!(asked(&["-log-json"], &[]).1);

    assert!(matches!(
        invoke(&["-restart", "-graceful-port=1"], &[]),
        Ok(Invocation::Restart(addresses)) if addresses == ["127.0.0.1:1".parse().unwrap()]
    ));
    for (given, milliseconds) in [("-drain=1500ms", 1500), ("-drain=0s", 0), ("-drain=-1s", 0)] {
        let asked = invoke(&[given, "-graceful-port=1"], &[]).unwrap();
        assert!(
            matches!(asked, Invocation::Drain { ref addresses, accept }
                if accept.as_millis() == milliseconds && addresses[0].port() == 1),
            "{given}: {asked:?}"
        );
    }
    let error = invoke(&["-drain=1s", "-status"], &[]).unwrap_err();
    assert!(error.contains("one at a time"), "{error}");
    let error = invoke(&["-restart", "-status"], &[]).unwrap_err();
    assert!(error.contains("one at a time"), "{error}");
}

#[test]
fn every_path_of_the_lifecycle_port_has_one_meaning() {
    for question in [&[][..], &["-status"], &["-restart"]] {
        for flag in ["-graceful-shutdown-path", "-graceful-startup-path"] {
            for path in lifecycle_paths::PATHS {
                let given = format!("{flag}={path}");
                let error = invoke(&[&MINIMAL, question, &[&given]].concat(), &[]).unwrap_err();
                assert!(error.contains(flag) && error.contains(path), "{error}");
            }
            // There are no paths below the other ones.
            for path in ["/ready/", "/stop", "/live/now"] {
                let given = format!("{flag}={path}");
                invoke(&[&MINIMAL, question, &[&given]].concat(), &[]).unwrap();
            }
        }
    }
}

#[test]
fn the_environment_hides_values() {
    let environment = Environment::new([("TOKEN".into(), "hush".into())]);
    assert_eq!(environment.get("TOKEN"), Some("hush"));
    assert_eq!(format!("{environment:?}"), "{\"TOKEN\": \"***\"}");
}
