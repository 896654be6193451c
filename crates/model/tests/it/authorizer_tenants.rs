//! Permissions of rules in namespaces and partitions.

use legate_model::acl::*;
use legate_model::{Tenancy, TenancyName};

fn tenancy(partition: &str, namespace: &str) -> Tenancy {
    let name = |text: &str| text.parse::<TenancyName>().expect("a valid name");
    Tenancy::new(&name(partition), &name(namespace))
}

/// A policy in a tenancy.
fn policy(own: &Tenancy, rules: &str) -> Policy {
    Policy {
        rules: rules.to_owned(),
        ..Policy::default()
    }
    .of(own)
}

/// Permissions of policies with the default policy deny.
fn deny(policies: &[(&Tenancy, &str)]) -> Authorizer {
    let parsed: Vec<(Tenancy, Rules)> = policies
        .iter()
        .map(|(own, rules)| {
            let rules = policy(own, rules).parsed();
            (
                (*own).clone(),
                rules.unwrap_or_else(|error| panic!("{error}")),
            )
        })
        .collect();
    let rules = parsed.iter().map(|(own, rules)| (own, rules));
    Authorizer::with_defaults(rules, [], DefaultPolicy::Deny)
}

#[test]
fn rules_are_valid_in_the_tenancy_of_their_policy() {
    let (main, team) = (Tenancy::default(), tenancy("", "team"));
    let of_main = deny(&[(
        &main,
        "key_prefix \"\" { policy = \"write\" } acl = \"write\"",
    )]);
    assert!(of_main.key_write("a") && of_main.acl_write());
    let elsewhere = of_main.within(&team);
    assert!(!elsewhere.key_read("a") && !elsewhere.acl_read());
    let of_team = deny(&[(
        &team,
        "key_prefix \"\" { policy = \"write\" } acl = \"write\"",
    )]);
    assert!(!of_team.key_read("a") && !of_team.acl_read());
    assert!(of_team.within(&team).key_write("a") && of_team.within(&team).acl_write());
    assert!(!of_team.within(&tenancy("p", "team")).key_read("a"));
}

#[test]
fn what_is_imported_is_read_by_who_may_call_it_or_read_everything() {
    let main = Tenancy::default();
    let of_peer = main.of_peer("east");
    let reads = |rules: &str| {
        let one = deny(&[(&main, rules)]).within(&of_peer);
        (one.service_read("web"), one.node_read("n1"))
    };
    assert_eq!(
        reads("service \"other\" { policy = \"write\" }"),
        (true, true)
    );
    let named = "service \"web\" { policy = \"read\" } node \"n1\" { policy = \"read\" }";
    assert_eq!(reads(named), (false, false), "names are those of the peer");
    assert_eq!(
        reads("service_prefix \"\" { policy = \"read\" }"),
        (true, false)
    );
    assert_eq!(
        reads("node_prefix \"\" { policy = \"read\" }"),
        (false, true)
    );
    let allowed = Authorizer::with_defaults([], [], DefaultPolicy::Allow).within(&of_peer);
    assert!(allowed.service_read("web") && allowed.node_read("n1"));
    assert!(!deny(&[]).within(&of_peer).service_read("web"));
}

#[test]
fn write_access_in_one_namespace_is_write_access_anywhere() {
    let team = tenancy("default", "team");
    let one = deny(&[(&team, "service \"web\" { policy = \"write\" }")]);
    let writes = |one: &Authorizer| one.some(Resource::Service, Access::Write);
    assert!(writes(&one) && !one.service_write_any());
    let none = deny(&[(&team, "service \"web\" { policy = \"read\" }")]);
    assert!(!writes(&none) && none.some(Resource::Service, Access::Read));
    assert!(!writes(&deny(&[])));
    // Other names are permitted by the default policy.
    let denied = policy(&team, "service \"web\" { policy = \"deny\" }").parsed();
    let denied = denied.unwrap();
    assert!(writes(&Authorizer::new(&[denied], DefaultPolicy::Allow)));
}

#[test]
fn blocks_set_the_scope_of_their_rules() {
    let main = Tenancy::default();
    let rules = r#"
        namespace_prefix "" { service_prefix "" { policy = "read" } }
        namespace_prefix "team-" { service "db" { policy = "deny" } }
        namespace "Team-1" {
            policy = "write"
            acl = "write"
            service_prefix "" { policy = "write" intentions = "write" }
        }
        partition "east" {
            mesh = "write"
            node_prefix "" { policy = "write" }
            namespace "shop" { service "web" { policy = "write" } }
        }
        partition_prefix "we" { policy = "read" namespace_prefix "" { key "k" { policy = "read" } } }
    "#;
    let authorizer = deny(&[(&main, rules)]);
    let at = |partition, namespace| authorizer.within(&tenancy(partition, namespace));
    assert!(at("", "").service_read("web") && !at("", "").service_write("web"));
    assert!(at("", "other").service_read("db"));
    assert!(!at("", "team-2").service_read("db") && at("", "team-2").service_read("web"));
    // The block that names the namespace takes precedence over those with prefixes.
    assert!(at("", "team-1").service_write("db") && at("", "team-1").intention_write("db"));
    assert!(at("", "team-1").acl_write() && !at("", "team-2").acl_read());
    assert!(authorizer.namespace_write("team-1") && !authorizer.namespace_write("team-2"));
    // A token that may read something in a namespace may read the namespace.
    assert!(authorizer.namespace_read("team-2"));
    assert!(!at("east", "").namespace_read("other") && at("east", "").namespace_read("shop"));
    // Nodes and the mesh belong to a partition, whichever namespace is given.
    for namespace in ["", "shop", "other"] {
        assert!(at("east", namespace).node_write("n") && at("east", namespace).mesh_write());
    }
    assert!(!at("", "").node_read("n") && !at("", "").mesh_read());
    assert!(at("east", "shop").service_write("web") && !at("east", "").service_read("web"));
    assert!(at("west", "any").key_read("k") && !at("east", "any").key_read("k"));
    assert!(authorizer.partition_read("west") && !authorizer.partition_read("east"));
    assert!(
        at("west", "any")
            .permits("partition", "read", "west")
            .unwrap()
    );
}

#[test]
fn the_same_blocks_in_json() {
    let json = r#"{"namespace": {"a": {"policy": "write", "key_prefix": {"": {"policy": "read"}}}},
        "partition_prefix": {"": {"namespace_prefix": {"": {"acl": "read"}}}}}"#;
    let hcl = r#"namespace "a" { policy = "write" key_prefix "" { policy = "read" } }
        partition_prefix "" { namespace_prefix "" { acl = "read" } }"#;
    let rules = |text| {
        let mut rules: Vec<Rule> = Rules::parse(text).unwrap().iter().cloned().collect();
        rules.sort();
        rules
    };
    assert_eq!(rules(json), rules(hcl));
}

#[test]
fn builtin_policies_are_valid_everywhere() {
    let main = Tenancy::default();
    let [manage, read] = Policy::builtin().map(|policy| policy.parsed().unwrap());
    let of = |rules| Authorizer::with_defaults([(&main, rules)], [], DefaultPolicy::Deny);
    for tenancy in [main.clone(), tenancy("", "team"), tenancy("p", "n")] {
        let (manage, read) = (of(&manage).within(&tenancy), of(&read).within(&tenancy));
        assert!(manage.acl_write() && manage.key_write("k") && manage.node_write("n"));
        assert!(manage.namespace_write("x") && manage.partition_write("x"));
        assert!(manage.operator_write() && manage.mesh_write() && manage.query_write("q"));
        assert!(read.service_read("s") && !read.service_write("s") && read.acl_read());
        assert!(read.namespace_read("x") && !read.namespace_write("x"));
    }
}

#[test]
fn namespace_defaults_apply_without_other_rules() {
    let (main, team) = (Tenancy::default(), tenancy("", "team"));
    let direct = policy(&team, "service \"web\" { policy = \"read\" }")
        .parsed()
        .unwrap();
    let all = "namespace_prefix \"\" { service_prefix \"\" { policy = \"write\" } }";
    let defaults = policy(&main, all).parsed().unwrap();
    let authorizer = Authorizer::with_defaults(
        [(&team, &direct)],
        [(&main, &defaults)],
        DefaultPolicy::Deny,
    );
    let authorizer = authorizer.within(&team);
    assert!(authorizer.service_read("web") && !authorizer.service_write("web"));
    assert!(authorizer.service_write("api"));
}

#[test]
fn a_node_identity_reads_services_of_every_namespace() {
    let token = Token {
        node_identities: vec![NodeIdentity {
            node_name: "n".to_owned(),
            datacenter: "dc1".to_owned(),
        }],
        ..Token::default()
    };
    let elsewhere = token.rules_elsewhere("dc1").unwrap();
    let authorizer = Authorizer::new([&elsewhere], DefaultPolicy::Deny);
    assert!(authorizer.within(&tenancy("", "team")).service_read("web"));
    assert!(!authorizer.within(&tenancy("p", "")).service_read("web"));
    assert!(token.rules_elsewhere("dc2").is_none());
    let error = token.of(&tenancy("", "team")).validate().unwrap_err();
    assert!(error.to_string().contains("NodeIdentities"), "{error}");
}

#[test]
fn policies_cannot_exceed_their_tenancy() {
    let (main, team, east) = (Tenancy::default(), tenancy("", "team"), tenancy("east", ""));
    for (own, rules, named) in [
        (
            &team,
            "namespace \"other\" { key \"\" { policy = \"read\" } }",
            "key",
        ),
        (
            &team,
            "namespace_prefix \"\" { policy = \"read\" }",
            "namespace",
        ),
        (
            &team,
            "partition \"east\" { policy = \"read\" }",
            "partition",
        ),
        (&team, "operator = \"read\"", "operator"),
        (&team, "event \"\" { policy = \"read\" }", "event"),
        (&team, "keyring = \"read\"", "keyring"),
        (&team, "query_prefix \"\" { policy = \"read\" }", "query"),
        (&team, "node_prefix \"\" { policy = \"write\" }", "node"),
        (&team, "mesh = \"read\"", "mesh"),
        (
            &main,
            "namespace \"team\" { operator = \"read\" }",
            "operator",
        ),
        (
            &main,
            "namespace \"team\" { peering = \"read\" }",
            "peering",
        ),
        (
            &main,
            "partition \"east\" { operator = \"read\" }",
            "operator",
        ),
        (&east, "operator = \"read\"", "operator"),
        (&east, "partition \"west\" { mesh = \"read\" }", "mesh"),
        (&east, "partition_prefix \"\" { mesh = \"read\" }", "mesh"),
    ] {
        let error = policy(own, rules).parsed().expect_err(rules).to_string();
        assert!(
            error.contains(&format!("Invalid {named} policy")),
            "{error}"
        );
    }
    for nested in [
        "namespace \"a\" { namespace \"b\" { policy = \"read\" } }",
        "namespace \"a\" { partition \"b\" { policy = \"read\" } }",
        "partition \"a\" { partition \"b\" { policy = \"read\" } }",
    ] {
        let error = Rules::parse(nested).unwrap_err().to_string();
        assert!(error.contains("is in a block"), "{error}");
    }
    for (own, rules) in [
        (
            &team,
            "node_prefix \"\" { policy = \"read\" } acl = \"write\"",
        ),
        (&main, "namespace \"default\" { operator = \"read\" }"),
        (
            &main,
            "partition_prefix \"\" { query_prefix \"\" { policy = \"read\" } }",
        ),
        (
            &east,
            "partition \"east\" { mesh = \"read\" namespace_prefix \"\" { acl = \"write\" } }",
        ),
        (
            &east,
            "mesh = \"write\" namespace \"shop\" { policy = \"write\" }",
        ),
    ] {
        policy(own, rules)
            .parsed()
            .unwrap_or_else(|error| panic!("{rules}: {error}"));
    }
}

#[test]
fn templates_are_limited_to_their_namespace() {
    let team = tenancy("", "team");
    for template in TEMPLATES {
        let variables = TemplateVariables {
            name: "x".to_owned(),
        };
        let token = Token {
            templated_policies: vec![TemplatedPolicy {
                template_name: template.name.to_owned(),
                template_variables: template.needs_name().then_some(variables),
                ..TemplatedPolicy::default()
            }],
            ..Token::default()
        };
        let own = token.of(&team).own_policies();
        let rules = own[0].parsed_template().unwrap();
        rules.check_within(&team).unwrap();
        let authorizer =
            Authorizer::with_defaults([(&team, &rules)], [], DefaultPolicy::Deny).within(&team);
        assert!(authorizer.service_read("web"), "{}", template.name);
        assert!(!authorizer.node_write("x") && !authorizer.mesh_read());
    }
}

#[test]
fn logins_use_the_namespace_of_the_first_matching_rule() {
    let method = |rules: &[(&str, &str)]| AuthMethod {
        name: "k8s".to_owned(),
        namespace_rules: rules
            .iter()
            .map(|(selector, bind)| NamespaceRule {
                selector: (*selector).to_owned(),
                bind_namespace: (*bind).to_owned(),
            })
            .collect(),
        ..AuthMethod::default()
    };
    let account = |namespace: &str| {
        let mut variables = Variables::default();
        let name = "serviceaccount.namespace".to_owned();
        variables.values.insert(name, namespace.to_owned());
        variables
    };
    let mirrored = method(&[
        ("serviceaccount.namespace==kube-system", "default"),
        ("", "k8s-${serviceaccount.namespace}"),
    ]);
    let of = |namespace| mirrored.token_tenancy(&account(namespace)).unwrap();
    assert_eq!(of("shop"), tenancy("", "k8s-shop"));
    assert_eq!(of("kube-system"), Tenancy::default());
    let own = method(&[]).of(&tenancy("east", "team"));
    assert_eq!(
        own.token_tenancy(&account("shop")).unwrap(),
        tenancy("east", "team")
    );
    let broken = method(&[("", "*")]).token_tenancy(&account("shop"));
    assert!(
        broken
            .unwrap_err()
            .to_string()
            .contains("NamespaceRules[0]")
    );
}
