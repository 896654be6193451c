//! Compares outputs with those of Go's `text/template`: every expected output here is Go's own.

use legate_go_template::{Value, render};

mod generated;

fn data() -> Value {
    let agent = vec![
        ("AgentPort", Value::from("8502")),
        ("AgentTLS", Value::Bool(false)),
    ];
    let mut fields = vec![
        ("GRPC", Value::structure("bootstrap.GRPC", agent.clone())),
        ("ProxyID", Value::from("web-1")),
        ("Empty", Value::from("")),
        ("Yes", Value::Bool(true)),
        (
            "Logs",
            Value::List([Value::from("{\"a\":1}"), Value::from("two")].into()),
        ),
        ("None", Value::List([].into())),
    ];
    fields.extend(agent);
    Value::structure("*bootstrap.BootstrapTplArgs", fields)
}

fn rendered(template: &str) -> Result<String, String> {
    render("bootstrap", template, &data())
        .map(|output| output.text().to_owned())
        .map_err(|error| error.to_string())
}

const OUTPUTS: &[(&str, &str)] = &[
    // Text, trimming, comments.
    ("", ""),
    ("plain } text { }}", "plain } text { }}"),
    ("{ {{.ProxyID}} }", "{ web-1 }"),
    ("a \n {{- .ProxyID -}} \t\n b", "aweb-1b"),
    ("a {{- /* words {{ }} */ -}} b{{/**/}} c", "ab c"),
    ("{{/* one\ntwo */}}x", "x"),
    ("{{.ProxyID\n|\tprint}}", "web-1"),
    ("{{- 3 -}} {{-3}}", "3-3"),
    ("{{\"{{\"}} {{`}}`}}", "{{ }}"),
    // Fields and variables.
    (
        "{{.GRPC.AgentPort}} {{$.AgentPort}} {{(.GRPC).AgentPort}}",
        "8502 8502 8502",
    ),
    (
        "{{$x := .GRPC}}{{$x.AgentPort}}{{with $x}}{{.AgentTLS}}{{end}}",
        "8502false",
    ),
    (
        "{{$x := 1}}{{if true}}{{$x = 2}}{{$y := 3}}{{$x}}{{$y}}{{end}}{{$x}}",
        "232",
    ),
    ("{{$x := 1}}{{if true}}{{$x := 2}}{{$x}}{{end}}{{$x}}", "21"),
    ("{{with $x := .ProxyID}}{{$x}}={{.}}{{end}}", "web-1=web-1"),
    (
        "{{.AgentTLS}} {{.Yes}} {{.Logs}} {{.None}}",
        "false true [{\"a\":1} two] []",
    ),
    // Conditions.
    (
        "{{if .ProxyID}}yes{{end}}{{if .Empty}}no{{else}}none{{end}}",
        "yesnone",
    ),
    (
        "{{if .None}}a{{else if .Empty}}b{{else if .Logs}}c{{else}}d{{end}}",
        "c",
    ),
    (
        "{{if $x := .Empty}}a{{else if $y := .ProxyID}}{{$x}}{{$y}}{{end}}",
        "web-1",
    ),
    (
        "{{with .Empty}}a{{else with .ProxyID}}{{.}}{{else}}c{{end}}",
        "web-1",
    ),
    ("{{with .Empty}}a{{else}}{{.ProxyID}}{{end}}", "web-1"),
    (
        "{{if 0}}a{{end}}{{if 0.0}}b{{end}}{{if \"\"}}c{{end}}{{if .GRPC}}d{{end}}",
        "d",
    ),
    (
        "{{if (not .None)}}a{{end}}{{if not (eq .ProxyID \"web-1\")}}b{{end}}",
        "a",
    ),
    // Ranges.
    ("{{range .Logs}}<{{.}}>{{end}}", "<{\"a\":1}><two>"),
    (
        "{{range $i, $l := .Logs}}{{if $i}},{{end}}{{$i}}{{$l}}{{end}}",
        "0{\"a\":1},1two",
    ),
    (
        "{{range $l := .Logs}}{{$l}}{{$.ProxyID}}{{end}}",
        "{\"a\":1}web-1twoweb-1",
    ),
    ("{{range .None}}a{{else}}{{.ProxyID}}{{end}}", "web-1"),
    ("{{range $i, $l := .None}}a{{else}}none{{end}}", "none"),
    (
        "{{range 3}}{{.}}{{end}}{{range $i := 2}}{{$i}}{{end}}{{range 0}}{{else}}x{{end}}",
        "01201x",
    ),
    (
        "{{$i := 9}}{{$l := 0}}{{range $i, $l = .Logs}}{{end}}{{$i}}{{$l}}",
        "1two",
    ),
    ("{{$n := 0}}{{range .Logs}}{{$n = len .}}{{end}}{{$n}}", "3"),
    ("{{range (or nil)}}a{{else}}b{{end}}", "b"),
    // Functions.
    (
        "{{and 1 0 2}}{{and 1 2}}{{or 0 \"\" 3}}{{or 0 \"\"}}",
        "023",
    ),
    (
        "{{or .Empty .ProxyID}} {{and .Yes .Logs}}",
        "web-1 [{\"a\":1} two]",
    ),
    (
        "{{or true (index .None 5)}}{{and false (index .None 5)}}",
        "truefalse",
    ),
    ("{{not 0}}{{not \"x\"}}{{not .Logs}}", "truefalsefalse"),
    (
        "{{eq 1 1}}{{eq \"a\" \"b\"}}{{eq 1 2 3 1}}{{ne .ProxyID \"\"}}{{eq true .Yes}}",
        "truefalsetruetruetrue",
    ),
    (
        "{{eq nil nil}}{{eq .ProxyID nil}}{{eq .None nil}}{{ne .Logs nil}}",
        "truefalsetruetrue",
    ),
    (
        "{{lt 1 2}}{{le 2 2}}{{gt \"b\" \"a\"}}{{ge 1.5 2.5}}{{lt 2 1}}{{gt 2 2}}{{ge 2 2}}",
        "truetruetruefalsefalsefalsetrue",
    ),
    (
        "{{len .ProxyID}}{{len .Logs}}{{.Logs | len}}{{len \"äö\"}}",
        "5224",
    ),
    (
        "{{index .Logs 1}}{{index .Logs}}{{index \"a\" 0}}{{index .Logs 1 2}}",
        "two[{\"a\":1} two]97111",
    ),
    (
        "{{print 1 2 \"a\" 3 true nil}}{{print}}|{{println}}|{{println 1 \"a\"}}",
        "1 2a3 true <nil>|\n|1 a\n",
    ),
    (
        "{{printf \"%s %q %d %v %t %%\" .ProxyID \"a\\\"b\" 7 1.5 true}}",
        "web-1 \"a\\\"b\" 7 1.5 true %",
    ),
    (
        "{{printf \"%v %s %q %v\" .Logs .Logs .Logs nil}}",
        "[{\"a\":1} two] [{\"a\":1} two] [\"{\\\"a\\\":1}\" \"two\"] <nil>",
    ),
    (
        "{{\"x\" | printf \"%s-%s\" \"y\"}}{{.ProxyID | printf \"%q\" | len}}",
        "y-x7",
    ),
    (
        "{{.ProxyID | }}{{1 | and 2}}{{.Yes | not}}{{\"web-1\" | eq .ProxyID}}",
        "web-11falsetrue",
    ),
    ("{{print (print 1 (print 2 (print 3)))}}", "123"),
    // Literals.
    (
        "{{0x1F}} {{0b101}} {{0o17}} {{017}} {{1_000}} {{+5}} {{-7}} {{0}} {{0X_f}}",
        "31 5 15 15 1000 5 -7 0 15",
    ),
    (
        "{{1.5}} {{.5}} {{5.}} {{1e3}} {{1e21}} {{1e20}} {{1e-4}} {{1e-5}} {{-0.25e2}} {{123456.5}} {{123456789.0}} {{2.5e-7}}",
        "1.5 0.5 5 1000 1e+21 1e+20 0.0001 1e-05 -25 123456.5 1.23456789e+08 2.5e-07",
    ),
    (
        "{{\"\\a\\b\\f\\n\\r\\t\\v\\\\\\\"\\x41\\101\\u00e4\\U0001F600\"}}",
        "\x07\x08\x0c\n\r\t\x0b\\\"AAä\u{1F600}",
    ),
    ("{{`a\\n\r\n\"b`}}{{print `x` \"y\"}}", "a\\n\n\"bxy"),
    ("{{or nil}}{{true}}{{false}}", "<no value>truefalse"),
];

#[test]
fn outputs_are_those_of_go() {
    for (template, expected) in OUTPUTS {
        assert_eq!(rendered(template).as_deref(), Ok(*expected), "{template:?}");
    }
}

/// Refused templates with their errors: the position is Go's, as far as Go reports one (its parser
/// counts lines only).
const ERRORS: &[(&str, &str)] = &[
    // Errors during parsing.
    (
        "a\n  {{if .Yes}}",
        "2:13: unexpected EOF; the {{if}} in line 2 has no {{end}}",
    ),
    (
        "{{range .Logs}}{{else}}",
        "1:23: unexpected EOF; the {{range}} in line 1",
    ),
    ("{{end}}", "1:0: unexpected {{end}}"),
    (
        "{{if 1}}{{else}}{{else}}{{end}}",
        "1:16: expected end; found {{else}}",
    ),
    (
        "{{if 1}}{{else with 2}}{{end}}",
        "1:8: unexpected <with> in {{else}}",
    ),
    (
        "{{range .Logs}}{{else if 1}}{{end}}",
        "1:22: unexpected \"if\" in else",
    ),
    ("{{}}", "1:2: missing value for command"),
    ("{{if}}{{end}}", "1:4: missing value for if"),
    (
        "{{.ProxyID | 1}}",
        "1:13: non executable command in pipeline stage 2",
    ),
    (
        "\n{{ nope 1 }}",
        "2:3: function \"nope\" not defined; the functions are and, or,",
    ),
    ("{{$x}}", "1:2: undefined variable \"$x\""),
    (
        "{{if $x := 1}}{{end}}{{$x}}",
        "1:23: undefined variable \"$x\"",
    ),
    (
        "{{if 1}}{{$x := 1}}{{else}}{{$x}}{{end}}",
        "1:29: undefined variable \"$x\"",
    ),
    (
        "{{$a, $b := .Logs}}",
        "1:4: too many declarations in command",
    ),
    (
        "{{range $a, 1}}{{end}}",
        "1:10: range can only initialize variables",
    ),
    ("{{(1}}", "1:4: unclosed left paren"),
    ("{{1)}}", "1:3: unexpected right paren"),
    ("x {{ .ProxyID ", "1:2: unclosed action"),
    ("{{\"a}}", "1:2: unterminated quoted string"),
    ("{{`a}}", "1:2: unterminated raw quoted string"),
    ("{{/* a", "1:2: unclosed comment"),
    (
        "{{/* a */ x}}",
        "1:2: comment ends before closing delimiter",
    ),
    ("{{.A+1}}", "1:2: bad character U+002B '+'"),
    ("{{ # }}", "1:3: unexpected \"#\" in command"),
    ("{{ 1 $x := 2}}", "1:5: undefined variable \"$x\""),
    ("{{\"a\".B}}", "1:5: unexpected . after term \"\\\"a\\\"\""),
    ("{{1.2.3}}", "1:2: bad number syntax: \"1.2.3\""),
    ("{{089}}", "1:2: bad number syntax: \"089\""),
    (
        "{{9223372036854775808}}",
        "1:2: 9223372036854775808 overflows int",
    ),
    ("{{\"\\q\"}}", "1:2: invalid syntax: \\q in a string"),
    // Unsupported features.
    (
        "a\n{{ define \"x\" }}b{{ end }}",
        "2:0: {{define}} is not supported; supported are fields,",
    ),
    (
        "{{- template \"x\" . }}",
        "1:0: {{template}} is not supported; supported are",
    ),
    (
        "{{block \"x\" .}}{{end}}",
        "1:0: {{block}} is not supported; supported are",
    ),
    (
        "{{range .Logs}}{{break}}{{end}}",
        "1:15: {{break}} is not supported",
    ),
    (
        "{{range .Logs}}{{continue}}{{end}}",
        "1:15: {{continue}} is not supported",
    ),
    (
        "{{ slice .ProxyID 1 }}",
        "1:3: the function slice is not supported; the functions are and,",
    ),
    (
        "{{ .ProxyID | js }}",
        "1:14: the function js is not supported",
    ),
    ("{{ 'a' }}", "1:3: character constants are not supported"),
    ("{{ 2i }}", "1:3: the imaginary number 2i is not supported"),
    (
        "{{ printf \"%5d\" 1 }}",
        "1:3: executing \"bootstrap\" at <printf \"%5d\" 1>: error calling printf: %5 is not supported; use %v,",
    ),
    (
        "{{ printf \"%d\" .ProxyID }}",
        "error calling printf: %d does not take a value of type string; use %v",
    ),
    (
        "{{ printf \"%s\" }}",
        "error calling printf: the format \"%s\" has more verbs than there are values",
    ),
    (
        "{{ printf \"a\" 1 }}",
        "error calling printf: the format \"a\" has fewer verbs",
    ),
    (
        "{{ printf \"100%\" }}",
        "error calling printf: the format ends with a lone %; write %%",
    ),
    (
        "{{ . }}",
        "1:3: executing \"bootstrap\" at <.>: can't print all of *bootstrap.BootstrapTplArgs; name one",
    ),
    // Errors during execution.
    (
        "{{ .Nope }}",
        "1:3: executing \"bootstrap\" at <.Nope>: can't evaluate field Nope in type *bootstrap.BootstrapTplArgs (which has GRPC, ProxyID",
    ),
    (
        "a\n b {{ .GRPC.Nope }}",
        "2:11: executing \"bootstrap\" at <.GRPC.Nope>: can't evaluate field Nope in type bootstrap.GRPC (which",
    ),
    ("{{ .ProxyID.X }}", "can't evaluate field X in type string"),
    (
        "{{ $.ProxyID.X }}",
        "1:4: executing \"bootstrap\" at <$.ProxyID.X>: can't evaluate field X in type string",
    ),
    (
        "{{ range .Logs }}{{ .X }}{{ end }}",
        "1:20: executing \"bootstrap\" at <.X>: can't evaluate field X in type string",
    ),
    (
        "{{ .ProxyID 1 }}",
        "can't give argument to non-function .ProxyID",
    ),
    (
        "{{ 1 | .ProxyID }}",
        "can't give argument to non-function .ProxyID",
    ),
    (
        "{{ nil }}",
        "1:3: executing \"bootstrap\" at <nil>: nil is not a command",
    ),
    ("{{ $x = 1 }}", "undefined variable: $x"),
    (
        "{{ eq 1 }}",
        "error calling eq: missing argument for comparison",
    ),
    (
        "{{ eq 1 \"1\" }}",
        "error calling eq: incompatible types for comparison: int and string",
    ),
    (
        "{{ eq .Logs .Logs }}",
        "error calling eq: non-comparable type []string",
    ),
    (
        "{{ lt 1 1.5 }}",
        "error calling lt: incompatible types for comparison: int and float64",
    ),
    (
        "{{ lt true false }}",
        "error calling lt: invalid type for comparison",
    ),
    ("{{ not }}", "wrong number of args for not: want 1 got 0"),
    (
        "{{ and }}",
        "wrong number of args for and: want at least 1 got 0",
    ),
    ("{{ len 1 }}", "error calling len: len of type int"),
    (
        "{{ index .Logs 2 }}",
        "error calling index: index out of range: 2 of 2",
    ),
    (
        "{{ index .Logs -1 }}",
        "error calling index: index out of range: -1",
    ),
    (
        "{{ index .Logs \"0\" }}",
        "cannot index slice/array with type string",
    ),
    (
        "{{ index . 0 }}",
        "error calling index: can't index item of type *bootstrap",
    ),
    (
        "{{ index nil }}",
        "error calling index: index of untyped nil",
    ),
    (
        "{{ printf 1 }}",
        "error calling printf: the format is of type int",
    ),
    (
        "{{ range .ProxyID }}{{ end }}",
        "range can't iterate over type string",
    ),
    (
        "{{ range $i, $x := 3 }}{{ end }}",
        "can't iterate over a number with more than one variable",
    ),
];

#[test]
fn errors_have_position_and_reason() {
    let mut wrong = Vec::new();
    for (template, expected) in ERRORS {
        let error = rendered(template).unwrap_err();
        if !(error.starts_with("template: bootstrap:") && error.contains(expected)) {
            wrong.push(format!("{template:?}: {error}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
