//! What central configuration says for every listener and cluster of a proxy, in full.

use std::sync::Arc;

use legate_model::{MutualTlsMode, Protocol};
use legate_proxycfg::Snapshot;
use serde_json::json;

use crate::describe::{one, type_urls};
use crate::support::{api, made, sidecar, web};

/// All listeners of a proxy.
fn listeners(snapshot: &Snapshot) -> String {
    let set = made(snapshot);
    let [_, _, listeners, ..] = type_urls();
    let listeners = set.get(&listeners).values();
    let text: String = listeners.map(|listener| one(listener)).collect();
    let warnings = set.warnings();
    let warnings = warnings
        .iter()
        .map(|warning| format!("# warning: {warning}\n"));
    text + &warnings.collect::<String>()
}

#[test]
fn every_listener_logs_json_to_standard_output() {
    let proxy = json!({
        "LocalServicePort": 8080,
        "AccessLogs": {"Enabled": true},
        "Expose": {"Paths": [{"ListenerPort": 20300, "Path": "/live", "LocalPathPort": 8080}]},
    });
    let snapshot = Snapshot {
        protocol: Protocol::Http,
        instance: sidecar(proxy),
        upstreams: vec![api(Protocol::Tcp)],
        ..web()
    };
    insta::assert_snapshot!(listeners(&snapshot));
}

#[test]
fn captured_traffic_is_logged_to_a_file_as_text() {
    let proxy = json!({
        "LocalServicePort": 8080, "Mode": "transparent",
        "AccessLogs": {
            "Enabled": true, "DisableListenerLogs": true, "Type": "file", "Path": "/log/envoy",
            "TextFormat": "%START_TIME% %RESPONSE_FLAGS%",
        },
    });
    let snapshot = Snapshot {
        instance: sidecar(proxy),
        implicit: Some(Default::default()),
        ..web()
    };
    insta::assert_snapshot!(listeners(&snapshot));
}

#[test]
fn an_own_json_format_goes_to_standard_error() {
    let format = r#"{"status": "%RESPONSE_CODE%", "from": {"address": "%DOWNSTREAM_REMOTE_ADDRESS%"}, "version": 2}"#;
    let proxy = json!({
        "LocalServicePort": 8080,
        "AccessLogs": {"Enabled": true, "Type": "stderr", "JSONFormat": format},
    });
    let snapshot = Snapshot {
        instance: sidecar(proxy),
        ..web()
    };
    insta::assert_snapshot!(listeners(&snapshot));
}

/// The registration itself cannot say it: it comes from central configuration.
fn permissive(mode: &str, port: u16) -> Snapshot {
    let mut instance = sidecar(json!({"LocalServicePort": port, "Mode": mode}));
    Arc::make_mut(&mut instance).proxy.mutual_tls_mode = MutualTlsMode::Permissive;
    Snapshot { instance, ..web() }
}

#[test]
fn permissive_lets_in_what_was_sent_to_the_application() {
    insta::assert_snapshot!(listeners(&permissive("transparent", 8080)));
}

#[test]
fn permissive_opens_nothing_where_nothing_is_captured() {
    let strict = |port| {
        listeners(&Snapshot {
            instance: sidecar(json!({"LocalServicePort": port})),
            ..web()
        })
    };
    let direct = listeners(&permissive("direct", 8080));
    let warning =
        "# warning: MutualTLSMode permissive has no effect: the proxy is not in transparent mode\n";
    assert_eq!(direct, strict(8080) + warning);
    assert_eq!(listeners(&permissive("transparent", 0)), strict(0));
}
