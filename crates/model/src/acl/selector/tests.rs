use super::*;

fn variables() -> Variables {
    Variables {
        values: [
            ("value.team".to_owned(), "red".to_owned()),
            ("value.none".to_owned(), String::new()),
            ("value.lacking".to_owned(), String::new()),
            ("serviceaccount.name".to_owned(), "web".to_owned()),
        ]
        .into(),
        lists: [
            (
                "list.groups".to_owned(),
                vec!["ops".to_owned(), "dev team".to_owned()],
            ),
            ("list.none".to_owned(), vec![]),
        ]
        .into(),
        missing: ["value.lacking".to_owned()].into(),
    }
}

#[test]
fn expressions_are_evaluated() {
    for (text, expected) in [
        ("", true),
        ("  ", true),
        ("value.team == red", true),
        ("value.team==\"red\"", true),
        ("value.team == `red`", true),
        ("value.team != red", false),
        ("value.team == \"r\\\"ed\"", false),
        ("serviceaccount.name == web", true),
        ("ops in list.groups", true),
        ("\"dev team\" in list.groups", true),
        ("\"dev\" in list.groups", false),
        ("ops not in list.groups", false),
        ("list.groups contains ops", true),
        ("list.groups not contains ops", false),
        ("value.team contains re", true),
        ("list.none is empty", true),
        ("list.groups is not empty", true),
        ("value.none is empty", true),
        ("not value.team == red", false),
        ("not not value.team == red", true),
        ("value.team == red and ops in list.groups", true),
        ("value.team == blue or ops in list.groups", true),
        // `and` binds more tightly than `or`, but less tightly than `not`.
        (
            "value.team == red or value.team == blue and value.team == blue",
            true,
        ),
        (
            "(value.team == red or value.team == blue) and value.team == blue",
            false,
        ),
        ("not value.team == blue and value.team == red", true),
        ("not (value.team == blue or value.team == red)", false),
        ("value.team matches \"^r.d$\"", true),
        ("value.team not matches `^r\\w+$`", false),
        ("value.team matches `^blue`", false),
        ("value[\"team\"] == red", true),
        ("\"dev team\" in list[ `groups` ]", true),
        ("value.team == \"r\\x65\\u0064\"", true),
        ("value.team == \"r\\n\"", false),
        // A group contains the names of the login's variables.
        ("team in value", true),
        ("value not contains gone", true),
        ("list contains groups", true),
        ("groups in value", false),
        ("value is empty", false),
        // A variable that the login lacks only matches "is empty".
        ("value.lacking == \"\"", false),
        ("value.lacking != x", true),
        ("value.lacking matches x", false),
        ("value.lacking matches \"\"", false),
        ("value.lacking not matches x", true),
        ("\"\" in value.lacking", false),
        ("value.lacking is empty", true),
        ("value contains lacking", false),
        ("value.gone == x", false),
        ("value.gone is empty", true),
    ] {
        let fits = matches(text, &variables()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fits, expected, "{text}");
    }
}

#[test]
fn unknown_variables_are_named() {
    for (text, at) in [
        ("value.tem == red", 0),
        ("value.team == red and x in list.group", 27),
        ("list.groups == ops", 0),
        ("list.groups matches ops", 0),
        ("value == x", 0),
        ("x in serviceaccount", 5),
    ] {
        let error = check(text, &variables()).unwrap_err();
        assert_eq!(error.at(), at, "{error}");
    }
    let good = "value.team == red and not ops in list.groups";
    assert_eq!(check(good, &variables()), Ok(()));
    let error = check("value.tem == red", &variables()).unwrap_err();
    assert!(
        error.to_string().contains("known: serviceaccount.name"),
        "{error}"
    );
}

/// A selector as a tree, with its text and its expected result for a login. Shares no code with the
/// parser or the evaluation.
mod naive {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Tree {
        Any(Box<Tree>, Box<Tree>),
        Both(Box<Tree>, Box<Tree>),
        Not(Box<Tree>),
        Is(&'static str, String, bool),
        Has(&'static str, String, bool),
        Contains(&'static str, String, bool),
        Begins(&'static str, String, bool),
        Empty(&'static str, bool),
    }

    const TEXTS: [&str; 3] = ["value.a", "value.b", "serviceaccount.name"];
    const LISTS: [&str; 2] = ["list.a", "list.b"];
    const ALL: [&str; 7] = [
        "value.a",
        "value.b",
        "serviceaccount.name",
        "list.a",
        "list.b",
        "value",
        "list",
    ];

    fn word() -> impl Strategy<Value = String> {
        "[ab]{0,2}"
    }

    fn tree() -> impl Strategy<Value = Tree> {
        let text = || prop::sample::select(&TEXTS[..]);
        let all = || prop::sample::select(&ALL[..]);
        let leaf = prop_oneof![
            (text(), word(), any::<bool>()).prop_map(|(v, w, yes)| Tree::Is(v, w, yes)),
            (all(), word(), any::<bool>()).prop_map(|(v, w, yes)| Tree::Has(v, w, yes)),
            (all(), word(), any::<bool>()).prop_map(|(v, w, yes)| Tree::Contains(v, w, yes)),
            (text(), word(), any::<bool>()).prop_map(|(v, w, yes)| Tree::Begins(v, w, yes)),
            (all(), any::<bool>()).prop_map(|(v, yes)| Tree::Empty(v, yes)),
        ];
        leaf.prop_recursive(4, 24, 2, |inner| {
            let two = || (inner.clone(), inner.clone());
            prop_oneof![
                two().prop_map(|(a, b)| Tree::Any(a.into(), b.into())),
                two().prop_map(|(a, b)| Tree::Both(a.into(), b.into())),
                inner.prop_map(|a| Tree::Not(a.into())),
            ]
        })
    }

    /// A login; variables that it lacks are absent.
    type Login = (BTreeMap<String, String>, BTreeMap<String, Vec<String>>);

    fn login() -> impl Strategy<Value = Login> {
        let texts = prop::sample::select(&TEXTS[..]).prop_map(str::to_owned);
        let lists = prop::sample::select(&LISTS[..]).prop_map(str::to_owned);
        (
            prop::collection::btree_map(texts, word(), 0..4),
            prop::collection::btree_map(lists, prop::collection::vec(word(), 0..3), 0..3),
        )
    }

    fn variables((texts, lists): &Login) -> Variables {
        let mut all = Variables::default();
        for name in TEXTS {
            all.values.insert(name.to_owned(), String::new());
        }
        for name in LISTS {
            all.lists.insert(name.to_owned(), vec![]);
        }
        let known = all.values.keys().chain(all.lists.keys()).cloned();
        all.missing = known
            .filter(|name| !texts.contains_key(name) && !lists.contains_key(name))
            .collect();
        all.values.extend(texts.clone());
        all.lists.extend(lists.clone());
        all
    }

    impl Tree {
        /// Puts every conjunction and disjunction in parentheses.
        fn text(&self) -> String {
            let not = |yes: &bool| if *yes { "" } else { "not " };
            match self {
                Tree::Any(a, b) => format!("({} or {})", a.text(), b.text()),
                Tree::Both(a, b) => format!("({} and {})", a.text(), b.text()),
                Tree::Not(a) => format!("not ({})", a.text()),
                Tree::Is(v, w, true) => format!("{v} == \"{w}\""),
                Tree::Is(v, w, false) => format!("{v} != `{w}`"),
                Tree::Has(v, w, yes) => format!("\"{w}\" {}in {v}", not(yes)),
                Tree::Contains(v, w, yes) => format!("{v} {}contains \"{w}\"", not(yes)),
                Tree::Begins(v, w, yes) => format!("{v} {}matches `^{w}`", not(yes)),
                Tree::Empty(v, yes) => format!("{v} is {}empty", not(yes)),
            }
        }

        fn holds(&self, login: &Login) -> bool {
            let (texts, lists) = login;
            let named = |group: &str| match group {
                "value" => texts
                    .keys()
                    .filter_map(|k| k.strip_prefix("value."))
                    .collect(),
                _ => lists
                    .keys()
                    .filter_map(|k| k.strip_prefix("list."))
                    .collect::<Vec<_>>(),
            };
            let group = |name: &str| name == "value" || name == "list";
            let has = |v: &str, w: &String| {
                lists.get(v).is_some_and(|list| list.contains(w))
                    || texts.get(v).is_some_and(|text| text.contains(w.as_str()))
                    || group(v) && named(v).contains(&w.as_str())
            };
            match self {
                Tree::Any(a, b) => a.holds(login) || b.holds(login),
                Tree::Both(a, b) => a.holds(login) && b.holds(login),
                Tree::Not(a) => !a.holds(login),
                Tree::Is(v, w, yes) => texts.get(*v).is_some_and(|text| text == w) == *yes,
                Tree::Has(v, w, yes) | Tree::Contains(v, w, yes) => has(v, w) == *yes,
                Tree::Begins(v, w, yes) => {
                    let begins = |text: &String| text.starts_with(w.as_str());
                    texts.get(*v).is_some_and(begins) == *yes
                }
                Tree::Empty(v, yes) => {
                    let filled = lists.get(*v).is_some_and(|list| !list.is_empty())
                        || texts.get(*v).is_some_and(|text| !text.is_empty())
                        || group(v) && !named(v).is_empty();
                    filled != *yes
                }
            }
        }
    }

    proptest! {
        #[test]
        fn selectors_agree_with_a_naive_evaluation(tree in tree(), login in login()) {
            let text = tree.text();
            let variables = variables(&login);
            prop_assert_eq!(check(&text, &variables), Ok(()));
            let fits = matches(&text, &variables);
            prop_assert_eq!(fits, Ok(tree.holds(&login)), "{} {:?}", text, login);
        }
    }
}
