use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::*;

static PEOPLE: [Field; 2] = [
    Field::new("Name", Shape::Text),
    Field::new("Tags", Shape::Texts),
];
static PLACE: [Field; 1] = [Field::new("Port", Shape::Integer)];
static FIELDS: [Field; 8] = [
    Field::new("Name", Shape::Text),
    Field::new("Port", Shape::Integer),
    Field::new("Ready", Shape::Bool),
    Field::new("Tags", Shape::Texts),
    Field::new("Meta", Shape::Map(&Shape::Text)),
    Field::new("Places", Shape::Map(&Shape::Record(&PLACE))),
    Field::new("People", Shape::List(&PEOPLE)),
    Field::named("Where", "where_is_it", Shape::Record(&PLACE)),
];

fn filter(text: &str) -> Filter {
    Filter::parse(text, &FIELDS[..]).unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> FilterError {
    Filter::parse(text, &FIELDS[..]).expect_err(text)
}

#[test]
fn filters_decide() {
    let value = json!({
        "Name": "web", "Port": 8080, "Ready": true, "Tags": ["v1", "a b"],
        "Meta": {"version": "2", "a.b": "c"},
        "Places": {"lan": {"Port": 1}},
        "People": [{"Name": "ann", "Tags": ["x"]}, {"Name": "bob", "Tags": []}],
        "where_is_it": {"Port": -3},
    });
    for (text, expected) in [
        ("", true),
        ("Name == web and Port == 8080 and Ready == true", true),
        ("Port == 0x1f90 and Port != 8081", true),
        ("Ready == F or Name != web", false),
        (
            "Name contains eb and `w` in Name and Name matches `^w.b$`",
            true,
        ),
        ("Name is empty", false),
        (
            "v1 in Tags and Tags contains \"a b\" and v2 not in Tags",
            true,
        ),
        ("Tags is not empty and not Tags is empty", true),
        ("Meta.version == 2 and Meta[\"a.b\"] == c", true),
        ("version in Meta and Meta not contains gone", true),
        // A missing key of a map.
        ("Meta.gone == \"\"", false),
        ("Meta.gone != x and Meta.gone is empty", true),
        ("Meta.gone matches `.*`", false),
        ("Meta.gone not matches x and x not in Meta.gone", true),
        ("Places.lan.Port == 1", true),
        ("Places.wan.Port != 1", true),
        ("Places.wan.Port == 0", false),
        // One matching record of a list is enough.
        ("People.Name == ann and People.Name == bob", true),
        ("People.Name != ann", true),
        ("not People.Name == ann", false),
        ("People.Tags is empty and x in People.Tags", true),
        ("People is not empty", true),
        ("Where.Port == -3", true),
    ] {
        assert_eq!(filter(text).matches(&value), expected, "{text}");
    }
}

#[test]
fn a_field_left_out_of_a_record_has_the_zero_value() {
    #[derive(serde::Serialize)]
    struct Empty {}
    for (text, expected) in [
        ("Name == \"\" and Port == 0 and Ready == false", true),
        ("Name != \"\" or Port != 0 or Ready != false", false),
        ("Tags is empty and Meta is empty and People is empty", true),
        ("x in Tags or x in Meta", false),
        ("Meta.x == \"\"", false),
        ("Places.lan.Port == 0", false),
        ("People.Name == \"\" or People.Name != x", false),
        ("Where.Port == 0", true),
    ] {
        assert_eq!(filter(text).matches(&Empty {}), expected, "{text}");
    }
}

#[test]
fn errors_have_the_position_and_the_expectation() {
    for (text, at, part) in [
        ("Name", 4, "expected =="),
        ("Name = red", 5, "'='"),
        ("Name ==", 7, "a value, not the end"),
        (
            "Name == red Name",
            12,
            "expected and, or or the end, not Name",
        ),
        ("Name == x AND Name == y", 10, "and, or or the end, not AND"),
        ("(Name == red", 12, "expected )"),
        ("Name == \"red", 8, "quote is not closed"),
        ("Name == \"\\q\"", 8, "not an escape"),
        ("Name == \"\\u12\"", 8, "hexadecimal"),
        ("Meta[team] == x", 4, "quoted name"),
        ("Meta[\"team\" == x", 4, "quoted name"),
        ("Name matches \"(\"", 13, "regular expression"),
        ("\"x\" == Name", 4, "expected in or not in"),
        ("a-b == Name", 0, "a selector"),
        ("ops in \"Tags\"", 7, "a selector"),
        ("Name is red", 8, "expected empty"),
        ("Name not red", 9, "in, contains or matches"),
        ("and", 3, "expected =="),
        (") ", 0, "not ')'"),
        ("Nam == x", 0, "Selector \"Nam\" is not valid"),
        (
            "Name == x or Where.Prt == 1",
            13,
            "Selector \"Where.Prt\" is not valid (at byte 13; known: Port)",
        ),
        ("Name.x == 1", 0, "Selector \"Name.x\" is not valid"),
        (
            "Meta == x",
            0,
            "Invalid match operator \"Equal\" for selector \"Meta\"",
        ),
        ("Where is empty", 0, "Invalid match operator \"Is Empty\""),
        (
            "Port is not empty",
            0,
            "\"Is Not Empty\" for selector \"Port\"",
        ),
        ("Tags matches x", 0, "\"Matches\" for selector \"Tags\""),
        (
            "Port == x",
            0,
            "Failed to coerce value \"x\" for selector \"Port\"",
        ),
        ("Ready == yes", 0, "true or false"),
    ] {
        let error = error(text);
        assert_eq!(error.at(), at, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    assert!(error(&"(".repeat(1000)).to_string().contains("nested"));
    assert!(
        error(&" ".repeat(MAX_LENGTH + 1))
            .to_string()
            .contains("longer")
    );
    let patterns = vec!["Name matches x"; MAX_PATTERNS + 1].join(" or ");
    assert!(error(&patterns).to_string().contains("patterns"));
    let chain = vec!["Name == x"; 500].join(" and ");
    assert!(!filter(&chain).matches(&json!({})));
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[abc]", "[a-c]\\.[a-c]", "\\PC{0,3}"]
}

fn leaf() -> impl Strategy<Value = Expression> {
    let selector = ("[abc]", prop::collection::vec(name(), 0..3));
    let operator = prop_oneof![
        name().prop_map(Operator::Equal),
        name().prop_map(Operator::In),
        Just(Operator::Empty),
        "[abc.]{0,3}".prop_map(|text| Operator::Matches(Pattern::new(&text).unwrap())),
    ];
    (selector, operator, any::<bool>()).prop_map(|((first, rest), operator, negated)| {
        let mut parts = vec![first];
        parts.extend(rest);
        Tree::Match(Match {
            selector: Selector { parts, at: 0 },
            operator,
            negated,
        })
    })
}

fn expression() -> impl Strategy<Value = Expression> {
    leaf().prop_recursive(4, 24, 3, |inner| {
        let many = || prop::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            many().prop_map(Tree::And),
            many().prop_map(Tree::Or),
            inner.clone().prop_map(|tree| Tree::Not(Box::new(tree))),
        ]
    })
}

fn value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        "[abc]{0,2}".prop_map(Json::from),
        (0..3u8).prop_map(Json::from),
        any::<bool>().prop_map(Json::from),
        Just(Json::Null),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Json::from),
            prop::collection::btree_map("[abc]", inner, 0..3)
                .prop_map(|map| Json::Object(Map::from_iter(map))),
        ]
    })
}

/// A naive implementation of the decision, on a whole JSON value.
fn naive(tree: &Expression, value: &Json) -> bool {
    match tree {
        Tree::And(trees) => trees.iter().all(|tree| naive(tree, value)),
        Tree::Or(trees) => trees.iter().any(|tree| naive(tree, value)),
        Tree::Not(tree) => !naive(tree, value),
        Tree::Match(found) => naive_match(found, &found.selector.parts, value),
    }
}

fn naive_match(found: &Match, rest: &[String], value: &Json) -> bool {
    let missing = matches!(found.operator, Operator::Empty) != found.negated;
    match (rest, value) {
        (_, Json::Null) => missing,
        ([first, rest @ ..], Json::Object(map)) => map
            .get(first)
            .map_or(missing, |value| naive_match(found, rest, value)),
        ([_, ..], Json::Array(items)) => items.iter().any(|item| naive_match(found, rest, item)),
        ([_, ..], _) => missing,
        ([], value) => {
            let holds = match (&found.operator, value) {
                (Operator::Equal(text), Json::String(own)) => text == own,
                (Operator::Equal(text), Json::Bool(own)) => {
                    let is = |names: &[&str]| names.contains(&text.as_str());
                    match own {
                        true => is(&["1", "t", "T", "true", "TRUE", "True"]),
                        false => is(&["0", "f", "F", "false", "FALSE", "False"]),
                    }
                }
                (Operator::Equal(text), Json::Number(own)) => {
                    text.parse::<i64>().ok() == own.as_i64()
                }
                (Operator::In(text), Json::String(own)) => own.contains(text.as_str()),
                (Operator::In(text), Json::Array(items)) => {
                    items.iter().any(|item| item.as_str() == Some(text))
                }
                (Operator::In(text), Json::Object(map)) => map.contains_key(text),
                (Operator::Matches(pattern), Json::String(own)) => pattern.is_match(own),
                (Operator::Empty, Json::String(own)) => own.is_empty(),
                (Operator::Empty, Json::Array(items)) => items.is_empty(),
                (Operator::Empty, Json::Object(map)) => map.is_empty(),
                _ => false,
            };
            holds != found.negated
        }
    }
}

/// Clears the positions of all selectors.
fn without_places(tree: &mut Expression) {
    match tree {
        Tree::And(trees) | Tree::Or(trees) => trees.iter_mut().for_each(without_places),
        Tree::Not(tree) => without_places(tree),
        Tree::Match(found) => found.selector.at = 0,
    }
}

proptest! {
    #[test]
    fn reading_never_panics(text in "([a-z.]{0,4}|[ ()=!\"`\\\\é\\[\\]]| and | or | not | in | is | empty| matches ){0,12}") {
        let _ = Filter::parse(&text, &FIELDS[..]);
        if let Ok(filter) = Filter::parse(&text, &AnyFields) {
            filter.matches(&json!({"a": 1}));
        }
    }

    #[test]
    fn a_printed_filter_parses_to_the_same_tree(tree in expression()) {
        let text = tree.to_string();
        let mut read = Expression::parse(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        read.iter_mut().for_each(without_places);
        prop_assert_eq!(read, Some(tree), "{}", text);
    }

    #[test]
    fn filters_agree_with_a_naive_evaluation(tree in expression(), value in value()) {
        let filter = Filter::parse(&tree.to_string(), &AnyFields);
        let filter = filter.map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(filter.matches(&value), naive(&tree, &value), "{}", filter.as_str());
    }
}
