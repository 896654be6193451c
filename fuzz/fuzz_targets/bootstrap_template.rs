//! Bootstrap templates and proxy configurations: every input results in a JSON object or an error with its
//! position, in bounded time and memory, and in the same result each time.
//!
//! Input: a template, a 0 byte, and the proxy's configuration as JSON.
#![no_main]

use std::net::SocketAddr;

use legate_envoy::bootstrap::{
    BootstrapError, BootstrapInputs, NodeInputs, PrometheusInputs, ProxyConfig, XdsAddress, build,
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

/// Prefix of errors in a template.
const TEMPLATE_KEY: &str = "proxy config key envoy_bootstrap_json_tpl: ";

/// Maximum length of an error in a template.
const MESSAGE: usize = 2000;

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let template = parts.next().unwrap_or_default();
    let Ok(template) = std::str::from_utf8(template) else {
        return;
    };
    let config: Map<String, Value> = parts
        .next()
        .and_then(|text| serde_json::from_slice(text).ok())
        .unwrap_or_default();
    let variable = |name: &str| (name == "HOST_IP").then(|| "10.0.0.9".to_owned());
    let Ok(mut proxy_config) = ProxyConfig::decode(&config, &variable) else {
        return;
    };
    drop(outcome(&inputs(proxy_config.clone())));

    proxy_config.bootstrap_json_tpl = Some(template.to_owned());
    let outcome = outcome(&inputs(proxy_config));
    let plain = !template.contains("{{");
    if let (true, Ok(made)) = (plain, outcome) {
        let expected: Value = serde_json::from_str(template).expect("JSON, unchanged");
        assert_eq!(made, expected, "the text was changed");
    }
});

fn outcome(inputs: &BootstrapInputs) -> Result<Value, BootstrapError> {
    let once = build(inputs);
    let twice = build(inputs);
    match (once, twice) {
        (Ok(once), Ok(twice)) => {
            assert_eq!(once.document, twice.document, "the document varies");
            assert!(once.document.is_object(), "the document is not an object");
            Ok(once.document)
        }
        (Err(once), Err(twice)) => {
            assert_eq!(once.to_string(), twice.to_string(), "the error varies");
            let message = once.to_string();
            if let Some(reason) = message.strip_prefix(TEMPLATE_KEY) {
                assert!(reason.starts_with("template: bootstrap:"), "{reason}");
                assert!(reason.len() < MESSAGE, "{reason}");
            }
            Err(once)
        }
        (once, twice) => panic!("the outcome varies: {once:?} {twice:?}"),
    }
}

fn inputs(proxy_config: ProxyConfig) -> BootstrapInputs {
    let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
    BootstrapInputs {
        node: NodeInputs {
            id: "web-proxy".to_owned(),
            cluster: "web".to_owned(),
            node_name: "host-1".to_owned(),
            datacenter: "dc1".to_owned(),
            ..NodeInputs::default()
        },
        admin: local(19000),
        access_logs: vec![r#"{"name":"log"}"#.to_owned()],
        xds: XdsAddress::Tcp(local(20001)),
        ready: Some(local(20002)),
        prometheus: PrometheusInputs {
            scrape_path: "/metrics".to_owned(),
            backend: local(20100),
            tls: None,
        },
        deprecated_tags: false,
        proxy_config,
    }
}
