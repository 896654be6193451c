use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Vec<String> {
    let rules = Rules::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let spell = |rule: &Rule| {
        let names = match &rule.names {
            Names::All => String::new(),
            Names::Exact(name) => format!(" ={name}"),
            Names::Prefix(name) => format!(" {name}*"),
        };
        let intentions = rule.intentions.map_or("", Access::as_str);
        let access = rule.access.as_str();
        let text = format!("{}{names} {access} {intentions}", rule.resource);
        text.trim_end().to_owned()
    };
    rules.iter().map(spell).collect()
}

#[test]
fn every_resource_is_parsed() {
    let text = r#"
        # All of them.
        acl = "read"
        keyring = "write"
        operator = "deny"
        mesh = "WRITE" // Consul reads any case.
        peering = ""
        agent "a" { policy = "read" }
        agent_prefix "" { policy = "write" }
        event "e" { policy = "deny" }
        event_prefix "e" { policy = "read" }
        identity "i" { policy = "read" }
        identity_prefix "" { policy = "read" }
        key "k/1" { policy = "list" }
        key_prefix "k/" { policy = "write" }
        node "n" { policy = "read" }
        node_prefix "" { policy = "read" }
        query "q" { policy = "read" }
        query_prefix "" { policy = "read" }
        service "web" {
          policy = "write"
          intentions = "read"
        }
        service_prefix "" { policy = "read" }
        session "n" { policy = "read" }
        session_prefix "" { policy = "write" }
    "#;
    assert_eq!(
        read(text),
        [
            "acl read",
            "keyring write",
            "operator deny",
            "mesh write",
            "agent =a read",
            "agent * write",
            "event =e deny",
            "event e* read",
            "key =k/1 list",
            "key k/* write",
            "node =n read",
            "node * read",
            "query =q read",
            "query * read",
            "service =web write read",
            "service * read",
            "session =n read",
            "session * write",
        ]
    );
}

#[test]
fn spellings_are_equivalent() {
    let expected = ["service =web read write", "service * deny"];
    for text in [
        "service \"web\" { policy = \"read\", intentions = \"write\" }\nservice_prefix \"\" { policy = \"deny\" }",
        "service web { policy = \"read\" intentions = \"write\" } service_prefix \"\" { policy = \"deny\" }",
        "service = { web = { policy = \"read\", intentions = \"write\" } }, service_prefix = { \"\" = { policy = \"deny\" } }",
        "service { web { policy = \"read\" intentions = \"write\" } } \"service_prefix\" \"\" { \"policy\" = \"deny\" }",
        "service \"w\\u0065b\" { /* x */ policy = \"read\"\nintentions = \"write\" } service_prefix \"\" { policy = \"deny\" }",
        r#"{"service": {"web": {"policy": "read", "intentions": "write"}}, "service_prefix": {"": {"policy": "deny"}}}"#,
        r#" {"service": [{"web": [{"policy": "read", "intentions": "write"}]}], "service_prefix": [{"": {"policy": "deny"}}]}"#,
        "Service \"web\" { Policy = \"READ\" Intentions = \"Write\" }\r\nSERVICE_PREFIX \"\" { policy = \"deny\" }\r\n",
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
    assert_eq!(read(" \n# nothing"), Vec::<String>::new());
    // Lines of a heredoc end with a newline, which is not part of the access level.
    let heredoc = "acl = <<-END\n  read\n END\nmesh = \"read\"";
    assert!(Rules::parse(heredoc).is_err_and(|e| e.to_string().contains("read\\n")));
    let twice = r#"{"node": {"a": {"policy": "read"}}, "node": {"b": {"policy": "read"}}}"#;
    assert_eq!(read(twice), ["node =a read", "node =b read"]);
}

#[test]
fn errors_name_the_invalid_rule() {
    for (text, part) in [
        ("acl = \"list\"", "Invalid acl policy: \"list\""),
        ("acl = 1", "Invalid acl policy"),
        ("acl \"x\" { policy = \"read\" }", "Invalid acl policy"),
        (
            "service \"a\" { policy = \"rea\" }",
            "Invalid service policy: the policy of \"a\" is \"rea\"",
        ),
        ("service \"a\" { }", "Invalid service policy"),
        (
            "service \"a\" { policy = \"list\" }",
            "Invalid service policy",
        ),
        (
            "service \"a\" { policy = \"read\" intentions = \"x\" }",
            "Invalid service intentions policy",
        ),
        ("key_prefix \"a\" { policy = \"x\" }", "\"list\", "),
        (
            "node \"a\" { policy = \"read\" intentions = \"read\" }",
            "has no field \"intentions\"",
        ),
        (
            "service \"a\" { policy = \"read\" policy = \"write\" }",
            "The argument \"policy\" was already set",
        ),
        (
            "acl = \"read\" acl = \"read\"",
            "The argument \"acl\" was already set",
        ),
        (
            "service \"a\" { policy = ",
            "Failed to parse ACL rules: At 1:24: expected a value",
        ),
        (
            "service \"a\" {\n policy = \"read\"",
            "At 2:17: expected }, found the end",
        ),
        (
            "service \"a\" \"b\" { policy = \"read\" }",
            "has no field \"b\"",
        ),
        ("service { policy = \"read\" }", "needs a block"),
        ("service = \"read\"", "needs a name and a block"),
        (
            "foo \"a\" { policy = \"read\" }",
            "\"foo\" is not a resource",
        ),
        (
            "acl_prefix \"\" { policy = \"read\" }",
            "\"acl_prefix\" is not a resource",
        ),
        (
            "intention \"a\" { policy = \"read\" }",
            "\"intention\" is not a resource",
        ),
        (
            "namespace_prefix \"\" { foo \"a\" { policy = \"read\" } }",
            "\"foo\" is not a resource",
        ),
        ("service \"a { policy", "At 1:9: a quote is not closed"),
        ("service \"\\q\" {}", "\\q is not an escape"),
        (" /* open", "At 1:2: a comment is not closed"),
        ("service ! {}", "'!' has no meaning"),
        ("}", "expected a name or the end"),
        ("acl = \"read\" ]", "expected a name, found ]"),
        ("{\"acl\": ", "Failed to parse ACL rules: EOF"),
        ("{\"service\": {\"a\": {\"policy\": 1}}}", "is not text"),
    ] {
        let error = Rules::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn depth_is_bounded() {
    for text in [
        "a { ".repeat(100_000),
        "a = [".repeat(100_000),
        format!("acl = {}", "[".repeat(100_000)),
        "a ".repeat(100_000),
        format!("{{\"a\":{}", "[".repeat(100_000)),
    ] {
        assert!(Rules::parse(&text).is_err());
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "([a-z_\"{}=,\\[\\]<\\\\#/*\n 0-9é-]|service|policy|<<E\n){0,40}") {
        let _ = Rules::parse(&text);
    }
}
