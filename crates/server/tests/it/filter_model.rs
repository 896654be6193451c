//! Property: for any filter, the server's result equals that of a naive evaluation.

use legate_filter::{Expression, Match, Operator, Pattern, Selector, Tree};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{TestCaseError, TestCaseResult, TestRunner};
use serde_json::{Value, json};

use crate::http_client::{Client, start};

/// The type of a field, which determines its operators.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Number,
    Flag,
    /// A list of strings, or a map by its keys.
    Many,
    /// A list of objects.
    List,
}

/// A list endpoint, and the fields that all its items have.
#[derive(Debug)]
struct List {
    path: &'static str,
    fields: &'static [(&'static str, Kind)],
}

const LISTS: &[List] = &[
    List {
        path: "/v1/catalog/nodes",
        fields: &[
            ("Node", Kind::Text),
            ("Address", Kind::Text),
            ("Meta", Kind::Many),
            ("Meta.os", Kind::Text),
            ("Meta.none", Kind::Text),
            ("TaggedAddresses", Kind::Many),
        ],
    },
    List {
        path: "/v1/catalog/service/web",
        fields: &[
            ("Node", Kind::Text),
            ("NodeMeta.os", Kind::Text),
            ("ServiceID", Kind::Text),
            ("ServiceTags", Kind::Many),
            ("ServiceMeta", Kind::Many),
            ("ServiceMeta.version", Kind::Text),
            ("ServicePort", Kind::Number),
            ("ServiceEnableTagOverride", Kind::Flag),
        ],
    },
    List {
        path: "/v1/health/service/web",
        fields: &[
            ("Node.Meta.os", Kind::Text),
            ("Service.ID", Kind::Text),
            ("Service.Tags", Kind::Many),
            ("Service.Meta.version", Kind::Text),
            ("Service.Port", Kind::Number),
            ("Service.Weights.Passing", Kind::Number),
            ("Checks", Kind::List),
            ("Checks.Status", Kind::Text),
            ("Checks.Name", Kind::Text),
            ("Checks.ServiceTags", Kind::Many),
        ],
    },
    List {
        path: "/v1/health/state/any",
        fields: &[
            ("Node", Kind::Text),
            ("CheckID", Kind::Text),
            ("Status", Kind::Text),
            ("ServiceName", Kind::Text),
            ("ServiceTags", Kind::Many),
        ],
    },
];

const TEXTS: [&str; 13] = [
    "", "n1", "n2", "linux", "windows", "1", "2", "web", "v1", "v2", "passing", "critical", "os",
];
const NUMBERS: [&str; 4] = ["80", "81", "1", "0x50"];
const PATTERNS: [&str; 5] = ["^n", "1$", "in", "^$", "[12]"];

async fn populate(client: &Client) {
    for (i, os) in ["linux", "windows", ""].into_iter().enumerate() {
        let node = format!("n{i}");
        let meta = match os {
            "" => json!({}),
            os => json!({ "os": os }),
        };
        for version in 1..=2 {
            let id = format!("w{version}");
            let status = ["passing", "warning", "critical"][(i + version) % 3];
            let checks = match i {
                2 => json!([]),
                _ => json!([
                    { "CheckID": id, "Name": status, "ServiceID": id, "Status": status },
                    { "CheckID": "node", "Name": "node", "Status": "passing" },
                ]),
            };
            let tags = &["v1", "v2"][..version - i.min(1)];
            let web = json!({
                "Node": node, "Address": format!("10.0.0.{i}"), "NodeMeta": meta,
                "Service": {
                    "Service": "web", "ID": id, "Port": 79 + version, "Tags": tags,
                    "Meta": { "version": version.to_string() },
                    "EnableTagOverride": version == 1,
                },
                "Checks": checks,
            });
            client.write("/v1/catalog/register", &web).await;
        }
    }
}

fn any_match(list: &'static List) -> impl Strategy<Value = Expression> {
    let operator = |kind: Kind| -> BoxedStrategy<Operator> {
        let text = || select(TEXTS.to_vec()).prop_map(str::to_owned);
        let equal = |values: Vec<&'static str>| {
            select(values).prop_map(|value| Operator::Equal(value.to_owned()))
        };
        match kind {
            Kind::Text => prop_oneof![
                text().prop_map(Operator::Equal),
                text().prop_map(Operator::In),
                select(PATTERNS.to_vec())
                    .prop_map(|text| Operator::Matches(Pattern::new(text).unwrap())),
                Just(Operator::Empty),
            ]
            .boxed(),
            Kind::Number => equal(NUMBERS.to_vec()).boxed(),
            Kind::Flag => equal(vec!["true", "false"]).boxed(),
            Kind::Many => prop_oneof![text().prop_map(Operator::In), Just(Operator::Empty)].boxed(),
            Kind::List => Just(Operator::Empty).boxed(),
        }
    };
    let field = select(list.fields.to_vec());
    let asked = field.prop_flat_map(move |(name, kind)| (Just(name), operator(kind)));
    (asked, any::<bool>()).prop_map(|((name, operator), negated)| {
        Tree::Match(Match {
            selector: Selector {
                parts: name.split('.').map(str::to_owned).collect(),
                at: 0,
            },
            operator,
            negated,
        })
    })
}

fn any_filter() -> impl Strategy<Value = (&'static List, Expression)> {
    select((0..LISTS.len()).collect::<Vec<_>>()).prop_flat_map(|i| {
        let list = &LISTS[i];
        let tree = any_match(list).prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 2..4).prop_map(Tree::And),
                prop::collection::vec(inner.clone(), 2..4).prop_map(Tree::Or),
                inner.prop_map(|tree| Tree::Not(Box::new(tree))),
            ]
        });
        (Just(list), tree)
    })
}

fn holds(tree: &Expression, item: &Value) -> bool {
    match tree {
        Tree::And(all) => all.iter().all(|tree| holds(tree, item)),
        Tree::Or(all) => all.iter().any(|tree| holds(tree, item)),
        Tree::Not(tree) => !holds(tree, item),
        Tree::Match(found) => asks(found, &found.selector.parts, item),
    }
}

fn asks(found: &Match, way: &[String], value: &Value) -> bool {
    let Some((first, rest)) = way.split_first() else {
        return answers(&found.operator, value) != found.negated;
    };
    match value {
        // A list matches if one of its items matches, even for negated operators.
        Value::Array(items) => items.iter().any(|item| asks(found, way, item)),
        value => match value.get(first) {
            Some(inner) => asks(found, rest, inner),
            // Only keys of maps can be missing; such a field only matches emptiness checks.
            None => matches!(found.operator, Operator::Empty) != found.negated,
        },
    }
}

fn answers(operator: &Operator, value: &Value) -> bool {
    match (operator, value) {
        (Operator::Equal(text), Value::String(own)) => own == text,
        (Operator::Equal(text), Value::Number(own)) => {
            let number = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            };
            own.as_u64() == number
        }
        (Operator::Equal(text), Value::Bool(own)) => own.to_string() == *text,
        (Operator::In(text), Value::String(own)) => own.contains(text.as_str()),
        (Operator::In(text), Value::Array(own)) => own.contains(&json!(text)),
        (Operator::In(text), Value::Object(own)) => own.contains_key(text),
        (Operator::Matches(pattern), Value::String(own)) => pattern.is_match(own),
        (Operator::Empty, Value::String(own)) => own.is_empty(),
        (Operator::Empty, Value::Array(own)) => own.is_empty(),
        (Operator::Empty, Value::Object(own)) => own.is_empty(),
        other => panic!("no field is asked this: {other:?}"),
    }
}

async fn judge(client: &Client, list: &List, filter: &Expression) -> TestCaseResult {
    let text = filter.to_string();
    let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let all = client.get(list.path).await.json();
    let reply = client.get(&format!("{}?filter={encoded}", list.path)).await;
    if reply.status != http::StatusCode::OK {
        return Err(TestCaseError::fail(format!("{text}: {}", reply.text())));
    }
    let items = all.as_array().unwrap().iter();
    let expected: Vec<&Value> = items.filter(|item| holds(filter, item)).collect();
    let found = reply.json();
    let found: Vec<&Value> = found.as_array().unwrap().iter().collect();
    prop_assert_eq!(found, expected, "{} {}", list.path, text);
    Ok(())
}

#[test]
fn the_server_and_a_naive_evaluation_agree() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (server, client) = runtime.block_on(async {
        let (server, client) = start(|_| {}).await;
        populate(&client).await;
        (server, client)
    });
    let mut runner = TestRunner::new(ProptestConfig::with_cases(256));
    let agreed = runner.run(&any_filter(), |(list, filter)| {
        runtime.block_on(judge(&client, list, &filter))
    });
    drop(server);
    agreed.unwrap();
}
