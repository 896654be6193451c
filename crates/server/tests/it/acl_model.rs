//! Property: for any policies, roles and tokens, the server's decisions equal those of a model that evaluates a
//! flat list of rules.

use http::{Method, StatusCode};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

const NAMES: [&str; 4] = ["a", "ab", "abc", "b"];
const RESOURCES: [&str; 4] = ["service", "node", "key", "session"];

/// A rule: resource, name, whether the name is a prefix, access.
type Rule = (&'static str, String, bool, &'static str);

/// The links of a token or a role.
#[derive(Debug, Clone)]
struct Links {
    policies: Vec<usize>,
    identities: Vec<&'static str>,
    nodes: Vec<&'static str>,
}

#[derive(Debug, Clone)]
struct World {
    /// The rules of each policy, and whether it applies in this datacenter.
    policies: Vec<(Vec<Rule>, bool)>,
    roles: Vec<Links>,
    token: Links,
    roles_of_token: Vec<usize>,
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let names = ["", "a", "ab", "abc", "b"];
    (
        prop::sample::select(RESOURCES.to_vec()),
        prop::sample::select(names.to_vec()),
        any::<bool>(),
        prop::sample::select(vec!["read", "write", "deny"]),
    )
        .prop_map(|(resource, name, prefix, access)| (resource, name.to_owned(), prefix, access))
}

fn any_links() -> impl Strategy<Value = Links> {
    (
        prop::collection::vec(0..3usize, 0..3),
        prop::collection::vec(prop::sample::select(NAMES.to_vec()), 0..2),
        prop::collection::vec(prop::sample::select(NAMES.to_vec()), 0..2),
    )
        .prop_map(|(policies, identities, nodes)| Links {
            policies,
            identities,
            nodes,
        })
}

fn any_world() -> impl Strategy<Value = World> {
    let policy = (
        prop::collection::vec(any_rule(), 0..5),
        prop::bool::weighted(0.8),
    );
    (
        prop::collection::vec(policy, 3),
        prop::collection::vec(any_links(), 2),
        any_links(),
        prop::collection::vec(0..2usize, 0..2),
    )
        .prop_map(|(policies, roles, token, roles_of_token)| World {
            policies,
            roles,
            token,
            roles_of_token,
        })
}

impl World {
    /// All rules that currently apply to the token, without those of deleted policies and roles.
    fn rules(&self, gone_policies: &[usize], gone_roles: &[usize]) -> Vec<Rule> {
        let mut rules = Vec::new();
        let mut add = |links: &Links| {
            for at in &links.policies {
                let (of_policy, here) = &self.policies[*at];
                if *here && !gone_policies.contains(at) {
                    rules.extend(of_policy.iter().cloned());
                }
            }
            for name in &links.identities {
                let sidecar = format!("{name}-sidecar-proxy");
                rules.push(("service", (*name).to_owned(), false, "write"));
                rules.push(("service", sidecar, false, "write"));
                rules.push(("service", String::new(), true, "read"));
                rules.push(("node", String::new(), true, "read"));
            }
            for name in &links.nodes {
                rules.push(("node", (*name).to_owned(), false, "write"));
                rules.push(("service", String::new(), true, "read"));
            }
        };
        add(&self.token);
        for role in &self.roles_of_token {
            if !gone_roles.contains(role) {
                add(&self.roles[*role]);
            }
        }
        rules
    }
}

/// Exact before prefix, longer before shorter; of equal rules, deny before write before read.
fn permitted(rules: &[Rule], resource: &str, name: &str, write: bool) -> bool {
    let strictness = |access: &str| ["read", "write", "deny"].iter().position(|a| *a == access);
    let fits = |rule: &&Rule| match rule.2 {
        true => name.starts_with(&rule.1),
        false => name == rule.1,
    };
    let of_resource = rules.iter().filter(|rule| rule.0 == resource);
    let best = of_resource
        .filter(fits)
        .max_by_key(|(_, name, prefix, access)| (!prefix, name.len(), strictness(access)));
    match best {
        Some((_, _, _, "write")) => true,
        Some((_, _, _, "read")) => !write,
        _ => false,
    }
}

fn spelled(rules: &[Rule]) -> String {
    let spell = |(resource, name, prefix, access): &Rule| {
        let kind = if *prefix { "_prefix" } else { "" };
        format!("{resource}{kind} \"{name}\" {{ policy = \"{access}\" }}\n")
    };
    rules.iter().map(spell).collect()
}

fn links(links: &Links, policies: &[String]) -> Value {
    json!({
        "Policies": links.policies.iter().map(|at| json!({ "ID": policies[*at] })).collect::<Vec<_>>(),
        "ServiceIdentities": links.identities.iter().map(|name| json!({ "ServiceName": name })).collect::<Vec<_>>(),
        "NodeIdentities": links.nodes.iter()
            .map(|name| json!({ "NodeName": name, "Datacenter": "dc1" })).collect::<Vec<_>>(),
    })
}

/// Asserts that the server's decisions for the token equal the model's.
async fn assert_agrees(token: &Client, rules: &[Rule]) -> TestCaseResult {
    assert_decisions(token, rules).await?;
    assert_does(token, rules).await
}

async fn assert_decisions(token: &Client, rules: &[Rule]) -> TestCaseResult {
    let mut questions = Vec::new();
    for resource in RESOURCES {
        for name in NAMES {
            questions.extend(["read", "write"].map(|access| (resource, name, access)));
        }
    }
    let body: Vec<Value> = questions
        .iter()
        .map(|(resource, name, access)| json!({ "Resource": resource, "Segment": name, "Access": access }))
        .collect();
    let path = "/v1/internal/acl/authorize";
    let answers = token
        .send(Method::POST, path, &json!(body).to_string())
        .await
        .json();
    for (at, (resource, name, access)) in questions.iter().enumerate() {
        let expected = permitted(rules, resource, name, *access == "write");
        prop_assert_eq!(
            &answers[at]["Allow"],
            &json!(expected),
            "{} {} {}: {:?}",
            resource,
            name,
            access,
            rules
        );
    }
    Ok(())
}

async fn assert_does(token: &Client, rules: &[Rule]) -> TestCaseResult {
    let can = |resource, name: &str, write| permitted(rules, resource, name, write);
    let nodes = token.get("/v1/catalog/nodes").await.json();
    // The server's own node is in the list too.
    let seen: Vec<&str> = nodes
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|n| n["Node"].as_str())
        .collect();
    let expected: Vec<&str> = NAMES
        .into_iter()
        .filter(|name| can("node", name, false))
        .collect();
    let seen: Vec<&str> = seen
        .into_iter()
        .filter(|name| NAMES.contains(name))
        .collect();
    prop_assert_eq!(seen, expected, "{:?}", rules);
    for name in NAMES {
        // Each service is on the node of its name.
        let read = can("service", name, false) && can("node", name, false);
        let found = token
            .get(&format!("/v1/health/service/{name}"))
            .await
            .json();
        prop_assert_eq!(
            found.as_array().map_or(0, Vec::len),
            usize::from(read),
            "{} {:?}",
            name,
            rules
        );
        let config = json!({ "Kind": "service-defaults", "Name": name });
        let config = token.put("/v1/config", &config).await.status;
        prop_assert_eq!(
            config == StatusCode::OK,
            can("service", name, true),
            "{} {:?}",
            name,
            rules
        );
        let moved = json!({ "Node": name, "Address": "10.0.0.2" });
        let moved = token.put("/v1/catalog/register", &moved).await.status;
        let back = json!({ "Node": name, "Address": "10.0.0.1" });
        prop_assert_eq!(
            moved == StatusCode::OK,
            can("node", name, true),
            "{} {:?}",
            name,
            rules
        );
        if moved == StatusCode::OK {
            token.write("/v1/catalog/register", &back).await;
        }
    }
    Ok(())
}

async fn judge(world: &World) -> TestCaseResult {
    let (server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let made = async |path: &str, body: Value| {
        let made = management.write(path, &body).await;
        made["ID"].as_str().unwrap_or_default().to_owned()
    };
    let mut policies = Vec::new();
    for (at, (rules, here)) in world.policies.iter().enumerate() {
        let datacenters = if *here { json!([]) } else { json!(["dc2"]) };
        let body = json!({ "Name": format!("p{at}"), "Rules": spelled(rules), "Datacenters": datacenters });
        policies.push(made("/v1/acl/policy", body).await);
    }
    let mut roles = Vec::new();
    for (at, role) in world.roles.iter().enumerate() {
        let mut body = links(role, &policies);
        body["Name"] = json!(format!("r{at}"));
        roles.push(made("/v1/acl/role", body).await);
    }
    let mut body = links(&world.token, &policies);
    body["Roles"] = world
        .roles_of_token
        .iter()
        .map(|at| json!({ "ID": roles[*at] }))
        .collect();
    let token = management.write("/v1/acl/token", &body).await;
    let token = client.with_token(token["SecretID"].as_str().unwrap_or_default());
    for name in NAMES {
        let body = json!({ "Node": name, "Address": "10.0.0.1", "Service": { "Service": name } });
        management.write("/v1/catalog/register", &body).await;
    }
    assert_agrees(&token, &world.rules(&[], &[])).await?;
    management
        .delete(&format!("/v1/acl/policy/{}", policies[0]))
        .await;
    assert_agrees(&token, &world.rules(&[0], &[])).await?;
    // Change the rules of a remaining policy.
    let mut changed = world.clone();
    changed.policies[1] = (vec![("service", "a".to_owned(), true, "deny")], true);
    let body = json!({ "Name": "p1", "Rules": spelled(&changed.policies[1].0) });
    management
        .write(&format!("/v1/acl/policy/{}", policies[1]), &body)
        .await;
    assert_agrees(&token, &changed.rules(&[0], &[])).await?;
    management
        .delete(&format!("/v1/acl/role/{}", roles[1]))
        .await;
    assert_agrees(&token, &changed.rules(&[0], &[1])).await?;
    drop(server);
    Ok(())
}

proptest! {
    // Each case starts a server and sends hundreds of requests.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn the_server_and_a_flat_list_agree(world in any_world()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(judge(&world))?;
    }
}
