//! Permissions of rules: by examples, and compared with a model that scans a flat list of rules.

use legate_model::acl::*;
use legate_model::json::{UnknownFields, from_value};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Permissions of a token's identities and templates in `dc1`.
fn authorizer(token: Value, default: DefaultPolicy) -> Authorizer {
    let token: Token = from_value(token, UnknownFields::Refuse).unwrap_or_else(|e| panic!("{e}"));
    let mut policies = token.own_policies();
    policies.retain(|policy| policy.is_valid_in("dc1"));
    let rules: Vec<Rules> = policies
        .iter()
        .map(|p| p.parsed().expect("valid rules"))
        .collect();
    Authorizer::new(&rules, default)
}

fn may(authorizer: &Authorizer, resource: &str, access: &str) -> bool {
    authorizer
        .permits(resource, access, "")
        .expect("a known question")
}

/// All decisions about one service, one node and all other resources, as a row of letters.
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
        ('o', may(authorizer, "operator", "read")),
        ('O', may(authorizer, "operator", "write")),
        ('a', authorizer.acl_read()),
        ('A', authorizer.acl_write()),
    ]
    .into_iter()
    .map(|(letter, permitted)| if permitted { letter } else { '-' })
    .collect()
}

#[test]
fn without_rules_the_default_applies() {
    assert_eq!(row(&Authorizer::manage_all(), "web", "n1"), "sSnNiImMoOaA");
    let allow = Authorizer::new([], DefaultPolicy::Allow);
    assert_eq!(row(&allow, "web", "n1"), "sSnNiImMoO--");
    assert_eq!(row(&Authorizer::deny_all(), "web", "n1"), "------------");
    for (default, expected) in [
        (DefaultPolicy::Allow, allow),
        (DefaultPolicy::Deny, Authorizer::deny_all()),
    ] {
        assert_eq!(Authorizer::new([], default), expected);
        assert_eq!(Authorizer::new([&Rules::default()], default), expected);
    }
}

#[test]
fn builtin_policies_permit_everything_or_reading() {
    let [manage, read] = Policy::builtin().map(|policy| policy.parsed().unwrap());
    let of = |rules: &[&Rules]| Authorizer::new(rules.iter().copied(), DefaultPolicy::Deny);
    assert_eq!(row(&of(&[&manage]), "web", "n1"), "sSnNiImMoOaA");
    assert_eq!(row(&of(&[&read]), "web", "n1"), "s-n-i-m-o-a-");
    assert_eq!(row(&of(&[&read, &manage]), "web", "n1"), "sSnNiImMoOaA");
    for resource in Resource::ALL {
        let write = |a: &Authorizer| a.permits(resource.as_str(), "write", "x").unwrap();
        assert!(write(&of(&[&manage])), "{resource}");
        assert!(!write(&of(&[&read])), "{resource}");
    }
    // Explicit rules can deny something even to tokens with global management.
    let deny = Rules::parse("service \"web\" { policy = \"deny\" }").unwrap();
    let but_one = of(&[&manage, &deny]);
    assert_eq!(row(&but_one, "web", "n1"), "--nN--mMoOaA");
    assert!(but_one.service_write_any());
}

#[test]
fn a_service_identity_writes_its_service_and_reads_others() {
    for token in [
        json!({"ServiceIdentities": [{"ServiceName": "web"}]}),
        json!({"TemplatedPolicies": [
            {"TemplateName": "builtin/service", "TemplateVariables": {"name": "web"}},
        ]}),
    ] {
        for (default, own, other) in [
            (DefaultPolicy::Deny, "sSn-i-------", "s-n-i-------"),
            // The template's rules apply to services and nodes even if the default policy is allow.
            (DefaultPolicy::Allow, "sSn-i-mMoO--", "s-n-i-mMoO--"),
        ] {
            let authorizer = authorizer(token.clone(), default);
            assert_eq!(row(&authorizer, "web", "n1"), own);
            assert_eq!(row(&authorizer, "web-sidecar-proxy", "n1"), own);
            assert_eq!(row(&authorizer, "api", "n1"), other);
            assert!(authorizer.service_write_any());
        }
    }
}

#[test]
fn a_node_identity_writes_its_node() {
    let token = json!({"NodeIdentities": [{"NodeName": "n1", "Datacenter": "dc1"}]});
    let deny = authorizer(token.clone(), DefaultPolicy::Deny);
    assert_eq!(row(&deny, "web", "n1"), "s-nNi-------");
    assert_eq!(row(&deny, "web", "n2"), "s---i-------");
    let allow = authorizer(token, DefaultPolicy::Allow);
    assert_eq!(row(&allow, "web", "n2"), "s-nNi-mMoO--");
    assert!(!allow.service_write_any());
}

#[test]
fn identities_are_valid_in_their_datacenters() {
    let elsewhere = json!({
        "ServiceIdentities": [{"ServiceName": "web", "Datacenters": ["dc2"]}],
        "NodeIdentities": [{"NodeName": "n1", "Datacenter": "dc2"}],
        "TemplatedPolicies": [{"TemplateName": "builtin/dns", "Datacenters": ["dc2"]}],
    });
    let nothing = authorizer(elsewhere, DefaultPolicy::Deny);
    assert_eq!(nothing, Authorizer::deny_all());
    let both =
        json!({"ServiceIdentities": [{"ServiceName": "web", "Datacenters": ["dc2", "DC1"]}]});
    assert!(authorizer(both, DefaultPolicy::Deny).service_write("web"));
}

#[test]
fn the_most_specific_rule_applies() {
    let rules = |text| Rules::parse(text).unwrap();
    let one = rules(
        r#"service_prefix "" { policy = "read" }
           service_prefix "web" { policy = "write" intentions = "write" }
           service "web-1" { policy = "deny" }
           key_prefix "a/" { policy = "write" }
           key_prefix "a/secret/" { policy = "list" }
           operator = "read""#,
    );
    let authorizer = Authorizer::new([&one], DefaultPolicy::Deny);
    let ask = |resource, access, name| authorizer.permits(resource, access, name).unwrap();
    assert!(ask("service", "read", "api") && !ask("service", "write", "api"));
    assert!(ask("service", "write", "web") && ask("service", "WRITE", "web-2"));
    assert!(!ask("service", "read", "web-1") && !ask("intention", "read", "web-1"));
    assert!(ask("intention", "write", "web-2") && !ask("intention", "write", "*"));
    assert!(ask("intention", "read", "*"));
    assert!(ask("key", "write-prefix", "a/b/") && !ask("key", "write-prefix", "a/"));
    assert!(ask("key", "list", "a/secret/x") && !ask("key", "write", "a/secret/x"));
    // Without their own rules, these follow the operator rule.
    assert!(ask("mesh", "read", "") && ask("peering", "read", "") && !ask("mesh", "write", ""));
    assert!(!ask("keyring", "read", ""));

    // Deny in one policy takes precedence over the others.
    let other = rules(r#"service_prefix "web" { policy = "deny" } mesh = "write""#);
    let both = Authorizer::new([&other, &one], DefaultPolicy::Deny);
    assert!(!both.service_read("web") && both.service_read("api"));
    assert!(both.mesh_write() && !may(&both, "operator", "write"));
    // An intention rule is not affected by another policy without one.
    assert!(both.intention_write("web-2"));
}

#[test]
fn unknown_permission_checks_are_refused() {
    let nobody = Authorizer::deny_all();
    for (resource, access, text) in [
        ("foo", "read", "Invalid ACL resource requested: \"foo\""),
        (
            "service",
            "list",
            "Invalid access level for service resource: list",
        ),
        ("acl", "", "Invalid access level for acl resource: "),
    ] {
        let error = nobody.permits(resource, access, "x").unwrap_err();
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn default_policies_are_parsed() {
    assert_eq!("deny".parse(), Ok(DefaultPolicy::Deny));
    assert_eq!("allow".parse(), Ok(DefaultPolicy::Allow));
    assert!(
        "no".parse::<DefaultPolicy>()
            .unwrap_err()
            .to_string()
            .contains("allow or deny")
    );
}

const SEGMENTS: [&str; 8] = ["", "a", "ab", "ab/", "ab/c", "abc", "b", "*"];

fn any_access(list: bool) -> impl Strategy<Value = Access> {
    let mut levels = vec![Access::Read, Access::Write, Access::Deny];
    levels.extend(list.then_some(Access::List));
    prop::sample::select(levels)
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let resource = prop::sample::select(Resource::ALL.to_vec());
    let resource = resource.prop_filter("written inside services", |r| *r != Resource::Intention);
    let names = (prop::sample::select(SEGMENTS.to_vec()), any::<bool>());
    let rule = (resource, names).prop_flat_map(|(resource, (name, prefix))| {
        let intentions = prop::option::of(any_access(false));
        (any_access(resource == Resource::Key), intentions).prop_map(move |(access, intentions)| {
            let names = match (resource.has_names(), prefix) {
                (false, _) => Names::All,
                (true, true) => Names::Prefix(name.to_owned()),
                (true, false) => Names::Exact(name.to_owned()),
            };
            Rule {
                resource,
                names,
                access,
                intentions: intentions.filter(|_| resource == Resource::Service),
                scope: Scope::default(),
            }
        })
    });
    // A policy has at most one rule for a resource without names.
    rule
}

/// A policy as users write it.
fn spelled(rules: &[Rule], json: bool) -> String {
    let mut text = String::new();
    let mut object = serde_json::Map::new();
    for rule in rules {
        let (name, access) = (rule.resource.as_str(), rule.access.as_str());
        let (segment, key) = match &rule.names {
            Names::All => {
                text += &format!("{name} = \"{access}\"\n");
                object.insert(name.to_owned(), json!(access));
                continue;
            }
            Names::Exact(segment) => (segment, name.to_owned()),
            Names::Prefix(segment) => (segment, format!("{name}_prefix")),
        };
        let intentions = rule.intentions.map(Access::as_str);
        let mut body = json!({"policy": access});
        text += &format!("{key} \"{segment}\" {{ policy = \"{access}\" ");
        if let Some(intentions) = intentions {
            text += &format!("intentions = \"{intentions}\" ");
            body["intentions"] = json!(intentions);
        }
        text += "}\n";
        let list = object.entry(key).or_insert_with(|| json!([]));
        list.as_array_mut()
            .expect("a list")
            .push(json!({segment: body}));
    }
    match json {
        true => Value::Object(object).to_string(),
        false => text,
    }
}

/// The rules about one resource, straight from the list, including those of intentions.
fn about(rules: &[Rule], resource: Resource) -> Vec<(Names, Access)> {
    let same = |kind| rules.iter().filter(move |rule| rule.resource == kind);
    if resource != Resource::Intention {
        return same(resource)
            .map(|r| (r.names.clone(), r.access))
            .collect();
    }
    same(Resource::Service)
        .map(|rule| {
            let others = same(Resource::Service).filter(|other| other.names == rule.names);
            let said = others.clone().filter_map(|other| other.intentions).max();
            let service = others.map(|other| other.access).max().expect("itself");
            let implied = match service {
                Access::Read | Access::Write => Access::Read,
                Access::List | Access::Deny => Access::Deny,
            };
            (rule.names.clone(), said.unwrap_or(implied))
        })
        .collect()
}

/// The decision about one name: exact before prefix, longer before shorter; the strictest among
/// equals.
fn naive(rules: &[(Names, Access)], name: &str) -> Option<Access> {
    let mut best: Option<(bool, usize, Access)> = None;
    for (names, access) in rules {
        let weight = match names {
            Names::All => (false, 0, *access),
            Names::Exact(exact) if exact == name => (true, 0, *access),
            Names::Prefix(prefix) if name.starts_with(prefix) => (false, prefix.len(), *access),
            Names::Exact(_) | Names::Prefix(_) => continue,
        };
        best = best.max(Some(weight));
    }
    best.map(|(_, _, access)| access)
}

/// The strictest rule about the same names.
fn merged(rules: &[(Names, Access)]) -> Vec<Access> {
    let strictest = |names: &Names| {
        rules
            .iter()
            .filter(|(n, _)| n == names)
            .map(|(_, a)| *a)
            .max()
    };
    rules
        .iter()
        .filter_map(|(names, _)| strictest(names))
        .collect()
}

/// Whether access is permitted anywhere, or everywhere, ignoring which rules override which.
fn of_any(rules: &[(Names, Access)], wanted: Access, everywhere: bool) -> Option<bool> {
    let all = merged(rules);
    let contrary = |access: &Access| access.permits(wanted) != everywhere;
    if all.iter().any(contrary) {
        return Some(!everywhere);
    }
    let root = Names::Prefix(String::new());
    rules
        .iter()
        .any(|(names, _)| *names == root)
        .then_some(everywhere)
}

fn naive_below(rules: &[(Names, Access)], prefix: &str) -> Option<bool> {
    let prefixes: Vec<_> = rules
        .iter()
        .filter(|(names, _)| matches!(names, Names::Prefix(_)))
        .cloned()
        .collect();
    let base = naive(&prefixes, prefix);
    let below: Vec<_> = rules
        .iter()
        .filter(|(names, _)| match names {
            Names::All => false,
            Names::Exact(name) | Names::Prefix(name) => name.starts_with(prefix),
        })
        .cloned()
        .collect();
    if merged(&below).iter().any(|access| *access != Access::Write) {
        return Some(false);
    }
    base.map(|access| access == Access::Write)
}

/// The decision of the flat list.
fn expected(rules: &[Rule], default: bool, resource: Resource, access: &str, name: &str) -> bool {
    let own = about(rules, resource);
    let wanted = match access {
        "read" => Access::Read,
        "list" => Access::List,
        _ => Access::Write,
    };
    let decided = match (resource, access, name) {
        (Resource::Key, "write-prefix", _) => naive_below(&own, name),
        (Resource::Intention, "read", "*") => of_any(&own, wanted, false),
        (Resource::Intention, "write", "*") => of_any(&own, wanted, true),
        _ => {
            let mut rule = naive(&own, name);
            let operated = [
                Resource::Mesh,
                Resource::Namespace,
                Resource::Partition,
                Resource::Peering,
            ];
            if operated.contains(&resource) && rule.is_none() {
                rule = naive(&about(rules, Resource::Operator), name);
            }
            rule.map(|rule| rule.permits(wanted))
        }
    };
    decided.unwrap_or(default && resource != Resource::Acl)
}

proptest! {
    #[test]
    fn the_authorizer_and_a_flat_list_agree(
        policies in prop::collection::vec(
            (prop::collection::vec(any_rule(), 0..6), any::<bool>()), 0..4,
        ),
        allow in any::<bool>(),
    ) {
        let mut flat = Vec::new();
        let mut parsed = Vec::new();
        for (mut rules, json) in policies {
            // A policy has at most one rule for a resource without names.
            let mut seen = std::collections::BTreeSet::new();
            rules.retain(|rule| rule.resource.has_names() || seen.insert(rule.resource));
            parsed.push(Rules::parse(&spelled(&rules, json)).unwrap());
            flat.extend(rules);
        }
        let default = if allow { DefaultPolicy::Allow } else { DefaultPolicy::Deny };
        let authorizer = Authorizer::new(&parsed, default);
        for resource in Resource::ALL {
            let mut levels = vec!["read", "write"];
            if resource == Resource::Key {
                levels.extend(["list", "write-prefix"]);
            }
            for access in levels {
                for name in SEGMENTS.into_iter().chain(["ab/cd", "x"]) {
                    prop_assert_eq!(
                        authorizer.permits(resource.as_str(), access, name).unwrap(),
                        expected(&flat, allow, resource, access, name),
                        "{} {} {:?} of {:?}", resource, access, name, &flat
                    );
                }
            }
        }
        let naive = of_any(&about(&flat, Resource::Node), Access::Read, true);
        prop_assert_eq!(authorizer.node_read_all(), naive.unwrap_or(allow));
        let naive = of_any(&about(&flat, Resource::Service), Access::Write, false);
        prop_assert_eq!(authorizer.service_write_any(), naive.unwrap_or(allow));
    }
}
