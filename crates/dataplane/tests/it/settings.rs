//! Command line, environment and exit codes of the binary.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread::Scope;
use std::time::Duration;

use legate_dataplane::running::envoy_health;

mod secrets;

fn dataplane(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_legate-dataplane"))
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// `2026/01/02 03:04:05 message` as the last line, and nothing on standard output.
fn fatal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(stdout(output), "");
    let text = stderr(output);
    let last = text.lines().last().unwrap();
    let (stamp, message) = last.split_at(20);
    let shape: String = stamp
        .chars()
        .map(|c| if c.is_ascii_digit() { '9' } else { c })
        .collect();
    assert_eq!(shape, "9999/99/99 99:99:99 ", "{text}");
    message.to_owned()
}

#[test]
fn version_has_two_lines() {
    for flag in ["-version", "--version", "-version=true"] {
        let output = dataplane(&[flag], &[]);
        assert_eq!(output.status.code(), Some(0));
        let text = stdout(&output);
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some(concat!("Legate Dataplane v", env!("CARGO_PKG_VERSION")))
        );
        assert!(lines.next().unwrap().starts_with("Revision "), "{text}");
        assert_eq!(lines.next(), None);
    }
}

#[test]
fn help_is_usage_and_a_failure() {
    let output = dataplane(&["-h"], &[]);
    assert_eq!(fatal(&output), "flag: help requested");
    let text = stderr(&output);
    assert!(text.starts_with("Usage:\n  -addresses string\n"), "{text}");
    assert!(
        text.contains("Environment variable: DP_CONSUL_ADDRESSES."),
        "{text}"
    );
}

#[test]
fn errors_in_flags_come_twice_with_the_usage_between() {
    for (arguments, message) in [
        (&["-nope"][..], "flag provided but not defined: -nope"),
        (&["---x"], "bad flag syntax: ---x"),
        (
            &["-grpc-port", "abc"],
            "invalid value \"abc\" for flag -grpc-port: strconv.Atoi: parsing \"abc\": invalid syntax",
        ),
    ] {
        let output = dataplane(arguments, &[]);
        assert_eq!(fatal(&output), message);
        assert!(
            stderr(&output).starts_with(&format!("{message}\nUsage:\n")),
            "{output:?}"
        );
    }
}

#[test]
fn other_errors_are_one_line() {
    for (arguments, variables, message) in [
        (&[][..], &[][..], "consul addresses not specified"),
        (&["-addresses", "x"], &[], "proxy ID not specified"),
        // A boolean flag takes no separate value: flags end at the next argument.
        (
            &["-log-json", "false", "-addresses", "x"],
            &[],
            "consul addresses not specified",
        ),
        (
            &[],
            &[("DP_CONSUL_ADDRESSES", "x")],
            "proxy ID not specified",
        ),
        (
            &["-addresses="],
            &[("DP_CONSUL_ADDRESSES", "x")],
            "consul addresses not specified",
        ),
        (
            &["-version"],
            &[("DP_LOG_JSON", "yes")],
            "unable to parse environment variable DP_LOG_JSON=yes as *bool",
        ),
        (
            &["-log-json", "-config-file", "x.json"],
            &[],
            "open x.json: no such file or directory",
        ),
    ] {
        let output = dataplane(arguments, variables);
        assert_eq!(fatal(&output), message);
        assert_eq!(stderr(&output).lines().count(), 1, "{output:?}");
    }
}

/// Responds to one connection with `answer`.
fn admin<'scope>(scope: &'scope Scope<'scope, '_>, answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    scope.spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut buffer = [0; 256];
        while !request.ends_with(b"\r\n\r\n") {
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0, "the request ended early");
            request.extend_from_slice(&buffer[..length]);
        }
        assert!(request.starts_with(b"GET /ready HTTP/1.1\r\n"));
        stream.write_all(answer.as_bytes()).unwrap();
    });
    address
}

#[test]
fn the_health_probe_reports_by_code_and_text() {
    for (answer, code, out, err) in [
        (
            "HTTP/1.1 200 OK\r\n\r\nLIVE\n",
            0,
            "Envoy proxy is ready.\n",
            "",
        ),
        (
            "HTTP/1.1 302 Found\r\n\r\n",
            0,
            "Envoy proxy is ready.\n",
            "",
        ),
        (
            "HTTP/1.1 503 Service Unavailable\r\n\r\n",
            1,
            "",
            "Envoy proxy is not ready. Received status code: 503\n",
        ),
    ] {
        std::thread::scope(|scope| {
            let port = admin(scope, answer).port().to_string();
            // The probe ignores an invalid level.
            let variables = [
                ("DP_ENVOY_ADMIN_BIND_PORT", port.as_str()),
                ("DP_LOG_LEVEL", "loud"),
            ];
            let output = dataplane(&["-check-proxy-health"], &variables);
            assert_eq!(output.status.code(), Some(code), "{output:?}");
            assert_eq!(
                stdout(&output),
                format!("Checking envoy proxy health\n{out}")
            );
            assert_eq!(stderr(&output), err);
        });
    }
}

#[test]
fn the_health_probe_reports_a_missing_answer() {
    let port = legate_testkit::network::free_port().to_string();
    let output = dataplane(
        &["-check-proxy-health", "-envoy-admin-bind-port", &port],
        &[],
    );
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "Error connecting to Envoy admin endpoint: Get \"http://127.0.0.1:{port}/ready\": "
    );
    assert!(stderr(&output).starts_with(&expected), "{output:?}");
}

#[test]
fn the_health_probe_tries_the_next_address_and_gives_up_in_time() {
    std::thread::scope(|scope| {
        let nobody = SocketAddr::from(([127, 0, 0, 1], legate_testkit::network::free_port()));
        let somebody = admin(scope, "HTTP/1.1 200 OK\r\n\r\n");
        let health = envoy_health(&[nobody, somebody], Duration::from_secs(30)).unwrap();
        assert_eq!(health.as_u16(), 200);
    });
    // Accepts the connection and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let error = envoy_health(&[address], Duration::from_millis(50)).unwrap_err();
    assert!(error.to_string().contains("timed out"), "{error}");
    std::thread::scope(|scope| {
        let odd = admin(scope, "SSH-2.0-OpenSSH\r\n");
        assert!(
            envoy_health(&[odd], Duration::from_secs(30))
                .unwrap_err()
                .to_string()
                .contains("not HTTP")
        );
    });
}
