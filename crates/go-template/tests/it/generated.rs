//! Limits, and generated templates.

use proptest::prelude::*;

use legate_go_template::{MAX_DEPTH, MAX_TEMPLATE, MAX_TEXT, MAX_VARIABLES, render};

use super::{data, rendered};

#[test]
fn time_and_memory_are_bounded() {
    let large = "x".repeat(1000);
    for (template, expected) in [
        (
            "{{range 1000000000}}{{end}}".to_owned(),
            "over 100000 steps",
        ),
        (
            "{{$x := \"ab\"}}{{range 99}}{{$x = print $x $x}}{{end}}".to_owned(),
            "over",
        ),
        (
            format!("{{{{range 90000}}}}{large}{{{{end}}}}"),
            "over 1048576 bytes",
        ),
        (
            "{{".to_owned() + &"(".repeat(5000),
            "nested deeper than 64 levels",
        ),
        ("{{if 1}}".repeat(5000), "nested deeper than 64 levels"),
        ("{{range 1}}".repeat(5000), "nested deeper than 64 levels"),
        ("x".repeat(MAX_TEMPLATE + 1), "larger than 1048576 bytes"),
        (
            declarations(0..MAX_VARIABLES),
            "over 256 variables in scope",
        ),
        (
            "{{$x := 1}}".repeat(MAX_VARIABLES),
            "over 256 variables in scope",
        ),
    ] {
        let error = rendered(&template).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

/// A variable for each number, in addition to `$`.
fn declarations(numbers: std::ops::Range<usize>) -> String {
    numbers
        .map(|number| format!("{{{{$x{number} := 1}}}}"))
        .collect()
}

#[test]
fn messages_have_a_bounded_length() {
    let name = "a".repeat(100_000);
    for template in [
        format!("{{{{{name}}}}}"),
        format!("{{{{${name}}}}}"),
        format!("{{{{.{name}}}}}"),
        format!("{{{{printf \"%s{name}\"}}}}"),
        format!("{{{{1{name}}}}}"),
    ] {
        let error = rendered(&template).unwrap_err();
        assert!(error.ends_with("..."), "{error}");
        assert!(error.len() < 600, "{error}");
    }
}

/// Scanning all that follows for each of these would take minutes.
#[test]
fn signs_in_a_row_are_read_once() {
    let template = "{{".to_owned() + &"+".repeat(MAX_TEMPLATE - 2);
    let error = rendered(&template).unwrap_err();
    assert!(error.contains("bad number syntax: \"+\""), "{error}");
    for (template, expected) in [
        ("{{+0x1e+5}}", "unexpected \"+5\" in operand"),
        ("{{00x1e+5}}", "bad number syntax: \"00x1e+5\""),
    ] {
        let error = rendered(template).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(rendered("{{-0x1e}} {{+1e+5}}").as_deref(), Ok("-30 100000"));
}

#[test]
fn long_flat_templates_are_accepted() {
    let in_turn = (0..100)
        .map(|first| {
            let declared = declarations(first * 200..(first + 1) * 200);
            format!("{{{{if 1}}}}{declared}{{{{end}}}}")
        })
        .collect::<String>();
    assert_eq!(rendered(&in_turn).as_deref(), Ok(""));
    let chain = "{{else if .Empty}}".repeat(2000);
    let template = format!("{{{{if .Empty}}}}{chain}{{{{else}}}}x{{{{end}}}}");
    assert_eq!(rendered(&template).as_deref(), Ok("x"));
    let template = format!("{{{{1{}}}}}", " | print".repeat(2000));
    assert_eq!(rendered(&template).as_deref(), Ok("1"));
    let (open, close) = ("(".repeat(MAX_DEPTH), ")".repeat(MAX_DEPTH));
    assert_eq!(
        rendered(&format!("{{{{{open}1{close}}}}}")).as_deref(),
        Ok("1")
    );
}

#[test]
fn output_has_its_origin_in_the_template() {
    let template = "QR\nS{{ .ProxyID }}T {{- \"U\" }}\n";
    let output = render("bootstrap", template, &data()).unwrap();
    assert_eq!(output.text(), "QR\nSweb-1TU\n");
    for (part, position) in [
        ("R", (1, 1)),
        ("S", (2, 0)),
        ("-1", (2, 4)),
        ("T", (2, 15)),
        ("U", (2, 21)),
    ] {
        let offset = output.text().find(part).unwrap();
        assert_eq!(output.origin(offset), position, "{part}");
    }
    assert_eq!(render("bootstrap", "", &data()).unwrap().origin(0), (1, 0));
}

/// Pieces of templates in arbitrary order.
fn debris() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "{{", "{{- ", "}}", " -}}", "{{end}}", "{{else}}", "else", "end", "if", "with",
            "range", "define", "template", "block", "/*", "*/", "{{/*", "*/}}", ".", ".ProxyID",
            ".Logs", "$", "$x", ":=", "=", ",", "|", "(", ")", "\"", "`", "\\", "\"%s\"", "printf",
            "index", "eq", "and", "not", "nil", "true", "0x", "1e", "-", "+", "9", "'", " ", "\n",
            "\u{0}", "ä",
        ])
        .prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(template in prop_oneof![debris(), any::<String>(), template()]) {
        match render("bootstrap", &template, &data()) {
            Ok(output) => {
                prop_assert!(output.text().len() <= MAX_TEXT);
                for offset in 0..=output.text().len() {
                    let (line, _) = output.origin(offset);
                    prop_assert!(line <= 1 + template.matches('\n').count());
                }
            }
            Err(error) => {
                let error = error.to_string();
                prop_assert!(error.starts_with("template: bootstrap:"), "{error}");
                prop_assert!(error.len() < 2000, "{error}");
            }
        }
    }

    #[test]
    fn text_without_actions_is_unchanged(text in "[^{]*") {
        prop_assert_eq!(rendered(&text).unwrap(), text);
    }
}

/// Templates that follow the grammar, most of which can be executed.
fn template() -> impl Strategy<Value = String> {
    let nodes = prop_oneof![text(), action(3)].prop_recursive(3, 24, 4, |inner| {
        let body = prop::collection::vec(inner, 0..4).prop_map(|nodes| nodes.concat());
        (
            control(),
            expression(2),
            body.clone(),
            body,
            expression(2),
            any::<u8>(),
        )
            .prop_map(|(control, condition, body, other, second, shape)| {
                let keyword = control.split(' ').next().unwrap_or("if");
                let otherwise = match shape % 4 {
                    0 => String::new(),
                    1 if keyword != "range" => format!("{{{{else {keyword} {second}}}}}{other}"),
                    _ => format!("{{{{else}}}}{other}"),
                };
                format!("{{{{{control} {condition}}}}}{body}{otherwise}{{{{end}}}}")
            })
    });
    prop::collection::vec(nodes, 0..5)
        .prop_map(|nodes| format!("{{{{$v := 1}}}}{}", nodes.concat()))
}

fn text() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", " ", "\n", "\"x\": ", "{ ", " }", "ä", ",\n  "])
        .prop_map(str::to_owned)
}

fn action(depth: u32) -> impl Strategy<Value = String> {
    (
        prop::sample::select(vec!["{{", "{{- ", "{{ "]),
        prop::sample::select(vec!["", "", "", "$v = ", "$v := ", "$w := "]),
        expression(depth),
        prop::sample::select(vec!["}}", " -}}", " }}"]),
    )
        .prop_map(|(open, variable, expression, close)| {
            format!("{open}{variable}{expression}{close}")
        })
}

fn control() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "if",
        "if $c :=",
        "with",
        "with $v :=",
        "range",
        "range $v :=",
        "range $i, $v :=",
        "range $v =",
        "range $i, $v =",
    ])
}

fn expression(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop::sample::select(vec![
        ".",
        "$",
        "$v",
        ".ProxyID",
        ".Empty",
        ".Yes",
        ".Logs",
        ".None",
        ".GRPC",
        ".GRPC.AgentPort",
        "$.Logs",
        "$v.AgentPort",
        ".Nope",
        "1",
        "0",
        "2.5",
        "-3",
        "\"a\"",
        "`b`",
        "true",
        "false",
        "nil",
        "\"%v\"",
        "\"%s-%s\"",
        "\"%q\"",
        "\"\"",
        "1e9",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(depth, 16, 3, |inner| {
        let function = prop::sample::select(vec![
            ("and", 1, 4),
            ("or", 1, 4),
            ("not", 1, 2),
            ("eq", 2, 4),
            ("ne", 2, 3),
            ("lt", 2, 3),
            ("le", 2, 3),
            ("gt", 2, 3),
            ("ge", 2, 3),
            ("len", 1, 2),
            ("index", 1, 3),
            ("print", 0, 4),
            ("printf \"%v\"", 1, 2),
            ("printf", 0, 3),
            ("println", 0, 3),
        ]);
        let argument = prop_oneof![
            inner.clone(),
            inner.clone().prop_map(|inner| format!("({inner})")),
            inner.clone().prop_map(|inner| format!("({inner})")),
            inner.clone(),
            inner.prop_map(|inner| format!("({inner}).AgentPort")),
        ];
        let call = (function, prop::collection::vec(argument, 4), 0..10usize).prop_map(
            |((function, min, max), arguments, n)| {
                format!(
                    "{function} {}",
                    arguments[..(min + n % (max - min))].join(" ")
                )
            },
        );
        prop_oneof![
            4 => call.clone(),
            1 => (call.clone(), call).prop_map(|(first, second)| format!("{first} | {second}")),
        ]
    })
    .boxed()
}
