//! Permissions of tokens, and links of logins.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use legate_model::acl::*;
use legate_model::json::{UnknownFields, from_value};
use serde_json::{Value, json};

fn token(value: Value) -> Token {
    from_value(value, UnknownFields::Refuse).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn tokens_expire_and_are_checked() {
    let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    let mut expiring = token(json!({"ExpirationTime": "1970-01-01T00:01:00Z"}));
    assert!(!expiring.is_expired(at(59)) && expiring.is_expired(at(60)));
    expiring.expiration_time = None;
    assert!(!expiring.is_expired(at(60)));
    for (value, field) in [
        (json!({"AccessorID": "a"}), "AccessorID"),
        (json!({"SecretID": "a"}), "SecretID"),
        (
            json!({"ServiceIdentities": [{"ServiceName": "Web"}]}),
            "ServiceIdentities[0].ServiceName",
        ),
        (
            json!({"NodeIdentities": [{"NodeName": "n"}]}),
            "NodeIdentities[0].Datacenter",
        ),
        (json!({"Policies": [{}]}), "Policies[0]"),
        (json!({"Roles": [{}]}), "Roles[0]"),
        (
            json!({"Local": true, "ServiceIdentities": [{"ServiceName": "web", "Datacenters": ["dc1"]}]}),
            "ServiceIdentities[0].Datacenters",
        ),
        (
            json!({"TemplatedPolicies": [{"TemplateName": "builtin/nope"}]}),
            "TemplatedPolicies[0].TemplateName",
        ),
        (
            json!({"TemplatedPolicies": [{"TemplateName": "builtin/node"}]}),
            "TemplatedPolicies[0].TemplateVariables.name",
        ),
        (
            json!({"TemplatedPolicies": [{"TemplateName": "builtin/dns", "TemplateID": "x"}]}),
            "TemplatedPolicies[0].TemplateID",
        ),
    ] {
        assert_eq!(token(value).validate().unwrap_err().path(), field);
    }
}

fn variables() -> Variables {
    Variables {
        values: BTreeMap::from([
            ("value.name".into(), "web".into()),
            ("value.odd".into(), "a/b".into()),
        ]),
        lists: BTreeMap::from([("list.groups".into(), vec!["ops".into()])]),
        ..Variables::default()
    }
}

fn rule(bind_type: BindType, bind_name: &str, selector: &str) -> BindingRule {
    BindingRule {
        id: "r1".into(),
        auth_method: "jwt".into(),
        bind_type,
        bind_name: bind_name.into(),
        selector: selector.into(),
        ..BindingRule::default()
    }
}

fn templated(template: &str, name: Option<&str>) -> BindingRule {
    BindingRule {
        bind_vars: name.map(|name| TemplateVariables { name: name.into() }),
        ..rule(BindType::TemplatedPolicy, template, "")
    }
}

#[test]
fn all_matching_rules_apply() {
    let rules = [
        rule(BindType::Service, "${value.name}", ""),
        rule(BindType::Service, "${value.name}", "ops in list.groups"),
        rule(BindType::Service, "api", "value.name == other"),
        rule(BindType::Node, "n-${value.name}", "value.name == web"),
        rule(BindType::Policy, "global-management", "ops in list.groups"),
        rule(BindType::Policy, "unknown", ""),
        rule(BindType::Role, "${value.name}s", ""),
        templated("builtin/node", Some("n-${value.name}")),
        templated("builtin/dns", None),
        templated("builtin/dns", None),
    ];
    let filled = |template: &str, name: Option<&str>| TemplatedPolicy {
        template_name: template.into(),
        template_variables: name.map(|name| TemplateVariables { name: name.into() }),
        ..TemplatedPolicy::default()
    };
    let bindings = bind(&rules, &variables(), "dc1").unwrap();
    assert_eq!(
        bindings,
        Bindings {
            service_identities: vec![ServiceIdentity {
                service_name: "web".into(),
                datacenters: vec![],
            }],
            node_identities: vec![NodeIdentity {
                node_name: "n-web".into(),
                datacenter: "dc1".into(),
            }],
            policies: vec!["global-management".into(), "unknown".into()],
            roles: vec!["webs".into()],
            templated_policies: vec![
                filled("builtin/node", Some("n-web")),
                filled("builtin/dns", None),
            ],
        }
    );
    let nothing = bind(&rules[2..3], &variables(), "dc1").unwrap();
    assert!(nothing.is_empty());
}

#[test]
fn a_rule_that_cannot_apply_refuses_the_login() {
    for (rule, part) in [
        (rule(BindType::Service, "${value.odd}", ""), "\"a/b\""),
        (rule(BindType::Node, "${value.gone}", ""), "value.gone"),
        (rule(BindType::Service, "x", "value.name ="), "byte"),
        (rule(BindType::Role, "${value.odd}", ""), "\"a/b\""),
        (
            templated("builtin/service", Some("${value.odd}")),
            "\"a/b\"",
        ),
    ] {
        let error = bind([&rule], &variables(), "dc1").unwrap_err().to_string();
        assert!(error.contains("r1") && error.contains(part), "{error}");
    }
}

#[test]
fn rules_are_checked_when_they_are_written() {
    let known = variables();
    assert_eq!(
        rule(BindType::Service, "${value.name}-x", "").validate(&known),
        Ok(())
    );
    for good in [
        rule(BindType::Policy, "${value.name}", ""),
        rule(BindType::Role, "ops-${value.name}", ""),
        templated("builtin/service", Some("${value.name}")),
        templated("builtin/dns", None),
    ] {
        assert_eq!(good.validate(&known), Ok(()));
    }
    for (rule, field, part) in [
        (
            BindingRule {
                auth_method: String::new(),
                ..rule(BindType::Service, "x", "")
            },
            "AuthMethod",
            "auth method",
        ),
        (rule(BindType::Service, "", ""), "BindName", "empty"),
        (
            rule(BindType::Service, "${value.nam}", ""),
            "BindName",
            "value.nam",
        ),
        (
            rule(BindType::Service, "A-${value.name}", ""),
            "BindName",
            "lower-case",
        ),
        (rule(BindType::Role, "a b", ""), "BindName", "letters"),
        (
            BindingRule {
                bind_vars: Some(TemplateVariables::default()),
                ..rule(BindType::Role, "ops", "")
            },
            "BindVars",
            "templated-policy",
        ),
        (
            templated("builtin/none", Some("x")),
            "BindName",
            "builtin/dns",
        ),
        (templated("builtin/service", None), "BindVars", "name"),
        (
            templated("builtin/service", Some("${value.nam}")),
            "BindVars",
            "value.nam",
        ),
        (
            rule(BindType::Service, "x", "value.nam == x"),
            "Selector",
            "known: value.name",
        ),
        (rule(BindType::Service, "x", "("), "Selector", "byte 1"),
    ] {
        let error = rule.validate(&known).unwrap_err();
        assert_eq!(error.path(), field, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}
