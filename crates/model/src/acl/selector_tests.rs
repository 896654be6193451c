use super::*;

fn variables() -> Variables {
    Variables {
        values: [
            ("value.team".to_owned(), "red".to_owned()),
            ("value.none".to_owned(), String::new()),
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
    }
}

#[test]
fn expressions_decide() {
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
        // and binds closer than or, not closer than both.
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
        ("value.gone == x", false),
        ("value.gone is empty", true),
    ] {
        let selector = Selector::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(selector.matches(&variables()), expected, "{text}");
    }
}

#[test]
fn mistakes_say_where_and_what() {
    for (text, at, part) in [
        ("value.team", 10, "expected =="),
        ("value.team = red", 11, "'='"),
        ("value.team ==", 13, "a value, not the end"),
        (
            "value.team == red value.team",
            18,
            "expected and, or or the end",
        ),
        ("(value.team == red", 18, "expected )"),
        ("value.team == \"red", 14, "quote is not closed"),
        ("value.team == \"\\n\"", 14, "not an escape"),
        ("\"x\" == value.team", 4, "expected in or not in"),
        ("ops in \"list.groups\"", 7, "a variable"),
        ("value.team is red", 14, "expected empty"),
        ("value.team matches red", 11, "not matches"),
        ("and", 3, "expected =="),
        (") ", 0, "not )"),
    ] {
        let error = Selector::parse(text).unwrap_err();
        assert_eq!(error.at, at, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let deep = "(".repeat(1000);
    assert!(
        Selector::parse(&deep)
            .unwrap_err()
            .to_string()
            .contains("nested")
    );
    let long = " ".repeat(MAX_LENGTH + 1);
    assert!(Selector::parse(&long).is_err());
}

#[test]
fn unknown_variables_are_named() {
    for (text, at) in [
        ("value.tem == red", 0),
        ("value.team == red and x in list.group", 27),
        ("list.groups == ops", 0),
    ] {
        let error = Selector::parse(text)
            .unwrap()
            .check(&variables())
            .unwrap_err();
        assert_eq!(error.at, at, "{error}");
        assert!(error.to_string().contains("known: "), "{error}");
    }
    let good = Selector::parse("value.team == red and not ops in list.groups").unwrap();
    assert_eq!(good.check(&variables()), Ok(()));
}

proptest::proptest! {
    #[test]
    fn parsing_never_panics(text in "([a-z.]{0,4}|[ ()=!\"`\\\\é]| and | or | not | in ){0,12}") {
        let _ = Selector::parse(&text);
    }
}
