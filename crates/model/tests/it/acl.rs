//! What tokens permit, and what logins are linked to.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use legate_model::acl::*;
use legate_model::json::{UnknownFields, from_value};
use serde_json::{Value, json};

fn token(value: Value) -> Token {
    from_value(value, UnknownFields::Refuse).unwrap_or_else(|error| panic!("{error}"))
}

/// Every decision about one service, one node and the rest, as a row of letters.
fn row(authorizer: &Authorizer, service: &str, node: &str) -> String {
    [
        ('s', authorizer.service_read(service)),
        ('S', authorizer.service_write(service)),
        ('n', authorizer.node_read(node)),
        ('N', authorizer.node_write(node)),
        ('i', authorizer.intention_read(service)),
        ('I', authorizer.intention_write(service)),
        ('m', authorizer.mesh_read()),
        ('M', authorizer.mesh_write()),
        ('o', authorizer.operator_read()),
        ('O', authorizer.operator_write()),
        ('a', authorizer.acl_read()),
        ('A', authorizer.acl_write()),
    ]
    .into_iter()
    .map(|(letter, permitted)| if permitted { letter } else { '-' })
    .collect()
}

#[test]
fn without_rules_the_default_decides() {
    assert_eq!(row(&Authorizer::manage_all(), "web", "n1"), "sSnNiImMoOaA");
    assert_eq!(row(&Authorizer::allow_all(), "web", "n1"), "sSnNiImMoO--");
    assert_eq!(row(&Authorizer::deny_all(), "web", "n1"), "------------");
    let anonymous = Token::anonymous();
    assert!(anonymous.is_anonymous());
    assert_eq!(anonymous.validate(), Ok(()));
    for (default, expected) in [
        (DefaultPolicy::Allow, Authorizer::allow_all()),
        (DefaultPolicy::Deny, Authorizer::deny_all()),
    ] {
        assert_eq!(Authorizer::new(&anonymous, default, "dc1"), expected);
    }
}

#[test]
fn a_management_token_permits_everything() {
    for policies in [
        json!([{"Name": "global-management"}]),
        json!([{"ID": "00000000-0000-0000-0000-000000000001"}]),
    ] {
        let token = token(json!({"Policies": policies}));
        let authorizer = Authorizer::new(&token, DefaultPolicy::Deny, "dc1");
        assert_eq!(authorizer, Authorizer::manage_all());
    }
    let other = token(json!({"Policies": [{"Name": "other"}]}));
    assert_eq!(
        Authorizer::new(&other, DefaultPolicy::Deny, "dc1"),
        Authorizer::deny_all()
    );
}

#[test]
fn a_service_identity_may_be_its_service_and_see_the_rest() {
    let token = token(json!({"ServiceIdentities": [{"ServiceName": "web"}]}));
    for (default, own, other) in [
        (DefaultPolicy::Deny, "sSn-i-------", "s-n-i-------"),
        // Its rules decide about services and nodes even where the default is to allow.
        (DefaultPolicy::Allow, "sSn-i-mMoO--", "s-n-i-mMoO--"),
    ] {
        let authorizer = Authorizer::new(&token, default, "dc1");
        assert_eq!(row(&authorizer, "web", "n1"), own);
        assert_eq!(row(&authorizer, "web-sidecar-proxy", "n1"), own);
        assert_eq!(row(&authorizer, "api", "n1"), other);
        assert!(authorizer.service_write_any());
    }
}

#[test]
fn a_node_identity_may_be_its_node() {
    let token = token(json!({"NodeIdentities": [{"NodeName": "n1", "Datacenter": "dc1"}]}));
    let deny = Authorizer::new(&token, DefaultPolicy::Deny, "dc1");
    assert_eq!(row(&deny, "web", "n1"), "s-nNi-------");
    assert_eq!(row(&deny, "web", "n2"), "s---i-------");
    let allow = Authorizer::new(&token, DefaultPolicy::Allow, "dc1");
    assert_eq!(row(&allow, "web", "n2"), "s-nNi-mMoO--");
    assert!(!allow.service_write_any());
}

#[test]
fn identities_hold_in_their_datacenters() {
    let token = token(json!({
        "ServiceIdentities": [{"ServiceName": "web", "Datacenters": ["dc2"]}],
        "NodeIdentities": [{"NodeName": "n1", "Datacenter": "dc2"}],
    }));
    assert_eq!(
        Authorizer::new(&token, DefaultPolicy::Deny, "dc1"),
        Authorizer::deny_all()
    );
    let there = Authorizer::new(&token, DefaultPolicy::Deny, "DC2");
    assert!(there.service_write("web") && there.node_write("n1"));
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

#[test]
fn all_rules_that_fit_apply() {
    let rules = [
        rule(BindType::Service, "${value.name}", ""),
        rule(BindType::Service, "${value.name}", "ops in list.groups"),
        rule(BindType::Service, "api", "value.name == other"),
        rule(BindType::Node, "n-${value.name}", "value.name == web"),
        rule(BindType::Policy, "global-management", "ops in list.groups"),
        rule(BindType::Policy, "unknown", ""),
        rule(BindType::Role, "unknown", ""),
    ];
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
            roles: vec!["unknown".into()],
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
    assert_eq!(
        rule(BindType::Policy, "${value.name}", "").validate(&known),
        Ok(())
    );
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
        (rule(BindType::Role, "ops", ""), "BindType", "not served"),
        (
            rule(BindType::Policy, "Global_X", ""),
            "BindName",
            "no policy but global-management",
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

#[test]
fn default_policies_are_read() {
    assert_eq!("deny".parse(), Ok(DefaultPolicy::Deny));
    assert_eq!("allow".parse(), Ok(DefaultPolicy::Allow));
    assert!(
        "no".parse::<DefaultPolicy>()
            .unwrap_err()
            .to_string()
            .contains("allow or deny")
    );
}
