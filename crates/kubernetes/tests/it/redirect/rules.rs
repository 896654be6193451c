//! The effect of each configuration field on the rules, and refused configurations.

use legate_kubernetes::redirect::iptables::{Family, OUTPUT, PREROUTING};
use legate_kubernetes::redirect::{Redirection, iptables, nftables};
use serde_json::{Value, json};

use super::pod::{Method, Pod, possible};

/// A configuration with one field in addition to the required ones.
fn with(field: &str, value: Value) -> String {
    let mut config = json!({"ProxyUserID": "5995", "ProxyInboundPort": 20000});
    config[field] = value;
    config.to_string()
}

/// The configuration that consul-k8s writes for a pod with all features.
const EVERYTHING: &str = r#"{"ConsulDNSIP":"127.0.0.1","ConsulDNSPort":8600,"ProxyUserID":"5995",
    "ProxyInboundPort":20000,"ProxyOutboundPort":15001,"ExcludeInboundPorts":["21000","20200"],
    "ExcludeOutboundPorts":["3306","22"],"ExcludeOutboundCIDRs":["10.96.0.0/12","fd00:1::/32"],
    "ExcludeUIDs":["5996","1337"],"NetNS":"","IptablesProvider":null}"#;

fn cases() -> Vec<(&'static str, String)> {
    vec![
        ("least", with("NetNS", json!(""))),
        ("outbound-port", with("ProxyOutboundPort", json!(15101))),
        (
            "exclude-inbound-ports",
            with("ExcludeInboundPorts", json!(["80", 81, "80"])),
        ),
        (
            "exclude-outbound-ports",
            with("ExcludeOutboundPorts", json!(["22", "3306"])),
        ),
        (
            "exclude-outbound-cidrs",
            with(
                "ExcludeOutboundCIDRs",
                json!([
                    "10.1.2.3/8",
                    "10.5.0.0/16",
                    "192.0.2.7",
                    "fd00::1/8",
                    "2001:db8::1"
                ]),
            ),
        ),
        (
            "exclude-everything",
            with("ExcludeOutboundCIDRs", json!(["0.0.0.0/0", "::/0"])),
        ),
        ("exclude-uids", with("ExcludeUIDs", json!(["5996", 0]))),
        (
            "dns-ip-without-port",
            with("ConsulDNSIP", json!("10.96.0.53")),
        ),
        (
            "dns-ip-without-port-v6",
            with("ConsulDNSIP", json!("fd00::53")),
        ),
        ("dns-port-without-ip", with("ConsulDNSPort", json!(8600))),
        (
            "dns-v6",
            json!({"ProxyUserID": 5995, "ProxyInboundPort": 20000, "ConsulDNSIP": "::1",
                   "ConsulDNSPort": 8600})
            .to_string(),
        ),
        ("everything", EVERYTHING.to_owned()),
    ]
}

/// The input of all programs.
fn rules(config: &str) -> String {
    let redirection = Redirection::parse(config).expect("the configuration is good");
    let missing = [OUTPUT, PREROUTING];
    format!(
        "# nft -f -\n{}\n# iptables-restore --noflush\n{}\n# ip6tables-restore --noflush\n{}",
        nftables::script(&redirection),
        iptables::script(&redirection, Family::V4, &missing),
        iptables::script(&redirection, Family::V6, &missing),
    )
}

#[test]
fn each_field_has_its_rules() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../golden/redirect");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for (name, config) in cases() {
        settings.bind(|| insta::assert_snapshot!(name, rules(&config)));
    }
}

#[test]
fn the_kernel_accepts_the_rules_of_every_field() {
    if !possible() {
        return;
    }
    let pod = Pod::new();
    for (name, config) in cases() {
        for method in Method::BOTH {
            let output = pod.redirect(method, &config);
            assert!(
                output.status.success(),
                "{name} with {method:?}: {output:?}"
            );
        }
    }
}

#[test]
fn bad_configurations_are_refused_by_the_name_of_the_field() {
    for (config, message) in [
        ("", "it is not a JSON object: EOF while parsing a value at line 1 column 0".to_owned()),
        ("[]", "it is not a JSON object: invalid type: sequence, expected a map at line 1 column 0".to_owned()),
        (r#"{"ProxyUserID": "5995"}"#, "ProxyInboundPort: it must be set".to_owned()),
        (r#"{"ProxyUserID": "5995", "ProxyInboundPort": 0}"#, "ProxyInboundPort: it must be set".to_owned()),
        (r#"{"ProxyUserID": "", "ProxyInboundPort": 1}"#, "ProxyUserID: it must be set".to_owned()),
        (&with("ExcludeInboundPort", json!(["80"])), "ExcludeInboundPort: unknown field".to_owned()),
        (&with("NetNS", json!("/run/netns/a")), "NetNS: \"/run/netns/a\" is not empty: it always applies to the network namespace of this program".to_owned()),
        (&with("ProxyOutboundPort", json!(20000)), "ProxyOutboundPort: 20000 is not another port than ProxyInboundPort".to_owned()),
    ] {
        let error = Redirection::parse(config).expect_err(config);
        assert_eq!(error.to_string(), message);
    }
    let ports = [
        json!("0"),
        json!(0),
        json!(65536),
        json!("+80"),
        json!("http"),
        json!("80-90"),
        json!(1.5),
        json!({}),
    ];
    let uids = [
        json!("-1"),
        json!("4294967295"),
        json!("proxy"),
        json!("5995; drop"),
        json!(null),
    ];
    let cidrs = [
        json!("10.0.0.0/33"),
        json!("::/129"),
        json!("example.com"),
        json!("10.0.0.0/8, ::/0"),
        json!(""),
    ];
    for (field, bad, expected) in [
        ("ExcludeInboundPorts", &ports[..], "a port from 1 to 65535"),
        ("ExcludeOutboundPorts", &ports[..], "a port from 1 to 65535"),
        (
            "ExcludeUIDs",
            &uids[..],
            "the number of a user, from 0 to 4294967294",
        ),
        (
            "ExcludeOutboundCIDRs",
            &cidrs[..],
            "a network such as 10.0.0.0/8 or fd00::/8, or an address",
        ),
    ] {
        for value in bad {
            let error = Redirection::parse(&with(field, json!([value]))).expect_err(field);
            assert_eq!(
                error.to_string(),
                format!("{field}: {value} is not {expected}")
            );
        }
        let error = Redirection::parse(&with(field, json!("80,81"))).expect_err(field);
        assert_eq!(
            error.to_string(),
            format!("{field}: \"80,81\" is not a list")
        );
    }
    for (field, bad) in [
        ("ProxyUserID", json!("root")),
        ("ProxyInboundPort", json!(-1)),
        ("ProxyOutboundPort", json!("70000")),
        ("ConsulDNSIP", json!("0.0.0.0")),
        ("ConsulDNSIP", json!("dns.example")),
        ("ConsulDNSPort", json!(65536)),
    ] {
        let error = Redirection::parse(&with(field, bad)).expect_err(field);
        assert!(
            error.to_string().starts_with(&format!("{field}: ")),
            "{error}"
        );
    }
}
