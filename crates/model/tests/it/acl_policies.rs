//! Policies, roles and templates: validation and JSON form.

use legate_model::acl::*;
use legate_model::json::{UnknownFields, from_value};
use serde_json::{Value, json};

fn policy(value: Value) -> Policy {
    from_value(value, UnknownFields::Refuse).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn builtin_policies_are_consuls() {
    let [manage, read] = Policy::builtin();
    assert_eq!(
        (&*manage.id, &*manage.name),
        (GLOBAL_MANAGEMENT_ID, GLOBAL_MANAGEMENT)
    );
    assert_eq!(
        (&*read.id, &*read.name),
        (GLOBAL_READ_ONLY_ID, GLOBAL_READ_ONLY)
    );
    // As returned by Consul 1.21.
    assert_eq!(
        read.rules,
        "\nacl = \"read\"\nagent_prefix \"\" {\n\tpolicy = \"read\"\n}\nevent_prefix \"\" {\n\tpolicy = \"read\"\n}\nkey_prefix \"\" {\n\tpolicy = \"read\"\n}\nkeyring = \"read\"\nnode_prefix \"\" {\n\tpolicy = \"read\"\n}\noperator = \"read\"\nmesh = \"read\"\npeering = \"read\"\nquery_prefix \"\" {\n\tpolicy = \"read\"\n}\nservice_prefix \"\" {\n\tpolicy = \"read\"\n\tintentions = \"read\"\n}\nsession_prefix \"\" {\n\tpolicy = \"read\"\n}"
    );
    for builtin in [manage, read] {
        assert_eq!(builtin.validate(), Ok(()));
    }
}

#[test]
fn names_are_checked() {
    for name in ["p", "Team-1_x", "team/policy", &"x".repeat(128)] {
        assert_eq!(policy(json!({"Name": name})).validate(), Ok(()), "{name}");
    }
    for (value, field) in [
        (json!({"Name": ""}), "Name"),
        (json!({"Name": "x".repeat(129)}), "Name"),
        (json!({"Name": "builtin/x"}), "Name"),
        (json!({"Name": "/x"}), "Name"),
        (json!({"Name": "a/b/c"}), "Name"),
        (json!({"Name": "a b"}), "Name"),
        (
            json!({"Name": "a", "Datacenters": ["DC 1"]}),
            "Datacenters[0]",
        ),
    ] {
        let error = policy(value).validate().unwrap_err();
        assert_eq!(error.path(), field, "{error}");
    }
    for name in ["", "a/b", "a b", &"x".repeat(257)] {
        let role: Role = from_value(json!({"Name": name}), UnknownFields::Refuse).unwrap();
        assert_eq!(role.validate().unwrap_err().path(), "Name", "{name}");
    }
}

#[test]
fn duplicates_are_removed() {
    let mut role: Role = from_value(
        json!({
            "Name": "r",
            "ServiceIdentities": [
                {"ServiceName": "a", "Datacenters": ["dc2"]},
                {"ServiceName": "b", "Datacenters": ["dc1"]},
                {"ServiceName": "a", "Datacenters": ["dc1", "dc2"]},
                {"ServiceName": "b"},
            ],
            "NodeIdentities": [
                {"NodeName": "n", "Datacenter": "dc1"},
                {"NodeName": "n", "Datacenter": "dc1"},
            ],
            "TemplatedPolicies": [
                {"TemplateName": "builtin/dns"},
                {"TemplateName": "builtin/dns"},
            ],
        }),
        UnknownFields::Refuse,
    )
    .unwrap();
    role.normalize();
    assert_eq!(
        serde_json::to_value(&role).unwrap(),
        json!({
            "ID": "", "Name": "r", "Description": "",
            "ServiceIdentities": [
                {"ServiceName": "a", "Datacenters": ["dc1", "dc2"]},
                {"ServiceName": "b"},
            ],
            "NodeIdentities": [{"NodeName": "n", "Datacenter": "dc1"}],
            "TemplatedPolicies": [{
                "TemplateID": "00000000-0000-0000-0000-000000000005",
                "TemplateName": "builtin/dns",
            }],
            "CreateIndex": 0, "ModifyIndex": 0,
        })
    );
}

#[test]
fn every_template_has_valid_rules() {
    for template in TEMPLATES {
        let filled = TemplatedPolicy {
            template_name: template.name.to_owned(),
            template_variables: Some(TemplateVariables {
                name: "web".to_owned(),
            }),
            ..TemplatedPolicy::default()
        };
        assert_eq!(filled.validate(), Ok(()));
        let policy = filled.policy().unwrap();
        assert!(
            policy
                .parsed()
                .is_ok_and(|rules| rules.iter().next().is_some())
        );
        assert_eq!(policy.rules.contains("\"web\""), template.needs_name());
    }
}

/// The same values as returned by Consul 1.21.
#[test]
fn hashes_are_consuls() {
    let hash = |shown: Value| shown["Hash"].as_str().map(str::to_owned);
    let of_policy = |policy: &Policy| hash(json!(policy.shown())).unwrap();
    let [manage, read] = Policy::builtin();
    assert_eq!(
        of_policy(&manage),
        "+TzVGrd3uSVx3Bl8FV5O0BsKc1idAee6ZpEw9WDfaW8="
    );
    assert_eq!(
        of_policy(&read),
        "4jtyawyzzig+Ys5HfPI91O3UHLHiXtPlNG7aHEmlesk="
    );
    let elsewhere =
        policy(json!({"Name": "pdc", "Rules": "", "Datacenters": ["dc2"], "Hash": "x"}));
    assert_eq!(
        hash(json!(elsewhere)),
        None,
        "it is never read, and not stored"
    );
    assert_eq!(
        of_policy(&elsewhere),
        "Z1U0l3yE9zZk6ZohzoClFci1RNMT3BITJUu0AHxYcAI="
    );
    let web = ServiceIdentity {
        service_name: "web".into(),
        datacenters: vec!["dc1".into()],
    };
    let links = vec![PolicyLink {
        id: "bc68cbf6-3a26-fee9-b337-9e48b6840f81".into(),
        name: "p1".into(),
    }];
    let dns = json!({"TemplateName": "builtin/dns"});
    let api = json!({"TemplateName": "builtin/service", "TemplateVariables": {"name": "api"}});
    let templated = |value: Value| from_value(value, UnknownFields::Refuse).unwrap();
    let mut role = Role {
        name: "r1".into(),
        policies: links.clone(),
        service_identities: vec![web.clone()],
        node_identities: vec![NodeIdentity {
            node_name: "n".into(),
            datacenter: "dc1".into(),
        }],
        templated_policies: vec![templated(api), templated(dns.clone())],
        ..Role::default()
    };
    role.normalize();
    let shown = hash(json!(role.hashed())).unwrap();
    assert_eq!(shown, "0waVyrL69lh0QBTorozok2be0eDMjgLjU2gwyGD8rsE=");
    let mut token = Token {
        description: "t".into(),
        policies: links,
        roles: vec![RoleLink {
            id: "42270ca5-b10c-0dca-be6c-8e501b188ff2".into(),
            name: "r1".into(),
        }],
        service_identities: vec![web],
        templated_policies: vec![templated(dns)],
        ..Token::default()
    };
    token.normalize();
    let shown = hash(json!(token.hashed())).unwrap();
    assert_eq!(shown, "wyBlnxVmBZIFSd7AWPPebf1PyFaeDiUEpcVvt+sHhck=");
}
