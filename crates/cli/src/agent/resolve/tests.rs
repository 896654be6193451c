use clap::Parser;

use super::*;
use crate::agent::{Flags, sources, with_two_dashes};

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    flags: Flags,
}

/// What a command line and files come to, or what they are refused with.
fn read(args: &[&str], files: &[(&str, &str)]) -> Result<Resolved, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let dir = folder.path().to_str().unwrap();
    let begin = ["legate", "agent", "-config-dir", dir];
    let line = begin.iter().chain(args);
    let text = |error: anyhow::Error| format!("{error:#}").replace(&format!("{dir}/"), "");
    let mut line = with_two_dashes(line.map(Into::into)).map_err(text)?;
    line.remove(1);
    let flags = Program::try_parse_from(line).unwrap().flags;
    let settings = sources::read(&flags).map_err(text)?;
    resolve(settings, flags.dev).map_err(text)
}

fn config(args: &[&str], files: &[(&str, &str)]) -> ServerConfig {
    read(args, files)
        .unwrap_or_else(|error| panic!("{error}"))
        .server
}

fn refused(files: &[(&str, &str)]) -> String {
    read(&["-dev"], files).unwrap_err()
}

#[test]
fn development_mode_has_consuls_ports_and_keeps_nothing() {
    let dev = config(&["-dev", "-data-dir", "/x", "-client", "0.0.0.0"], &[]);
    let ports = [dev.http, dev.grpc, dev.grpc_tls, dev.dns].map(|api| api.unwrap().to_string());
    assert_eq!(
        ports,
        [
            "0.0.0.0:8500",
            "0.0.0.0:8502",
            "0.0.0.0:8503",
            "0.0.0.0:8600"
        ]
    );
    assert_eq!(dev.https, None);
    assert_eq!(dev.store, StoreConfig::Memory);
    assert_eq!(dev.advertise, IpAddr::V4(Ipv4Addr::LOCALHOST));
    assert_eq!(
        dev.node_name,
        nix::unistd::gethostname().unwrap().to_str().unwrap()
    );
    assert!(dev.agent.registers_itself);
}

#[test]
fn a_server_keeps_its_state_and_has_no_grpc_without_tls() {
    let server = config(&["-server", "-data-dir=/x", "-bootstrap-expect=1"], &[]);
    assert_eq!(server.grpc, None);
    assert!(matches!(server.store, StoreConfig::Disk { .. }));
    let text = |args: &[&str]| read(args, &[]).unwrap_err();
    assert!(text(&["-server"]).contains("data_dir"));
    assert!(text(&["-data-dir=/x"]).contains("client agents are not served"));
    assert!(text(&["-server=false", "-data-dir=/x"]).contains("server = false"));
    assert!(text(&["-server", "-data-dir=/x", "-bootstrap-expect=3"]).contains("etcd"));
}

#[test]
fn later_files_then_hcl_then_flags_win() {
    let files = [
        (
            "10.hcl",
            "datacenter = \"one\" log_level = \"WARN\" ports { http = 1 https = 2 }",
        ),
        (
            "20.json",
            r#"{"Datacenter": "two", "ports": {"http": 3}, "node_name": "file"}"#,
        ),
        ("30.txt", "this is not read"),
    ];
    let resolved = read(
        &["-dev", "-node=flag", "-hcl", "node_meta { a = \"b\" }"],
        &files,
    );
    let resolved = resolved.unwrap();
    assert_eq!(resolved.log.level, Level::Warn);
    let server = resolved.server;
    assert_eq!(
        (server.datacenter.as_str(), server.node_name.as_str()),
        ("two", "flag")
    );
    assert_eq!(server.http.unwrap().port(), 3);
    assert_eq!(server.https.unwrap().port(), 2);
    assert_eq!(server.agent.node_meta["a"], "b");
}

#[test]
fn services_checks_and_entries_of_all_files_are_registered() {
    let one = r#"
        services { name = "s1" port = 8080 connect { sidecar_service { } } }
        services { name = "s2" checks = [ { ttl = "10s" }, { http = "http://x/" interval = "1s" } ] }
        check { id = "disk" args = [] ttl = "30s" }
    "#;
    let two = r#"
        service { name = "s3" tags = "single" }
        config_entries {
          bootstrap { kind = "service-defaults" name = "s1" protocol = "http" }
          bootstrap = [ { Kind = "proxy-defaults" Name = "global" Config { protocol = "http" } } ]
        }
    "#;
    let agent = config(&["-dev"], &[("1.hcl", one), ("2.hcl", two)]).agent;
    let names: Vec<_> = agent.services.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["s1", "s2", "s3"]);
    assert_eq!(agent.services[1].checks.len(), 2);
    assert_eq!(agent.services[2].tags, ["single"]);
    assert_eq!(agent.checks[0].check_id, "disk");
    let entries: Vec<_> = agent
        .config_entries
        .iter()
        .map(|one| one.kind().as_str())
        .collect();
    assert_eq!(entries, ["service-defaults", "proxy-defaults"]);
}

#[test]
fn acls_intentions_and_the_ca() {
    let text = r#"
        acl { enabled = true default_policy = "deny"
              tokens { initial_management = "5a3d8cb5-0b0f-4bd2-8f0a-0f6bd1f2b7a1" } }
        connect { enabled = true ca_provider = "consul"
                  ca_config { leaf_cert_ttl = "24h" private_key_type = "ec" private_key_bits = 256 } }
        limits { http_max_conns_per_client = 1000 }
        tls { defaults { cert_file = "a.pem" key_file = "b.pem" } }
        dns_config { only_passing = true }
    "#;
    let server = config(&["-dev"], &[("a.hcl", text)]);
    assert!(server.acl.enabled);
    let token = server.acl.initial_management.unwrap();
    assert_eq!(token.expose(), "5a3d8cb5-0b0f-4bd2-8f0a-0f6bd1f2b7a1");
    assert_eq!(server.default_intention_policy, Some(IntentionAction::Deny));
    assert_eq!(server.ca.leaf_ttl, Duration::from_secs(24 * 3600));
    assert_eq!(server.connections.http.per_address, 1000);
    assert_eq!(server.grpc_tls_files, server.https_files);
    assert!(server.grpc_tls_files.is_some() && server.dns_only_passing);
    // The default policy counts for intentions where ACLs are off, too.
    let off = [("a.hcl", "acl { default_policy = \"deny\" }")];
    let server = config(&["-dev"], &off);
    assert_eq!(server.default_intention_policy, Some(IntentionAction::Deny));
    let own = [(
        "a.hcl",
        "acl { default_policy = \"deny\" } default_intention_policy = \"allow\"",
    )];
    let server = config(&["-dev"], &own);
    assert_eq!(
        server.default_intention_policy,
        Some(IntentionAction::Allow)
    );
}

#[test]
fn one_client_may_have_all_connections() {
    let none = [("a.hcl", "limits { http_max_conns_per_client = 0 }")];
    let http = config(&["-dev"], &none).connections.http;
    assert_eq!(http.per_address, http.in_all);
    let many = [("a.hcl", "limits { http_max_conns_per_client = 5000 }")];
    let http = config(&["-dev"], &many).connections.http;
    assert_eq!((http.in_all, http.per_address), (5000, 5000));
}

#[test]
fn what_is_not_served_is_refused_with_its_file_and_key() {
    for (text, key) in [
        (
            "retry_join_wan = [\"x\"]",
            "retry_join_wan is not served: a server serves one",
        ),
        (
            "primary_gateways = [\"x\"]",
            "primary_gateways is not served",
        ),
        (
            "connect { enable_mesh_gateway_wan_federation = true }",
            "wan_federation = true",
        ),
        ("connect { ca_provider = \"vault\" }", "connect.ca_provider"),
        ("connect { enabled = false }", "connect.enabled = false"),
        ("peering { enabled = true }", "peering.enabled = true"),
        ("ui_config { enabled = true }", "ui_config.enabled = true"),
        (
            "tls { internal_rpc { ca_file = \"x\" } }",
            "tls.internal_rpc is not served",
        ),
        (
            "tls { https { verify_incoming = true } }",
            "verify_incoming = true",
        ),
        (
            "acl { tokens { agent = \"x\" } }",
            "acl.tokens.agent is not served",
        ),
        ("telemetry { }", "telemetry is not served"),
        (
            "leave_on_terminate = true",
            "leave_on_terminate is not served",
        ),
        (
            "prots { http = 1 }",
            "prots is not served: it is no setting",
        ),
        ("ports { http = \"many\" }", "ports.http"),
        (
            "services { name = \"a\" nonsense = 1 }",
            "services[0].nonsense",
        ),
        (
            "services { name = \"a\" check { udp = \"x:1\" interval = \"1s\" } }",
            "services[0].check.UDP is not served",
        ),
        (
            "config_entries { bootstrap { kind = \"nonsense\" } }",
            "bootstrap[0]",
        ),
        ("datacenter = ", "cannot be read"),
    ] {
        let error = refused(&[("a.hcl", text)]);
        assert!(error.starts_with("a.hcl"), "{text}: {error}");
        assert!(
            error.to_lowercase().contains(&key.to_lowercase()),
            "{text}: {error}"
        );
    }
    // These are about more than one file.
    let refused = |text: &str| refused(&[("a.hcl", text)]);
    assert!(refused("primary_datacenter = \"other\"").contains("primary_datacenter"));
    assert!(refused("ports { http = 70000 }").contains("ports.http"));
    assert!(refused("client_addr = \"x\"").contains("client_addr"));
    assert!(refused("log_level = \"loud\"").contains("log_level"));
    assert!(refused("acl { default_policy = \"maybe\" }").contains("acl.default_policy"));
}

#[test]
fn peers_and_clients_that_are_off_are_no_reason_to_refuse() {
    let off = "peering { enabled = false } ui_config { enabled = false } server = true \
               primary_datacenter = \"dc1\" tls { defaults { verify_incoming = false } }";
    config(&["-dev"], &[("a.hcl", off)]);
}

#[test]
fn files_that_are_not_there_are_named() {
    for (flag, says) in [
        ("-config-dir=/nowhere", "/nowhere"),
        ("-config-file=/etc/hostname", "/etc/hostname"),
    ] {
        let error = read(&["-dev", flag], &[]).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}
