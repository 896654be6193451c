//! Validation of queries, rendering of templates, and selection of instances. The expected texts and
//! results are those of Consul 1.21, except for the refusals of this server.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{CheckServiceNode, CheckStatus, HealthCheck, Node, ServiceInstance};

fn query(value: Value) -> PreparedQuery {
    crate::json::from_value(value, crate::json::UnknownFields::Refuse).unwrap()
}

fn template(service: Value) -> PreparedQuery {
    query(json!({
        "Name": "geo-", "Service": service,
        "Template": {"Type": "name_prefix_match", "Regexp": "^geo-(.*?)-([^-]+?)$"},
    }))
}

fn refused(value: Value) -> String {
    query(value).validate().unwrap_err().to_string()
}

#[test]
fn queries_serialize_as_in_consul() {
    let shown = serde_json::to_string(&query(json!({
        "name": "q", "service": {"service": "web", "tags": []},
    })));
    assert_eq!(
        shown.unwrap(),
        concat!(
            r#"{"ID":"","Name":"q","Session":"","Token":"","#,
            r#""Template":{"Type":"","Regexp":"","RemoveEmptyTags":false},"#,
            r#""Service":{"Service":"web","SamenessGroup":"","#,
            r#""Failover":{"NearestN":0,"Datacenters":null,"Targets":null},"#,
            r#""OnlyPassing":false,"IgnoreCheckIDs":null,"Near":"","Tags":[],"NodeMeta":null,"#,
            r#""ServiceMeta":null,"Connect":false,"Peer":""},"DNS":{"TTL":""},"#,
            r#""CreateIndex":0,"ModifyIndex":0}"#
        )
    );
}

#[test]
fn errors_name_the_mistake() {
    let web = |fields: Value| {
        let mut service = json!({"Service": "web"});
        service
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        json!({"Name": "q", "Service": service})
    };
    let dns = |ttl| json!({"Name": "q", "Service": {"Service": "web"}, "DNS": {"TTL": ttl}});
    for (value, expected) in [
        (json!({"Name": "q"}), "Must provide a Service name to query"),
        (
            json!({"Service": {"Service": "web"}}),
            "Must be bound to a session",
        ),
        (
            json!({"Name": "q", "Token": "<hidden>", "Service": {"Service": "web"}}),
            "Bad Token '<hidden>', it looks like a query definition with a redacted token was \
             submitted",
        ),
        (
            web(json!({"Failover": {"NearestN": -1}})),
            "Bad NearestN '-1', must be >= 0",
        ),
        (
            web(json!({"Failover": {"NearestN": 1, "Targets": [{"Datacenter": "b"}]}})),
            "Targets cannot be populated with NearestN or Datacenters",
        ),
        (
            web(json!({"Failover": {"Targets": [{"Peer": "b", "Datacenter": "c"}]}})),
            "Service.Failover.Targets[0].Peer: it cannot be used together with Datacenter",
        ),
        (
            web(json!({"SamenessGroup": "b"})),
            "sameness-groups are an enterprise-only feature",
        ),
        (
            web(json!({"NodeMeta": {"": "x"}})),
            "NodeMeta: a key is empty",
        ),
        (dns("x"), "Bad DNS TTL 'x'"),
        (dns("-1s"), "DNS TTL '-1000000000', must be >=0"),
        (
            json!({"Name": "q".repeat(513), "Service": {"Service": "web"}}),
            "Name has 513 bytes, more than 512",
        ),
        (
            web(json!({"Tags": ["t".repeat(65_536)]})),
            "bytes, more than 65536",
        ),
    ] {
        let text = refused(value);
        assert!(
            text.starts_with("Invalid prepared query: ") && text.contains(expected),
            "{text}"
        );
    }
    assert_eq!(query(dns("10s")).validate(), Ok(()));
}

#[test]
fn a_template_is_rendered_with_the_name() {
    let template = query(json!({
        "Name": "geo-",
        "Template": {
            "Type": "name_prefix_match", "Regexp": "^geo-(.*?)-([^-]+?)$", "RemoveEmptyTags": true,
        },
        "Service": {
            "Service": "${match(1)}",
            "Tags": ["${match(2)}", "${match(9)}", "!${agent.segment}",
                "x${name.suffix}${name.prefix}", "$${a}"],
            "NodeMeta": {"k": "${name.full}"},
        },
    }));
    assert_eq!(template.validate(), Ok(()));
    let web = template.render("geo-web-v1").unwrap().service;
    assert_eq!(web.service, "web");
    let tags = ["v1", "!", "xweb-v1geo-", "${a}"].map(str::to_owned);
    assert_eq!(web.tags, Some(tags.to_vec()));
    assert_eq!(web.node_meta.unwrap()["k"], "geo-web-v1");
    // The prefix and the regular expression are case-sensitive.
    let other = template.render("GEO-web-v1").unwrap().service;
    assert_eq!(other.service, "");
    let tags = ["!", "xGEO-web-v1geo-", "${a}"].map(str::to_owned);
    assert_eq!(other.tags, Some(tags.to_vec()));
}

#[test]
fn the_language_of_templates_is_consuls() {
    for (text, expected) in [
        ("web", "web"),
        ("${name.full} $ { } $${x} $$ $a", "geo-a-b $ { } ${x} $ $a"),
        (r#"a\n$$$x${"q\""}$"#, r#"a\n$$xq"$"#),
        ("${ match( 1 ) }${1.5}${true}${match(-1)}", "a1.5true"),
        (r#"a${"b${name.full}"}${match("2")}"#, "abgeo-a-bb"),
    ] {
        let rendered = template(json!({"Service": text})).render("geo-a-b");
        assert_eq!(rendered.unwrap().service.service, expected, "{text}");
    }
}

#[test]
fn templates_that_cannot_be_rendered_are_refused() {
    for (text, expected) in [
        (
            "${name.full} ${name.x}",
            "Bad evaluation for '${name.full} ${name.x}' in Service.Service: 1:16: unknown variable \
             accessed: name.x",
        ),
        (
            "${name.full",
            "Bad format '${name.full' in Service.Service: parse error at 1:12: expected \"}\" but \
             found end of string",
        ),
        (
            "${}",
            "parse error at 1:3: expected expression but found \"}\"",
        ),
        (
            "${name.full name}",
            "parse error at 1:13: expected \"}\" but found \"n\"",
        ),
        ("${foo(1)}", "1:3: unknown function called: foo"),
        ("${match(name.full)}", "is not a whole number"),
        ("${match(1, 2)}", "expected \")\" but found \",\""),
        ("${match(0-1)}", "the operator - is not served"),
        ("${name.full ? 1 : 2}", "the operator ? is not served"),
        (r#"${"abc}"#, "but found end of string"),
        ("\u{e9}${x}", "1:4: unknown variable"),
    ] {
        let error = template(json!({"Service": text})).validate();
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("failed compiling template: Bad "),
            "{error}"
        );
        assert!(error.contains(expected), "{error}");
    }
    let deep = format!("{}x{}", "${\"".repeat(40), "\"}".repeat(40));
    let error = template(json!({"Service": deep})).validate().unwrap_err();
    assert!(error.to_string().contains("nested too deep"), "{error}");
    let in_meta = template(json!({"Service": "a", "NodeMeta": {"k": "${x}"}}));
    let error = in_meta.validate().unwrap_err().to_string();
    assert!(error.contains("in Service.NodeMeta[k]: 1:3"), "{error}");
    for (kind, regexp, expected) in [
        ("x", "", "Bad Template.Type 'x'"),
        ("name_prefix_match", "(", "Bad Regexp: "),
        (
            "name_prefix_match",
            &"()".repeat(33),
            "Template.Regexp has 33 groups, more than 32",
        ),
    ] {
        let error = refused(json!({
            "Name": "t", "Template": {"Type": kind, "Regexp": regexp}, "Service": {"Service": "a"},
        }));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn groups_of_a_regular_expression_are_bounded_wherever_the_query_comes_from() {
    let with = |groups: usize| {
        query(json!({
            "Name": "t", "Service": {"Service": "a${match(32)}"},
            "Template": {"Type": "name_prefix_match", "Regexp": "()".repeat(groups)},
        }))
    };
    assert_eq!(with(32).validate(), Ok(()));
    // A stored query may have been validated by another version.
    assert_eq!(with(2000).render("t1"), Err(TemplateError::Groups(2000)));
}

#[test]
fn rendered_templates_are_bounded() {
    let many = template(json!({"Service": "${name.full}".repeat(4000)}));
    assert_eq!(many.validate(), Ok(()));
    let long = format!("geo-{}", "x".repeat(100));
    assert_eq!(many.render(&long), Err(TemplateError::Large));
}

fn instance(node: &str, tags: &[&str], checks: &[(&str, CheckStatus)]) -> CheckServiceNode {
    let check = |(id, status): &(&str, CheckStatus)| {
        Arc::new(HealthCheck {
            check_id: (*id).to_owned(),
            status: *status,
            ..HealthCheck::default()
        })
    };
    CheckServiceNode {
        node: Arc::new(Node {
            node: node.to_owned(),
            meta: [("rack".to_owned(), "1".to_owned())].into(),
            ..Node::default()
        }),
        service: Arc::new(ServiceInstance {
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            meta: [("version".to_owned(), "2".to_owned())].into(),
            ..ServiceInstance::default()
        }),
        checks: checks.iter().map(check).collect(),
    }
}

#[test]
fn instances_are_chosen_by_tags_meta_and_health() {
    use CheckStatus::{Critical, Passing, Warning};
    let fits = |service: Value, instance: &CheckServiceNode| {
        let service: ServiceQuery =
            crate::json::from_value(service, crate::json::UnknownFields::Refuse).unwrap();
        service.fits(instance)
    };
    let healthy = instance("n", &["V1", "green"], &[("a", Passing)]);
    for (wanted, expected) in [
        (json!({}), true),
        (json!({"Tags": ["v1"]}), true),
        (json!({"Tags": ["v1", "!GREEN"]}), false),
        (json!({"Tags": ["v1", "!blue"]}), true),
        (json!({"Tags": ["v2"]}), false),
        (json!({"Tags": [""]}), false),
        (json!({"NodeMeta": {"rack": "1"}}), true),
        (json!({"NodeMeta": {"rack": "2"}}), false),
        (json!({"NodeMeta": {"version": "2"}}), false),
        (json!({"ServiceMeta": {"version": "2"}}), true),
        (json!({"ServiceMeta": {"version": ""}}), false),
    ] {
        assert_eq!(fits(wanted.clone(), &healthy), expected, "{wanted}");
    }
    let warned = instance("n", &[], &[("a", Passing), ("b", Warning)]);
    let down = instance("n", &[], &[("a", Passing), ("b", Critical)]);
    for (wanted, of_warned, of_down) in [
        (json!({}), true, false),
        (json!({"OnlyPassing": true}), false, false),
        (json!({"IgnoreCheckIDs": ["b"]}), true, true),
        (
            json!({"IgnoreCheckIDs": ["b"], "OnlyPassing": true}),
            true,
            true,
        ),
        (json!({"IgnoreCheckIDs": ["a"]}), true, false),
    ] {
        assert_eq!(fits(wanted.clone(), &warned), of_warned, "{wanted}");
        assert_eq!(fits(wanted.clone(), &down), of_down, "{wanted}");
    }
}

#[test]
fn the_instances_of_a_node_come_first() {
    let mut all = ["a", "b", "c", "B"].map(|node| instance(node, &[], &[]));
    put_node_first(&mut all, "b");
    let nodes = all.iter().map(|one| one.node.node.as_str());
    assert_eq!(nodes.collect::<Vec<_>>(), ["b", "B", "a", "c"]);
}

#[test]
fn a_token_is_hidden() {
    let with = query(json!({"Name": "q", "Token": "t", "Service": {"Service": "web"}}));
    assert_eq!(with.without_token().token.expose(), "<hidden>");
    let without = query(json!({"Name": "q", "Service": {"Service": "web"}}));
    assert_eq!(without.without_token(), without);
}

proptest! {
    #[test]
    fn garbage_never_panics_and_accepted_templates_can_be_rendered(
        text in prop_oneof![
            any::<String>(),
            "([$]\\{| |match|\\(|\\)|name[.]full|\"|\\\\|[$]|\\}|1|-|\u{e9}){0,24}",
        ],
        name in any::<String>(),
    ) {
        let template = template(json!({"Service": text, "Tags": [text]}));
        // A number taken from the name may be invalid.
        let depends = text.contains("name");
        let accepted = template.validate().is_ok();
        let filled = template.render(&name);
        prop_assert!(!accepted || depends || filled.is_ok(), "{:?}", filled);
    }
}

#[test]
fn a_query_looks_in_each_datacenter_once() {
    let nearest = ["near", "far", "farthest"].map(str::to_owned);
    let scopes_with = |peer: &str, failover: Value| {
        let service = json!({"Service": "web", "Peer": peer, "Failover": failover});
        let query = query(json!({"Service": service}));
        let scopes = query.service.scopes(&nearest);
        let scopes = scopes
            .iter()
            .map(|scope| match (scope.datacenter, scope.peer) {
                (Some(datacenter), "") => format!("{datacenter} {}", scope.namespace),
                (None, "") => format!("here {}", scope.namespace),
                (datacenter, peer) => {
                    assert_eq!(datacenter, None, "what is imported is here");
                    format!("of {peer} {}", scope.namespace)
                }
            });
        scopes
            .map(|scope| scope.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let scopes = |failover: Value| scopes_with("", failover);
    assert_eq!(scopes(json!({})), ["here"]);
    let named = json!({"NearestN": 1, "Datacenters": ["Farthest", "near", "unknown"]});
    assert_eq!(scopes(named), ["here", "near", "farthest"]);
    let targets = json!({"Targets": [
        {"Datacenter": "far"}, {"Namespace": "a"}, {"Datacenter": "far", "Namespace": "b"},
        {"Datacenter": "far"}, {"Datacenter": "unknown"},
    ]});
    assert_eq!(scopes(targets), ["here", "far", "here a", "far b"]);
    assert_eq!(
        scopes(json!({"NearestN": 9})),
        ["here", "near", "far", "farthest"]
    );
    let targets =
        json!({"Targets": [{"Peer": "p"}, {"Peer": "q", "Namespace": "a"}, {"Peer": "p"}]});
    assert_eq!(scopes(targets.clone()), ["here", "of p", "of q a"]);
    assert_eq!(scopes_with("q", targets), ["of q", "of p", "of q a"]);
    // Only this datacenter is peered.
    let nearest = json!({"NearestN": 1, "Datacenters": ["far"]});
    assert_eq!(scopes_with("q", nearest), ["of q", "near", "far"]);
}
