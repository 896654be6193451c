use legate_runtime::logging::Level;
use legate_server::{DnsDomains, DnsSettings, DnsSoa, RecursorStrategy, ServiceTtls};

use super::*;
use crate::agent::config::{
    Addresses, Audit, Dns, HttpApi, Limits, Nothing, Peering, Ports, Protocol, RequestRates, Sink,
    Soa, Telemetry, Tls, Tokens, Ui, UnixSockets, Xds,
};
use crate::agent::flags::parse;
use crate::agent::sources;

/// Resolves a command line and files, or returns the error.
fn read(args: &[&str], files: &[(&str, &str)]) -> Result<Resolved, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let dir = folder.path().to_str().unwrap();
    let line = [&["-config-dir", dir][..], args].concat();
    let text = |error: anyhow::Error| format!("{error:#}").replace(&format!("{dir}/"), "");
    let flags = parse(&line).unwrap();
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
    assert!(text(&["-data-dir=/x"]).contains("client agents are not supported"));
    assert!(text(&["-server=false", "-data-dir=/x"]).contains("server = false is not supported"));
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
                  ca_config { leaf_cert_ttl = "24h" private_key_type = "rsa" private_key_bits = 4096
                              csr_max_per_second = 10 } }
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
    assert!(server.grpc_tls_files.is_some() && server.dns_settings.only_passing);
    // The default policy applies to intentions even if ACLs are disabled.
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
fn unsupported_settings_are_refused_with_file_and_key() {
    for (text, key) in [
        (
            "auto_encrypt { tls = true }",
            "auto_encrypt.tls is not supported",
        ),
        (
            "segments = [{ name = \"a\" }]",
            "segments is not supported: there is no gossip",
        ),
        ("prots { http = 1 }", "invalid config key prots"),
        (
            "telemetry { nonsense = 1 }",
            "invalid config key telemetry.nonsense",
        ),
        ("ports { http = \"many\" }", "ports.http"),
        (
            "services { name = \"a\" nonsense = 1 }",
            "services[0].nonsense",
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
    // These concern several files.
    let refused = |text: &str| refused(&[("a.hcl", text)]);
    let unresolved = "primary_datacenter = \"other\"\nacl { enabled = true }";
    assert!(refused(unresolved).contains("set acl.enable_token_replication = true"));
    for (connect, why) in [
        (
            "ca_provider = \"vault\"",
            "connect.ca_config: must provide a Vault token",
        ),
        ("ca_provider = \"aws-pca\"", "\"aws-pca\" is not served"),
        (
            "ca_config { leaf_cert_ttl = \"10m\" }",
            "must be greater or equal than 1h0m0s",
        ),
        (
            "ca_config { colour = \"red\" }",
            "invalid config key \"colour\"",
        ),
    ] {
        let error = refused(&format!("connect {{ {connect} }}"));
        assert!(error.contains(why), "{connect}: {error}");
    }
    assert!(refused("ports { http = 70000 }").contains("ports.http"));
    let verified = refused("tls { https { verify_incoming = true } }");
    assert!(verified.contains("tls.https.verify_incoming requires"));
    assert!(refused("client_addr = \"x\"").contains("client_addr"));
    assert!(refused("log_level = \"loud\"").contains("log_level"));
    assert!(refused("acl { default_policy = \"maybe\" }").contains("acl.default_policy"));
}

/// The configuration with which the official Go client's tests start servers.
const GO_CLIENT: &str = r#"{
    "node_name": "node-a1", "node_id": "0B6AC1A0-5E4C-4B3F-8A1D-2D0A0C2B6A11",
    "performance": {"raft_multiplier": 1}, "bootstrap": true, "server": true,
    "data_dir": "/x", "segments": null, "disable_update_check": true, "log_level": "debug",
    "bind_addr": "127.0.0.1", "addresses": {}, "ports": {"dns": 1, "http": 2, "https": 3,
    "serf_lan": 4, "serf_wan": 5, "server": 6, "grpc": 7, "grpc_tls": 8}, "raft_protocol": 3,
    "acl_default_policy": "deny", "acl": {"enabled": true, "tokens": {"master": "root"}},
    "connect": {"ca_config": {"cluster_id": "11111111-2222-3333-4444-555555555555"}, "enabled": true},
    "skip_leave_on_interrupt": true, "peering": {"enabled": true}, "version": "1.21.0",
    "encrypt": "key", "retry_join": ["127.0.0.1:4"], "autopilot": {"server_stabilization_time": "1ms"},
    "ca_file": "ca.pem", "cert_file": "a.pem", "key_file": "b.pem", "enable_debug": true
}"#;

#[test]
fn the_go_clients_servers_start_with_ignored_keys_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    std::fs::write(&file, GO_CLIENT).unwrap();
    let flags = parse(&["-config-file", file.to_str().unwrap()]).unwrap();
    let sources = sources::read(&flags).unwrap();
    let mut notes: Vec<_> = sources
        .notes
        .iter()
        .filter_map(|note| note.rsplit_once(".json: ").map(|(_, note)| note))
        .filter_map(|note| note.split_once(' ').map(|(key, _)| key))
        .collect();
    notes.sort_unstable();
    assert_eq!(
        notes,
        [
            "acl.tokens.master",
            "acl_default_policy",
            "autopilot",
            "ca_file",
            "cert_file",
            "encrypt",
            "key_file",
            "performance",
            "ports.serf_lan",
            "ports.serf_wan",
            "raft_protocol",
            "retry_join",
        ]
    );
    let server = resolve(sources, false).unwrap().server;
    assert_eq!(
        server.agent.node_id.as_deref(),
        Some("0b6ac1a0-5e4c-4b3f-8a1d-2d0a0c2b6a11")
    );
    assert_eq!(server.default_intention_policy, Some(IntentionAction::Deny));
    assert!(server.ca.cluster_id.is_some() && server.debug && server.connect);
    assert_eq!(server.https_files, server.grpc_tls_files);
    assert!(server.acl.initial_management.is_some());
}

#[test]
fn addresses_sockets_and_limits() {
    let text = r#"
        client_addr = "127.0.0.1 ::1"
        addresses { http = "unix:///run/legate.sock 127.0.0.2" }
        unix_sockets { user = "1" group = "2" mode = "0770" }
        http_config {
          block_endpoints = ["/v1/agent/self"]
          response_headers { "X-Frame-Options" = "DENY" }
          allow_write_http_from = ["10.0.0.0/8"]
        }
        ui_config { hosts = ["mesh.example.com"] metrics_provider = "prometheus" }
        limits { request_limits { mode = "enforcing" read_rate = 10 write_rate = -1 }
                 kv_max_value_size = 100 https_handshake_timeout = "3s" }
        tls { defaults { ca_file = "ca.pem" verify_incoming = true tls_min_version = "TLSv1_3" }
              grpc { verify_incoming = false } }
        max_query_time = "60s"
        audit { enabled = true sink "one" { type = "file" path = "/x" rotate_bytes = 10 } }
        telemetry { statsd_address = "127.0.0.1:8125" prometheus_retention_time = "1h" }
        log_file = "/logs/" log_rotate_max_files = -1 enable_local_script_checks = true
    "#;
    let resolved = read(
        &["-dev", "-allow-write-http-from=::1/128"],
        &[("a.hcl", text)],
    )
    .unwrap();
    let server = resolved.server;
    assert_eq!(server.http.unwrap().to_string(), "127.0.0.2:8500");
    let socket = &server.more_listeners.http_sockets[0];
    assert_eq!(
        (socket.path.to_str(), socket.mode),
        (Some("/run/legate.sock"), Some(0o770))
    );
    assert_eq!(server.more_listeners.dns[0].to_string(), "[::1]:8600");
    assert_eq!(
        server.http_policy.allow_write_from[0].to_string(),
        "::1/128"
    );
    assert_eq!(server.http_policy.hosts, ["mesh.example.com"]);
    assert_eq!(server.http_policy.handshake_timeout, Duration::from_secs(3));
    assert_eq!(server.request_limits.read_rate, Some(10.0));
    assert_eq!(server.request_limits.write_rate, None);
    assert_eq!(
        (server.sizes.kv_value, server.sizes.transaction),
        (100, 100)
    );
    assert!(server.https_policy.verify_incoming && !server.grpc_tls_policy.verify_incoming);
    assert_eq!(server.query_times.default, Duration::from_secs(60));
    assert_eq!(server.audit[0].rotation.bytes, 10);
    assert_eq!(server.telemetry.statsd.as_deref(), Some("127.0.0.1:8125"));
    let file = resolved.log_file.unwrap();
    assert_eq!(
        (file.path.to_str(), file.rotation.keep),
        (Some("/logs/consul.log"), Some(0))
    );
}

#[test]
fn missing_files_are_named() {
    for (flag, says) in [
        ("-config-dir=/nowhere", "/nowhere"),
        ("-config-file=/etc/hostname", "/etc/hostname"),
    ] {
        let error = read(&["-dev", flag], &[]).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn dns_settings_are_consuls() {
    let text = r#"
        domain = "Mesh.Example." alt_domain = "consul" recursors = ["192.0.2.1", "[fd00::1]:5353", "fd00::2"]
        dns_config {
          node_ttl = "5s" service_ttl { "*" = "1s" "web*" = "20s" } soa { min_ttl = 30 }
          udp_answer_limit = 5 a_record_limit = 2 enable_truncate = true disable_compression = true
          enable_additional_node_meta_txt = false recursor_strategy = "random" recursor_timeout = "3s"
          prefer_namespace = true allow_stale = true
        }
    "#;
    let server = config(&["-dev"], &[("a.hcl", text)]);
    assert_eq!(
        server.dns_domains,
        DnsDomains::new("mesh.example", Some("consul")).unwrap()
    );
    let times = [("*", 1), ("web*", 20)];
    let times = times.map(|(name, time)| (name.to_owned(), Duration::from_secs(time)));
    let expected = DnsSettings {
        only_passing: false,
        node_ttl: Duration::from_secs(5),
        service_ttl: ServiceTtls::new(times),
        soa: DnsSoa {
            min_ttl: 30,
            ..DnsSoa::default()
        },
        udp_answer_limit: 5,
        a_record_limit: 2,
        enable_truncate: true,
        disable_compression: true,
        node_meta_txt: false,
        prefer_namespace: true,
        recursors: ["192.0.2.1:53", "[fd00::1]:5353", "[fd00::2]:53"]
            .map(|address| address.parse().unwrap())
            .into(),
        recursor_strategy: RecursorStrategy::Random,
        recursor_timeout: Duration::from_secs(3),
    };
    assert_eq!(server.dns_settings, expected);
    let server = config(
        &["-dev", "-recursor=192.0.2.9", "-domain=x", "-alt-domain=y"],
        &[],
    );
    assert_eq!(server.dns_settings.recursors[0].to_string(), "192.0.2.9:53");
    let domains = DnsDomains::new("x", Some("y")).unwrap();
    assert_eq!(server.dns_domains, domains);
}

#[test]
fn invalid_dns_settings_are_named() {
    for (text, says) in [
        (
            "domain = \"a mesh\"",
            "domain: \"a mesh\" is not a valid domain",
        ),
        (
            "alt_domain = \"a..b\"",
            "alt_domain: \"a..b\" is not a valid domain",
        ),
        (
            "recursors = [\"dns.example\"]",
            "recursors: \"dns.example\"",
        ),
        (
            "dns_config { udp_answer_limit = -1 }",
            "dns_config.udp_answer_limit cannot be -1",
        ),
        (
            "dns_config { a_record_limit = -1 }",
            "dns_config.a_record_limit cannot be -1",
        ),
        (
            "dns_config { recursor_strategy = \"any\" }",
            "dns_config.recursor_strategy",
        ),
        (
            "dns_config { service_ttl { web = \"soon\" } }",
            "dns_config.service_ttl.web",
        ),
    ] {
        let error = read(&["-dev"], &[("a.hcl", text)]).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn the_pages_name_every_key() {
    let pages = concat!(
        include_str!("../../../../../docs/agent.md"),
        include_str!("../../../../../docs/dns.md"),
        include_str!("../../../../../docs/operations.md"),
    );
    let words: Vec<&str> = pages
        .split(|of: char| !of.is_ascii_alphanumeric() && of != '_')
        .collect();
    let all = [
        Settings::KEYS,
        Acl::KEYS,
        Tokens::KEYS,
        Addresses::KEYS,
        Audit::KEYS,
        Sink::KEYS,
        Connect::KEYS,
        Peering::KEYS,
        Dns::KEYS,
        Soa::KEYS,
        HttpApi::KEYS,
        Limits::KEYS,
        Nothing::KEYS,
        RequestRates::KEYS,
        Ports::KEYS,
        Telemetry::KEYS,
        Tls::KEYS,
        Ui::KEYS,
        Protocol::KEYS,
        UnixSockets::KEYS,
        Xds::KEYS,
    ];
    // No key below these has an effect.
    let silent = ["peering", "rpc"];
    for key in all.concat() {
        let key = key.trim_start_matches("r#");
        assert!(
            silent.contains(&key) || words.contains(&key),
            "docs/agent.md does not name {key}"
        );
    }
}

#[test]
fn servers_of_other_datacenters() {
    let tls = r#"
        tls {
          defaults { ca_file = "ca.pem" cert_file = "a.pem" key_file = "b.pem" }
          internal_rpc { cert_file = "c.pem" key_file = "d.pem" verify_incoming = true tls_min_version = "TLSv1_3"
                         tls_cipher_suites = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" }
        }
    "#;
    assert!(
        config(&["-dev"], &[]).wan.is_none(),
        "there is no certificate"
    );
    let none = [("a.hcl", tls), ("b.hcl", "ports { server = -1 }")];
    assert!(config(&["-dev"], &none).wan.is_none());
    let wan = config(&["-dev"], &[("a.hcl", tls)]).wan.unwrap();
    assert_eq!(wan.listen.to_string(), "127.0.0.1:8300");
    let files = wan.files.unwrap();
    let policy = &files.policy;
    assert_eq!(policy.client_authorities, [PathBuf::from("ca.pem")]);
    assert_eq!(files.certificate, PathBuf::from("c.pem"));
    assert!(policy.only_newest && wan.join.is_empty());
    let suites = &policy.cipher_suites;
    assert_eq!(suites, &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);

    let more = r#"
        bind_addr = "10.0.0.5" advertise_addr_wan = "192.0.2.5" ports { server = 9300 }
        retry_join_wan = ["dc1.example.com"] retry_interval_wan = "5s"
    "#;
    let flags = ["-dev", "-retry-join-wan=192.0.2.7", "-retry-max-wan=3"];
    let server = config(&flags, &[("a.hcl", tls), ("b.hcl", more)]);
    let wan = server.wan.unwrap();
    assert_eq!(wan.listen.to_string(), "10.0.0.5:9300");
    assert_eq!(wan.advertise.to_string(), "192.0.2.5");
    assert_eq!(wan.join, ["192.0.2.7"], "flags override files");
    assert_eq!(
        (wan.retry_interval, wan.retry_max),
        (Duration::from_secs(5), 3)
    );
    let tagged = &server.agent.tagged_addresses;
    assert_eq!(
        [&tagged["wan"], &tagged["wan_ipv4"]],
        ["192.0.2.5", "192.0.2.5"]
    );

    let joins = "retry_join_wan = [\"x\"]";
    let bare = read(&["-server", "-data-dir=/x"], &[("a.hcl", joins)]).unwrap_err();
    assert!(
        bare.contains("retry_join_wan requires ports.server, and ca_file"),
        "{bare}"
    );
    // In development mode nobody is verified, unless there are ACLs.
    let open = config(&["-dev"], &[("a.hcl", joins)]).wan.unwrap();
    assert!(open.files.is_none() && open.join == ["x"]);
    let primary = "primary_datacenter = \"dc1\"";
    assert!(config(&["-dev"], &[("a.hcl", primary)]).wan.is_some());
    let with_acls = format!("{joins} acl {{ enabled = true }}");
    assert!(refused(&[("a.hcl", &with_acls)]).contains("requires ports.server, and ca_file"));
    let cloud = format!("{tls} retry_join_wan = [\"provider=aws tag_key=x\"]");
    assert!(refused(&[("a.hcl", &cloud)]).contains("clouds are not asked for servers"));
}

#[test]
fn servers_behind_mesh_gateways() {
    let on = r#"
        tls { defaults { ca_file = "ca.pem" cert_file = "a.pem" key_file = "b.pem" } }
        connect { enable_mesh_gateway_wan_federation = true }
    "#;
    let of = |more: &str| {
        let wan = config(&["-dev"], &[("a.hcl", on), ("b.hcl", more)]).wan;
        wan.unwrap().through_gateways.unwrap()
    };
    assert!(of("").addresses.is_empty(), "as the primary");
    let secondary = r#"
        primary_datacenter = "dc0" primary_gateways_interval = "5s"
        primary_gateways = ["gateway.example:8443", "[2001:db8::1]:443"]
    "#;
    let known = of(secondary);
    let addresses = known.addresses.iter().map(ToString::to_string);
    assert_eq!(
        addresses.collect::<Vec<_>>(),
        ["gateway.example:8443", "[2001:db8::1]:443"]
    );
    assert_eq!(known.interval, Duration::from_secs(5));
    let flags = ["-dev", "-primary-gateway=192.0.2.7:443"];
    let more = "primary_datacenter = \"dc0\"";
    let wan = config(&flags, &[("a.hcl", on), ("b.hcl", more)]).wan;
    let known = wan.unwrap().through_gateways.unwrap();
    assert_eq!(known.addresses[0].to_string(), "192.0.2.7:443");

    let off = refused(&[("a.hcl", "primary_gateways = [\"x\"]")]);
    let reason = "primary_gateways requires connect.enable_mesh_gateway_wan_federation = true";
    assert!(off.contains(reason), "{off}");
    let bare = "connect { enable_mesh_gateway_wan_federation = true }";
    let bare = refused(&[("a.hcl", bare)]);
    assert!(
        bare.contains("wan_federation requires ports.server, and ca_file"),
        "{bare}"
    );
    let refused = |more: &str| refused(&[("a.hcl", on), ("b.hcl", more)]);
    for (more, reason) in [
        (
            "primary_gateways = [\"a:1\"]",
            "is for a secondary datacenter",
        ),
        (
            "primary_datacenter = \"dc0\" primary_gateways = [\"a\"]",
            "primary_gateways: \"a\" is not an address of a gateway",
        ),
        (
            "primary_datacenter = \"dc0\" primary_gateways = [\"provider=aws x=y\"]",
            "clouds are not asked",
        ),
        ("retry_join_wan = [\"a\"]", "exclude each other"),
        ("connect { enabled = false }", "requires connect.enabled"),
    ] {
        assert!(refused(more).contains(reason), "{more}: {}", refused(more));
    }
}
