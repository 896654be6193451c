//! Policies, roles and templates: what is accepted, and what is shown.

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
    // As Consul 1.21 shows it.
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
fn what_is_there_twice_is_stored_once() {
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
fn every_template_makes_rules() {
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
