//! What the decoder makes of single fields, and what it refuses.

use std::time::Duration;

use legate_l4::decode;
use legate_l4::model::{
    Address, Balancing, DnsFamily, Filter, Hosts, InspectTls, Listener, Secret, Source, TlsVersion,
    Transport, Validation,
};
use legate_l4::rbac::{Action, Principal, Rules};
use serde_json::{Value, json};

use crate::support::{cluster, encode, endpoints, invalid, listener, needs_envoy, secret};

const TCP: &str = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";
const LIMIT: &str =
    "type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit";
const INSPECTOR: &str =
    "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
const DOWNSTREAM: &str =
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
const UPSTREAM: &str =
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const SPIFFE: &str =
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig";
const STDOUT: &str =
    "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog";
const AGGREGATE: &str = "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig";
const HTTP: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// Sets the value at a JSON pointer; the parents are made as objects.
fn with(mut json: Value, path: &str, value: Value) -> Value {
    let mut place = &mut json;
    for name in path.split('/').skip(1) {
        place = match name.parse::<usize>() {
            Ok(index) if place.is_array() => &mut place[index],
            _ => &mut place[name],
        };
    }
    *place = value;
    json
}

fn tcp() -> Value {
    json!({"name": "tcp", "typedConfig": {"@type": TCP, "statPrefix": "p", "cluster": "c"}})
}

/// A listener with one chain.
fn simple() -> Value {
    json!({
        "name": "l",
        "address": {"socketAddress": {"address": "127.0.0.1", "portValue": 1}},
        "filterChains": [{"filters": [tcp()]}],
    })
}

fn served(json: Value) -> Listener {
    listener(&json).unwrap_or_else(|refused| panic!("{refused}: {json:#}"))
}

fn rbac(config: Value) -> Value {
    let mut config = config;
    config["@type"] = RBAC.into();
    config["statPrefix"] = "r".into();
    let filter = json!({"name": "rbac", "typedConfig": config});
    with(simple(), "/filterChains/0/filters", json!([filter, tcp()]))
}

fn rules(config: Value) -> Option<Rules> {
    match served(rbac(config)).chains[0].filters.as_slice() {
        [Filter::Rbac(rbac)] => rbac.rules.clone(),
        other => panic!("{other:?}"),
    }
}

fn policy(principals: Value) -> Value {
    json!({"rules": {"policies": {"p": {"permissions": [{"any": true}], "principals": principals}}}})
}

#[test]
fn a_listener_with_defaults() {
    let made = served(simple());
    assert_eq!(
        made.address,
        Address::Socket("127.0.0.1:1".parse().unwrap())
    );
    assert_eq!(made.inspect_timeout, Duration::from_secs(15));
    assert!(!made.continue_on_timeout && !made.original_destination);
    assert_eq!(made.inspect_tls, None);
    let tcp = &made.chains[0].tcp;
    assert_eq!(tcp.clusters, [("c".into(), 1)]);
    assert_eq!(tcp.max_connect_attempts, 1);
    assert_eq!(tcp.idle_timeout, Some(Duration::from_secs(3600)));
    assert_eq!(tcp.max_duration, None);
    let never = with(
        simple(),
        "/filterChains/0/filters/0/typedConfig/idleTimeout",
        json!("0s"),
    );
    assert_eq!(served(never).chains[0].tcp.idle_timeout, None);
}

#[test]
fn rules_that_are_absent_or_empty() {
    // Without rules, everybody may connect; with rules that have no policy, nobody.
    assert_eq!(rules(json!({})), None);
    let empty = rules(json!({"rules": {}})).unwrap();
    assert_eq!((empty.action, empty.policies.len()), (Action::Allow, 0));
    let deny = rules(json!({"rules": {"action": "DENY"}})).unwrap();
    assert_eq!((deny.action, deny.policies.len()), (Action::Deny, 0));
}

#[test]
fn principals() {
    let regex = r"^spiffe://c1\.consul/ns/default/dc/[^/]+/svc/shop$";
    let name = json!({"authenticated": {"principalName": {"safeRegex": {"regex": regex}}}});
    let made = rules(policy(json!([
        {"any": true},
        {"andIds": {"ids": [name, {"notId": name}]}},
        {"orIds": {"ids": [name]}},
    ])));
    let made = made.unwrap();
    let [Principal::Any, Principal::All(all), Principal::OneOf(one)] =
        made.policies["p"].as_slice()
    else {
        panic!("{made:?}");
    };
    assert!(matches!(
        all.as_slice(),
        [Principal::Uri(_), Principal::Not(_)]
    ));
    assert!(matches!(one.as_slice(), [Principal::Uri(_)]));
    // The older way to name the only engine of regular expressions changes nothing.
    let with_engine = with(
        name,
        "/authenticated/principalName/safeRegex/googleRe2",
        json!({}),
    );
    assert!(rules(policy(json!([with_engine]))).is_some());
}

#[test]
fn principals_that_need_envoy() {
    let place = "filter_chains[0].filters[0].typed_config.rules.policies[\"p\"].principals[0]";
    let name = |matcher: Value| json!([{"authenticated": {"principalName": matcher}}]);
    let regex = json!({"safeRegex": {"regex": "^.*$"}});
    let cases = [
        (
            json!([{"directRemoteIp": {"addressPrefix": "10.0.0.0"}}]),
            "direct_remote_ip",
        ),
        (
            json!([{"authenticated": {}}]),
            "authenticated: anybody with a certificate",
        ),
        (
            name(json!({"exact": "spiffe://a"})),
            "authenticated.principal_name.exact",
        ),
        (
            name(json!({"prefix": "spiffe://a"})),
            "authenticated.principal_name.prefix",
        ),
        (
            name(regex),
            "authenticated.principal_name.safe_regex.regex: the regular expression ^.*$",
        ),
    ];
    for (principals, what) in cases {
        let refused = needs_envoy(listener(&rbac(policy(principals))));
        assert!(
            refused == format!("{place}.{what}") || refused.ends_with(&format!(".{what}")),
            "{refused}"
        );
    }
    assert!(invalid(listener(&rbac(policy(json!([]))))).contains("at least 1 item"));
    assert!(invalid(listener(&rbac(policy(json!([{}]))))).contains("a principal is required"));
}

#[test]
fn principals_that_are_deep_or_many() {
    let nested = |depth: usize| {
        let one = json!({"any": true});
        (1..depth).fold(one, |inner, _| json!({"notId": inner}))
    };
    assert!(rules(policy(json!([nested(8)]))).is_some());
    let what = needs_envoy(listener(&rbac(policy(json!([nested(9)])))));
    assert!(what.ends_with("principals nested deeper than 8"), "{what}");
    // So deep that the reader refuses it, without a deep recursion.
    let what = needs_envoy(listener(&rbac(policy(json!([nested(60)])))));
    assert!(what.contains("nested deeper than"), "{what}");
    let many = |count: usize| policy(vec![json!({"any": true}); count].into());
    assert!(rules(many(10_000)).is_some());
    let what = needs_envoy(listener(&rbac(many(10_001))));
    assert!(what.ends_with("more than 10000 principals"), "{what}");
}

#[test]
fn filters_that_need_envoy() {
    let filter = |config: Value| {
        let filters = json!([{"name": "f", "typedConfig": config}, tcp()]);
        listener(&with(simple(), "/filterChains/0/filters", filters))
    };
    let http = json!({"@type": HTTP, "statPrefix": "h"});
    assert_eq!(
        needs_envoy(filter(http)),
        "filter_chains[0].filters[0].typed_config: envoy.extensions.filters.network.http_connection_manager.v3.\
         HttpConnectionManager"
    );
    let shadow = json!({"@type": RBAC, "statPrefix": "r", "shadowRules": {}});
    assert_eq!(
        needs_envoy(filter(shadow)),
        "filter_chains[0].filters[0].typed_config.shadow_rules"
    );
    let log = json!({"@type": RBAC, "statPrefix": "r", "rules": {"action": "LOG"}});
    assert!(needs_envoy(filter(log)).ends_with("rules.action: LOG"));
    let always = json!({"@type": RBAC, "statPrefix": "r", "enforcementType": "CONTINUOUS"});
    assert!(needs_envoy(filter(always)).ends_with("enforcement_type: CONTINUOUS"));
    let hash =
        json!({"@type": TCP, "statPrefix": "p", "cluster": "c", "hashPolicy": [{"sourceIp": {}}]});
    assert!(needs_envoy(filter(hash)).ends_with("typed_config.hash_policy"));
    let discovered =
        json!([{"name": "f", "configDiscovery": {"configSource": {"ads": {}}, "typeUrls": [TCP]}}]);
    let discovered = listener(&with(simple(), "/filterChains/0/filters", discovered));
    assert_eq!(
        needs_envoy(discovered),
        "filter_chains[0].filters[0].config_discovery"
    );
    let none = listener(&with(simple(), "/filterChains/0/filters", json!([])));
    assert_eq!(
        needs_envoy(none),
        "filter_chains[0].filters: a chain without filters"
    );
    let udp = listener(&with(
        simple(),
        "/address/socketAddress/protocol",
        json!("UDP"),
    ));
    assert_eq!(needs_envoy(udp), "address.socket_address.protocol: UDP");
}

#[test]
fn filters_that_envoy_rejects() {
    let filters = |filters: Value| listener(&with(simple(), "/filterChains/0/filters", filters));
    assert!(invalid(filters(json!([tcp(), tcp()]))).contains("must be the last filter"));
    let rbac = json!({"name": "r", "typedConfig": {"@type": RBAC, "statPrefix": "r"}});
    assert!(invalid(filters(json!([rbac]))).contains("non-terminal filter"));
    let limit = json!({"name": "l", "typedConfig": {"@type": LIMIT, "statPrefix": "l"}});
    assert!(invalid(filters(json!([limit, tcp()]))).contains("max_connections"));
    let no_cluster = json!([{"name": "t", "typedConfig": {"@type": TCP, "statPrefix": "p"}}]);
    assert!(invalid(filters(no_cluster)).contains("a cluster is required"));
    let none = with(simple(), "/filterChains", json!([]));
    let text = "error adding listener '127.0.0.1:1': no filter chains specified";
    assert_eq!(invalid(listener(&none)), text);
    let named = with(
        simple(),
        "/address/socketAddress/address",
        json!("a.example"),
    );
    assert!(invalid(listener(&named)).contains("malformed IP address: a.example"));
}

#[test]
fn weights_of_clusters() {
    let clusters = json!({"clusters": [{"name": "a", "weight": 1}, {"name": "b", "weight": 3}]});
    let config = json!({"@type": TCP, "statPrefix": "p", "weightedClusters": clusters});
    let weighted = with(simple(), "/filterChains/0/filters/0/typedConfig", config);
    let made = served(weighted.clone());
    assert_eq!(
        made.chains[0].tcp.clusters,
        [("a".into(), 1), ("b".into(), 3)]
    );
    let path = "/filterChains/0/filters/0/typedConfig/weightedClusters/clusters/1/weight";
    assert!(invalid(listener(&with(weighted, path, json!(0)))).contains("weight"));
}

#[test]
fn the_match_of_a_chain() {
    let criteria = json!({
        "destinationPort": 80,
        "prefixRanges": [{"addressPrefix": "10.1.2.3", "prefixLen": 8}, {"addressPrefix": "fd00::1", "prefixLen": 128}],
        "serverNames": ["a.example", "*.b.example"],
        "transportProtocol": "tls",
        "applicationProtocols": ["h2"],
    });
    let with_match = |criteria| with(simple(), "/filterChains/0/filterChainMatch", criteria);
    let made = served(with_match(criteria));
    let matches = &made.chains[0].matches;
    assert_eq!(matches.port, Some(80));
    assert_eq!(
        matches.prefixes[0].address,
        "10.0.0.0".parse::<std::net::IpAddr>().unwrap()
    );
    assert_eq!(matches.prefixes[0].length, 8);
    assert_eq!(matches.prefixes[1].length, 128);
    assert_eq!(matches.transport, Some(Transport::Tls));
    // Envoy inspects only if the listener asks for it, also if a chain can never match then.
    assert_eq!(made.inspect_tls, None);
    for criteria in [
        json!({"destinationPort": 0}),
        json!({"destinationPort": 65_536}),
        json!({"prefixRanges": [{"addressPrefix": "10.0.0.0", "prefixLen": 33}]}),
        json!({"prefixRanges": [{"addressPrefix": "x"}]}),
        json!({"serverNames": ["a*.example"]}),
        json!({"serverNames": ["*"]}),
    ] {
        invalid(listener(&with_match(criteria)));
    }
    for criteria in [
        json!({"sourcePorts": [1]}),
        json!({"sourceType": "EXTERNAL"}),
        json!({"transportProtocol": "quic"}),
    ] {
        needs_envoy(listener(&with_match(criteria)));
    }
}

#[test]
fn ports_that_are_not_inspected() {
    let range =
        |start: u32, end: u32| json!({"destinationPortRange": {"start": start, "end": end}});
    let inspector = |disabled: Value| {
        let filter =
            json!({"name": "i", "typedConfig": {"@type": INSPECTOR}, "filterDisabled": disabled});
        listener(&with(simple(), "/listenerFilters", json!([filter]))).map(|made| made.inspect_tls)
    };
    let both = json!({"orMatch": {"rules": [range(1, 2), range(5, 9)]}});
    let except = InspectTls {
        only_ports: None,
        except_ports: vec![(1, 2), (5, 9)],
    };
    assert_eq!(inspector(both.clone()).unwrap(), Some(except));
    let only = InspectTls {
        only_ports: Some(vec![(1, 2), (5, 9)]),
        except_ports: vec![],
    };
    assert_eq!(inspector(json!({"notMatch": both})).unwrap(), Some(only));
    assert_eq!(inspector(json!({"anyMatch": true})).unwrap(), None);
    let and = json!({"andMatch": {"rules": [range(1, 2), range(1, 3)]}});
    assert_eq!(
        needs_envoy(inspector(and)),
        "listener_filters[0].filter_disabled.and_match"
    );
    invalid(inspector(json!({})));
}

/// A listener with these TLS parameters.
fn with_tls(context: Value) -> Value {
    let mut config = json!({"@type": DOWNSTREAM, "commonTlsContext": context});
    if config["commonTlsContext"]["tlsCertificates"].is_null() {
        config["commonTlsContext"]["tlsCertificateSdsSecretConfigs"] = json!([sds("leaf")]);
    }
    with(
        simple(),
        "/filterChains/0/transportSocket",
        json!({"name": "tls", "typedConfig": config}),
    )
}

fn sds(name: &str) -> Value {
    json!({"name": name, "sdsConfig": {"ads": {}, "resourceApiVersion": "V3"}})
}

#[test]
fn versions_and_suites() {
    let parameters = |parameters: Value| {
        let made = listener(&with_tls(json!({"tlsParams": parameters})));
        made.map(|made| made.chains[0].tls.clone().unwrap().common.clone())
    };
    let made = parameters(json!({})).unwrap();
    assert_eq!(
        (made.min_version, made.max_version),
        (TlsVersion::Auto, TlsVersion::Auto)
    );
    assert_eq!(made.certificate, Some(Source::Named("leaf".into())));
    let known = json!({"cipherSuites": ["ECDHE-RSA-AES128-GCM-SHA256"]});
    assert_eq!(
        parameters(known).unwrap().cipher_suites,
        ["ECDHE-RSA-AES128-GCM-SHA256"]
    );
    // Suites only apply up to TLS 1.2.
    let newest =
        json!({"tlsMinimumProtocolVersion": "TLSv1_3", "cipherSuites": ["AES256-GCM-SHA384"]});
    assert_eq!(parameters(newest).unwrap().cipher_suites, [""; 0]);
    for refused in [
        json!({"tlsMinimumProtocolVersion": "TLSv1_0"}),
        json!({"tlsMinimumProtocolVersion": "TLSv1_1"}),
        json!({"tlsMaximumProtocolVersion": "TLSv1_1"}),
        json!({"tlsMinimumProtocolVersion": "TLSv1_3", "tlsMaximumProtocolVersion": "TLSv1_2"}),
        json!({"cipherSuites": ["AES256-GCM-SHA384"]}),
        json!({"cipherSuites": ["ECDHE-RSA-AES128-SHA"]}),
        json!({"cipherSuites": ["[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]"]}),
        json!({"ecdhCurves": ["P-256"]}),
    ] {
        needs_envoy(parameters(refused));
    }
}

#[test]
fn certificates_and_authorities_in_a_listener() {
    let certificate = json!({"certificateChain": {"inlineString": "chain"}, "privateKey": {"inlineBytes": "a2V5"}});
    let context = json!({
        "tlsCertificates": [certificate],
        "validationContext": {"trustedCa": {"inlineString": "roots"}},
    });
    let made = served(with_tls(context.clone()));
    let common = &made.chains[0].tls.as_ref().unwrap().common;
    let Some(Source::Inline(own)) = &common.certificate else {
        panic!("{common:?}");
    };
    assert_eq!((own.chain.as_str(), own.key.as_str()), ("chain", "key"));
    let Some(Source::Inline(roots)) = &common.validation else {
        panic!("{common:?}");
    };
    assert_eq!(**roots, Validation::Authorities("roots".to_owned()));
    // Neither the model nor the JSON shows a key.
    assert!(!format!("{made:?}").contains("key\""), "{made:?}");
    let bytes = encode(
        "envoy.config.listener.v3.Listener",
        &with_tls(context.clone()),
    );
    let shown = decode::to_json(
        "type.googleapis.com/envoy.config.listener.v3.Listener",
        &bytes,
    );
    let shown =
        &shown["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"];
    let shown = &shown["tls_certificates"][0];
    assert_eq!(
        shown["certificate_chain"],
        json!({"inline_string": "chain"})
    );
    assert_eq!(
        shown["private_key"],
        json!({"inline_bytes": "W3JlZGFjdGVkXQ=="})
    );

    let two = with(
        context.clone(),
        "/tlsCertificates",
        json!([certificate, certificate]),
    );
    assert!(needs_envoy(listener(&with_tls(two))).ends_with("several certificates"));
    let file = with(
        context.clone(),
        "/tlsCertificates/0/privateKey",
        json!({"filename": "/key"}),
    );
    assert!(needs_envoy(listener(&with_tls(file))).ends_with("private_key.filename"));
    let no_key = with(
        context.clone(),
        "/tlsCertificates/0/privateKey",
        Value::Null,
    );
    assert!(invalid(listener(&with_tls(no_key))).contains("incomplete certificate"));
    let no_roots = with(context, "/validationContext", json!({}));
    needs_envoy(listener(&with_tls(no_roots)));
    let none = json!({"name": "tls", "typedConfig": {"@type": DOWNSTREAM}});
    let none = with(simple(), "/filterChains/0/transportSocket", none);
    assert!(invalid(listener(&none)).contains("No TLS certificates found"));
}

#[test]
fn identities_that_are_required() {
    let san = |kind: &str, matcher: Value| json!({"sanType": kind, "matcher": matcher});
    let combined = |context: Value| {
        json!({"combinedValidationContext": {
            "defaultValidationContext": context,
            "validationContextSdsSecretConfig": sds("roots"),
        }})
    };
    let upstream = |context: Value| {
        let socket = json!({"name": "tls", "typedConfig": {"@type": UPSTREAM, "sni": "s", "commonTlsContext": context}});
        cluster(&with(eds(), "/transportSocket", socket)).map(|made| made.tls.unwrap())
    };
    let exact = json!({"matchTypedSubjectAltNames": [san("URI", json!({"exact": "spiffe://a"}))]});
    let made = upstream(combined(exact.clone())).unwrap();
    assert_eq!(made.sni, "s");
    assert_eq!(made.common.uris, ["spiffe://a"]);
    assert_eq!(made.common.validation, Some(Source::Named("roots".into())));
    assert_eq!(made.common.certificate, None);
    let inline = with(
        json!({"validationContext": exact}),
        "/validationContext/trustedCa",
        json!({"inlineString": "r"}),
    );
    assert_eq!(upstream(inline).unwrap().common.uris, ["spiffe://a"]);
    // Names without authorities would verify nothing.
    assert!(invalid(upstream(json!({"validationContext": exact}))).contains("without trusted CA"));
    for refused in [
        json!({"matchTypedSubjectAltNames": [san("DNS", json!({"exact": "a"}))]}),
        json!({"matchTypedSubjectAltNames": [san("URI", json!({"prefix": "spiffe://a"}))]}),
        json!({"matchTypedSubjectAltNames": [san("URI", json!({"exact": "a", "ignoreCase": true}))]}),
        json!({"trustedCa": {"inlineString": "r"}}),
        json!({"allowExpiredCertificate": true}),
        json!({"crl": {"inlineString": "c"}}),
    ] {
        needs_envoy(upstream(combined(refused)));
    }
    // Envoy's newest version as a client is 1.2, which matters if suites are chosen.
    let chosen = json!({"tlsParams": {"cipherSuites": ["ECDHE-RSA-AES128-GCM-SHA256"]}});
    assert_eq!(
        upstream(chosen).unwrap().common.max_version,
        TlsVersion::V1_2
    );
    let source = json!({"name": "leaf", "sdsConfig": {"pathConfigSource": {"path": "/x"}, "resourceApiVersion": "V3"}});
    let source = json!({"tlsCertificateSdsSecretConfigs": [source]});
    assert!(needs_envoy(upstream(source)).ends_with("sds_config.path_config_source"));
}

#[test]
fn secrets() {
    let certificate = json!({"name": "leaf", "tlsCertificate": {
        "certificateChain": {"inlineString": "c"}, "privateKey": {"inlineString": "k"},
    }});
    assert!(matches!(
        secret(&certificate).unwrap(),
        Secret::Certificate(_)
    ));
    let domains = json!([
        {"name": "a", "trustBundle": {"inlineString": "root a"}},
        {"name": "b", "trustBundle": {"inlineString": "root b"}},
    ]);
    let spiffe = json!({"name": "roots", "validationContext": {
        "trustedCa": {"inlineString": "r"},
        "customValidatorConfig": {"name": "s", "typedConfig": {"@type": SPIFFE, "trustDomains": domains}},
    }});
    let Secret::Validation(made) = secret(&spiffe).unwrap() else {
        panic!("no authorities");
    };
    let Validation::TrustDomains(made) = &*made else {
        panic!("{made:?}");
    };
    assert_eq!(made["b"], "root b");
    let path = "/validationContext/customValidatorConfig/typedConfig/trustDomains/1/name";
    let text = invalid(secret(&with(spiffe.clone(), path, json!("a"))));
    assert!(
        text.ends_with("Multiple trust bundles are given for one trust domain for a"),
        "{text}"
    );
    let path = "/validationContext/customValidatorConfig/typedConfig/trustBundles";
    needs_envoy(secret(&with(spiffe, path, json!({"inlineString": "x"}))));
    needs_envoy(secret(&json!({"name": "k", "genericSecret": {}})));
    needs_envoy(secret(&json!({"name": "k", "validationContext": {}})));
}

fn eds() -> Value {
    json!({"name": "c", "type": "EDS", "edsClusterConfig": {"edsConfig": {"ads": {}, "resourceApiVersion": "V3"}}})
}

fn with_hosts(kind: &str, hosts: &[&str]) -> Value {
    let hosts = hosts
        .iter()
        .map(|host| json!({"endpoint": endpoint_at(host)}));
    let hosts: Vec<Value> = hosts.collect();
    json!({"name": "c", "type": kind, "loadAssignment": {"clusterName": "c", "endpoints": [{"lbEndpoints": hosts}]}})
}

fn endpoint_at(host: &str) -> Value {
    json!({"address": {"socketAddress": {"address": host, "portValue": 1}}})
}

#[test]
fn where_hosts_come_from() {
    assert_eq!(
        cluster(&eds()).unwrap().hosts,
        Hosts::Discovered("c".into())
    );
    let named = with(eds(), "/edsClusterConfig/serviceName", json!("other"));
    assert_eq!(
        cluster(&named).unwrap().hosts,
        Hosts::Discovered("other".into())
    );
    let made = cluster(&with_hosts("STATIC", &["10.0.0.1"])).unwrap();
    assert!(matches!(made.hosts, Hosts::Static(_)));
    assert_eq!(
        (made.connect_timeout, made.max_connections),
        (Duration::from_secs(5), 1024)
    );
    assert_eq!((made.max_pending, made.panic_threshold), (1024, 50.0));
    assert!(
        invalid(cluster(&with_hosts("STATIC", &["a.example"]))).contains("malformed IP address")
    );
    let made = cluster(&with(
        with_hosts("LOGICAL_DNS", &["a.example"]),
        "/dnsLookupFamily",
        json!("V4_ONLY"),
    ));
    let Hosts::LogicalDns {
        endpoints,
        refresh,
        family,
    } = made.unwrap().hosts
    else {
        panic!("no names");
    };
    assert_eq!(
        endpoints.priorities[0][0].address,
        Address::Dns("a.example".into(), 1)
    );
    assert_eq!((refresh, family), (Duration::from_secs(5), DnsFamily::V4));
    assert!(
        invalid(cluster(&with_hosts("LOGICAL_DNS", &["a", "b"]))).contains("must have a single")
    );
    assert!(matches!(
        cluster(&with_hosts("STRICT_DNS", &["10.0.0.1"]))
            .unwrap()
            .hosts,
        Hosts::Static(_)
    ));
    needs_envoy(cluster(&with_hosts("STRICT_DNS", &["a.example"])));
    needs_envoy(cluster(&with_hosts(
        "STRICT_DNS",
        &["10.0.0.1", "10.0.0.2"],
    )));
    let provided = json!({"name": "c", "type": "ORIGINAL_DST", "lbPolicy": "CLUSTER_PROVIDED"});
    assert_eq!(
        cluster(&provided).unwrap().hosts,
        Hosts::OriginalDestination
    );
    invalid(cluster(&with(provided, "/lbPolicy", json!("ROUND_ROBIN"))));
    let aggregate = json!({"name": "c", "lbPolicy": "CLUSTER_PROVIDED", "clusterType": {
        "name": "a", "typedConfig": {"@type": AGGREGATE, "clusters": ["x", "y"]},
    }});
    assert_eq!(
        cluster(&aggregate).unwrap().hosts,
        Hosts::Aggregate(vec!["x".into(), "y".into()])
    );
    invalid(cluster(&with(
        eds(),
        "/lbPolicy",
        json!("CLUSTER_PROVIDED"),
    )));
    // Hosts of another kind of cluster would have no effect.
    let both = with(
        with_hosts("EDS", &["10.0.0.1"]),
        "/edsClusterConfig",
        eds()["edsClusterConfig"].clone(),
    );
    assert_eq!(
        needs_envoy(cluster(&both)),
        "load_assignment: it has no effect here"
    );
}

#[test]
fn how_hosts_are_chosen() {
    let policy =
        |policy: &str| cluster(&with(eds(), "/lbPolicy", json!(policy))).map(|made| made.balancing);
    assert_eq!(policy("ROUND_ROBIN").unwrap(), Balancing::RoundRobin);
    assert_eq!(policy("RANDOM").unwrap(), Balancing::Random);
    assert_eq!(
        policy("LEAST_REQUEST").unwrap(),
        Balancing::LeastRequest { choices: 2 }
    );
    assert_eq!(needs_envoy(policy("MAGLEV")), "lb_policy: MAGLEV");
    assert_eq!(needs_envoy(policy("RING_HASH")), "lb_policy: RING_HASH");
    let hash = with(eds(), "/ringHashLbConfig", json!({}));
    assert_eq!(needs_envoy(cluster(&hash)), "ring_hash_lb_config");
    let least = with(eds(), "/lbPolicy", json!("LEAST_REQUEST"));
    let three = with(
        least.clone(),
        "/leastRequestLbConfig",
        json!({"choiceCount": 3}),
    );
    assert_eq!(
        cluster(&three).unwrap().balancing,
        Balancing::LeastRequest { choices: 3 }
    );
    invalid(cluster(&with(
        least,
        "/leastRequestLbConfig",
        json!({"choiceCount": 1}),
    )));
}

#[test]
fn limits_and_ejections() {
    let thresholds = json!({"thresholds": [
        {"priority": "HIGH", "maxConnections": 9},
        {"maxConnections": 3, "maxPendingRequests": 4, "maxRequests": 5, "maxRetries": 6},
    ]});
    let made = cluster(&with(eds(), "/circuitBreakers", thresholds)).unwrap();
    assert_eq!((made.max_connections, made.max_pending), (3, 4));
    let detection = |detection: Value| {
        let made = cluster(&with(eds(), "/outlierDetection", detection));
        made.map(|made| made.outlier_detection.unwrap())
    };
    let defaults = detection(json!({})).unwrap();
    assert_eq!(
        (defaults.consecutive_failures, defaults.enforcing),
        (5, 100)
    );
    assert_eq!(
        (defaults.max_ejection_percent, defaults.always_eject_one),
        (10, false)
    );
    assert_eq!(defaults.max_ejection, Duration::from_secs(300));
    let long = detection(json!({"baseEjectionTime": "400s", "consecutive5xx": 0})).unwrap();
    assert_eq!(
        (long.max_ejection, long.consecutive_failures),
        (Duration::from_secs(400), 0)
    );
    let split = json!({"splitExternalLocalOriginErrors": true, "consecutiveLocalOriginFailure": 7});
    assert_eq!(detection(split).unwrap().consecutive_failures, 7);
    let none = json!({"enforcingSuccessRate": 0, "enforcingFailurePercentage": 0, "consecutiveGatewayFailure": 9});
    assert!(!detection(none).unwrap().success_rate);
    assert!(defaults.success_rate);
    let split = json!({"splitExternalLocalOriginErrors": true, "enforcingLocalOriginSuccessRate": 0, "enforcingSuccessRate": 1});
    assert!(!detection(split).unwrap().success_rate);
    let all = json!({"enforcingSuccessRate": 100});
    assert!(detection(all).unwrap().success_rate);
    assert_eq!(
        needs_envoy(detection(json!({"enforcingSuccessRate": 1}))),
        "outlier_detection.enforcing_success_rate"
    );
    needs_envoy(detection(
        json!({"enforcingConsecutiveGatewayFailure": 100}),
    ));
    // It counts only with the separation.
    needs_envoy(detection(json!({"consecutiveLocalOriginFailure": 7})));
    invalid(detection(json!({"interval": "0s"})));
    invalid(detection(json!({"maxEjectionPercent": 101})));
    invalid(cluster(&with(eds(), "/connectTimeout", json!("0s"))));
    invalid(cluster(&with(eds(), "/connectTimeout", json!("-1s"))));
    needs_envoy(cluster(&with(
        eds(),
        "/healthChecks",
        json!([{"timeout": "1s"}]),
    )));
}

#[test]
fn endpoints_of_a_cluster() {
    let host =
        |host: &str, health: &str| json!({"endpoint": endpoint_at(host), "healthStatus": health});
    let made = endpoints(&json!({"clusterName": "c", "endpoints": [
        {"priority": 1, "lbEndpoints": [host("10.0.0.3", "DRAINING")], "locality": {"zone": "z"}},
        {"lbEndpoints": [host("10.0.0.1", "HEALTHY"), host("10.0.0.2", "UNHEALTHY")], "loadBalancingWeight": 1},
    ]}));
    let made = made.unwrap();
    let healthy = |priority: usize| {
        let endpoints = made.priorities[priority].iter();
        endpoints
            .map(|endpoint| (endpoint.healthy, endpoint.weight))
            .collect::<Vec<_>>()
    };
    assert_eq!(healthy(0), [(true, 1), (false, 1)]);
    assert_eq!(healthy(1), [(false, 1)]);
    let one = |endpoint: Value| {
        endpoints(&json!({"clusterName": "c", "endpoints": [{"lbEndpoints": [endpoint]}]}))
    };
    needs_envoy(one(host("10.0.0.1", "DEGRADED")));
    needs_envoy(one(with(
        host("10.0.0.1", "HEALTHY"),
        "/endpoint/hostname",
        json!("a"),
    )));
    invalid(one(with(
        host("10.0.0.1", "HEALTHY"),
        "/loadBalancingWeight",
        json!(0),
    )));
    invalid(one(host("a.example", "HEALTHY")));
    invalid(one(json!({})));
    let policy = |factor: u32| {
        endpoints(&json!({"clusterName": "c", "policy": {"overprovisioningFactor": factor}}))
    };
    assert!(policy(140).is_ok());
    needs_envoy(policy(100_000));
}

#[test]
fn access_logs() {
    let log = |log: Value| {
        let mut config = log;
        config["@type"] = STDOUT.into();
        let log = json!([{"name": "l", "typedConfig": config}]);
        listener(&with(simple(), "/accessLog", log)).map(|made| made.access_logs[0].clone())
    };
    assert!(log(json!({})).is_ok());
    assert!(log(json!({"logFormat": {"textFormat": "%BYTES_SENT%\n"}})).is_ok());
    let unknown =
        log(json!({"logFormat": {"textFormatSource": {"inlineString": "%DYNAMIC_METADATA(a)%"}}}));
    assert_eq!(
        needs_envoy(unknown),
        "access_log[0].typed_config.log_format: %DYNAMIC_METADATA(a)% in an access log"
    );
    let number = log(json!({"logFormat": {"jsonFormat": {"a": {"b": 1}}}}));
    assert!(needs_envoy(number).ends_with("number_value"));
    let filter = |flags: Value| {
        let log = json!([{"filter": {"responseFlagFilter": {"flags": flags}}, "typedConfig": {"@type": STDOUT}}]);
        listener(&with(simple(), "/accessLog", log)).map(|made| made.access_logs[0].flags.clone())
    };
    assert_eq!(filter(json!(["NR"])).unwrap().unwrap().len(), 1);
    assert_eq!(filter(json!([])).unwrap().unwrap().len(), 30);
    invalid(filter(json!(["XX"])));
}

/// A sidecar's public listener as Consul's own servers send it: certificates and authorities are in the resource.
#[test]
fn a_listener_of_consul() {
    let certificate = json!({
        "certificateChain": {"inlineString": "-----BEGIN CERTIFICATE-----\n"},
        "privateKey": {"inlineString": "-----BEGIN EC PRIVATE KEY-----\n"},
    });
    let context = json!({
        "tlsParams": {},
        "tlsCertificates": [certificate],
        "validationContext": {"trustedCa": {"inlineString": "-----BEGIN CERTIFICATE-----\n"}},
    });
    let socket = json!({"name": "tls", "typedConfig": {
        "@type": DOWNSTREAM, "commonTlsContext": context, "requireClientCertificate": true,
    }});
    let denying = json!({"name": "envoy.filters.network.rbac", "typedConfig": {
        "@type": RBAC, "rules": {"action": "DENY"}, "statPrefix": "connect_authz",
    }});
    let listener = json!({
        "name": "public_listener:0.0.0.0:21000",
        "address": {"socketAddress": {"address": "0.0.0.0", "portValue": 21_000}},
        "filterChains": [{"filters": [denying, tcp()], "transportSocket": socket}],
        "trafficDirection": "INBOUND",
    });
    let made = served(listener);
    assert!(
        made.chains[0]
            .tls
            .as_ref()
            .unwrap()
            .require_client_certificate
    );
}
