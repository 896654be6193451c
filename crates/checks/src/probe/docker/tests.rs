use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use legate_runtime::Scope;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use super::*;
use crate::probe::Prober;
use crate::settings::Settings;
use CheckStatus::{Critical, Passing, Warning};

/// The daemon's reaction to a call.
#[derive(Clone)]
enum Answer {
    /// Sends this and closes the connection.
    Send(Vec<u8>),
    /// Sends this and resets the connection.
    Reset(Vec<u8>),
    /// Sends this and leaves the connection open.
    Hold(Vec<u8>),
}

use Answer::{Hold, Reset, Send};

fn http(status: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    [
        format!("HTTP/1.1 {status}\r\n\r\n").as_bytes(),
        body.as_ref(),
    ]
    .concat()
}

fn created() -> Answer {
    Send(http("201 Created", r#"{"Id":"e1"}"#))
}

fn ended(code: i32) -> Answer {
    Send(http(
        "200 OK",
        format!(r#"{{"Running":false,"ExitCode":{code}}}"#),
    ))
}

fn frame(output: u8, text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&[output, 0, 0, 0], &length[..], text.as_bytes()].concat()
}

/// The received calls: request lines and bodies.
type Calls = Arc<Mutex<Vec<(String, String)>>>;

/// Handles one call; returns the stream if it must remain open.
async fn take<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    answer: Answer,
    calls: &Calls,
) -> Option<S> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    // The connection is reset because the request was not read completely.
    let unread = usize::from(matches!(answer, Reset(_)));
    let mut body = vec![0; length - unread];
    stream.read_exact(&mut body).await.unwrap();
    let line = head.lines().next().unwrap().to_owned();
    let body = String::from_utf8(body).unwrap();
    calls.lock().unwrap().push((line, body));
    let (Send(bytes) | Reset(bytes) | Hold(bytes)) = &answer;
    // The peer may have stopped reading.
    let _ = stream.write_all(bytes).await;
    matches!(answer, Hold(_)).then_some(stream)
}

/// A daemon that handles calls in this order; further calls are refused.
struct Docker {
    host: String,
    calls: Calls,
    _scope: Scope,
    _folder: TempDir,
}

fn docker(answers: Vec<Answer>) -> Docker {
    let (scope, folder) = (Scope::new("test"), tempfile::tempdir().unwrap());
    let path = folder.path().join("docker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let calls = Calls::default();
    let taken = Arc::clone(&calls);
    scope.spawn("docker", async move {
        let mut held = Vec::new();
        for answer in answers {
            let (stream, _) = listener.accept().await.unwrap();
            held.extend(take(stream, answer, &taken).await);
        }
        drop(listener);
        std::future::pending::<Result<(), Infallible>>().await
    });
    Docker {
        host: format!("unix://{}", path.display()),
        calls,
        _scope: scope,
        _folder: folder,
    }
}

fn check() -> CheckType {
    CheckType {
        docker_container_id: "web.1".to_owned(),
        script_args: vec!["/bin/test".to_owned(), "a b".to_owned()],
        ..CheckType::default()
    }
}

async fn run_at(host: &str, check: CheckType) -> RunResult {
    let settings = Settings {
        docker_host: host.to_owned(),
        ..Settings::default()
    };
    Prober::new(settings).run(&check).await
}

async fn run(answers: Vec<Answer>) -> RunResult {
    run_at(&docker(answers).host, check()).await
}

#[tokio::test]
async fn exit_codes_map_to_statuses_and_both_outputs_are_retained() {
    let printed = [
        frame(1, "out "),
        frame(2, "err "),
        frame(1, ""),
        frame(1, "end"),
    ]
    .concat();
    for (code, expected) in [(0, Passing), (1, Warning), (2, Critical), (137, Critical)] {
        let docker = docker(vec![created(), Send(http("200 OK", &printed)), ended(code)]);
        let found = run_at(&docker.host, check()).await;
        assert_eq!(found, (expected, "out err end".to_owned()));
        let calls = docker.calls.lock().unwrap();
        let lines: Vec<&str> = calls.iter().map(|(line, _)| line.as_str()).collect();
        assert_eq!(
            lines,
            [
                "post /containers/web.1/exec http/1.1",
                "post /exec/e1/start http/1.1",
                "get /exec/e1/json http/1.1"
            ]
        );
        assert!(
            calls[0].1.contains(r#""Cmd":["/bin/test","a b"]"#),
            "{calls:?}"
        );
    }
}

#[tokio::test]
async fn the_end_of_a_long_output_is_retained() {
    let long = frame(1, &"x".repeat(1_000_000));
    let answers = vec![
        created(),
        Send(http("200 OK", [long, frame(2, "the end")].concat())),
        ended(0),
    ];
    let small = CheckType {
        output_max_size: 7,
        ..check()
    };
    let found = run_at(&docker(answers).host, small).await;
    let text = "Captured 7 of 1000007 bytes\n...\nthe end";
    assert_eq!(found, (Passing, text.to_owned()));
}

#[test]
fn frames_arrive_in_chunks_of_any_size() {
    let all = [frame(1, "one"), frame(2, ""), frame(2, "two")].concat();
    for size in 1..=all.len() {
        let (mut frames, mut output) = (Frames::default(), Output::new(100));
        for piece in all.chunks(size) {
            frames.read(piece, &mut output).unwrap();
        }
        assert_eq!(output.text(), "onetwo");
    }
}

#[tokio::test]
async fn the_exit_code_is_read_after_the_program_has_ended() {
    let running = Send(http("200 OK", r#"{"Running":true,"ExitCode":null}"#));
    let answers = vec![
        created(),
        // Docker does this after the complete output.
        Reset(http("200 OK", frame(1, "done"))),
        running.clone(),
        running,
        ended(1),
    ];
    assert_eq!(run(answers).await, (Warning, "done".to_owned()));
}

#[tokio::test]
async fn failures_are_critical_with_the_reason() {
    let send = |status, body: &str| Send(http(status, body));
    let nothing = || send("200 OK", "");
    let huge = "x".repeat(2 * MAX_ANSWER);
    for (answers, expected) in [
        (
            vec![send("404 Not Found", "{}")],
            "create exec failed for unknown container web.1",
        ),
        (
            vec![send("409 Conflict", "{}")],
            "create exec failed since container web.1 is paused or stopped",
        ),
        (
            vec![send("500 X", "no disk")],
            "container web.1 with status 500: no disk",
        ),
        (
            vec![send("201 Created", "[1")],
            "create exec response for container web.1 cannot be parsed",
        ),
        (
            vec![send("201 Created", r#"{"Id":"../x"}"#)],
            "\"../x\" is not an exec id",
        ),
        (vec![send("201 Created", &huge)], "larger than"),
        (
            vec![Send(Vec::new())],
            "create exec failed for container web.1: connection closed",
        ),
        (
            vec![Send(b"SSH-2.0\r\n".to_vec())],
            "create exec failed for container web.1: the answer is not HTTP",
        ),
        (
            vec![created(), send("404 X", "")],
            "start exec failed for container web.1: invalid exec id e1",
        ),
        (
            vec![created(), send("409 X", "")],
            "start exec failed since container web.1 is paused or stopped",
        ),
        (
            vec![created(), send("500 X", "oops")],
            "start exec failed for container web.1 with status 500: oops",
        ),
        (
            vec![created(), send("200 OK", "plain text")],
            "is not in Docker's frames",
        ),
        (
            vec![created(), nothing()],
            "inspect exec failed for container web.1: Docker cannot be reached",
        ),
        (
            vec![created(), nothing(), send("404 X", "")],
            "inspect exec failed for container web.1: invalid exec id e1",
        ),
        (
            vec![created(), nothing(), send("500 X", "oops")],
            "inspect exec failed for container web.1 with status 500: oops",
        ),
        (
            vec![created(), nothing(), nothing()],
            "inspect exec response for container web.1 cannot be parsed",
        ),
        (
            vec![created(), nothing(), send("200 OK", "{}")],
            "there is no exit code",
        ),
    ] {
        let (status, output) = run(answers).await;
        assert_eq!(status, Critical, "{output}");
        assert!(
            output.contains(expected),
            "{output:.200} has no {expected:?}"
        );
        assert!(output.len() <= 4096);
    }
}

#[tokio::test]
async fn every_call_ends_with_the_timeout() {
    let begun = Hold(http("200 OK", frame(1, "begun")));
    let running = http("200 OK", r#"{"Running":true}"#);
    for (answers, printed) in [
        (vec![Hold(Vec::new())], ""),
        (vec![created(), begun], "\n\nbegun"),
        (vec![created(), Send(http("200 OK", "")), Hold(running)], ""),
    ] {
        let soon = CheckType {
            timeout: Duration::from_millis(300),
            ..check()
        };
        let found = run_at(&docker(answers).host, soon).await;
        let text = format!("Timed out (300ms) running check{printed}");
        assert_eq!(found, (Critical, text));
    }
}

#[tokio::test]
async fn docker_may_listen_on_tcp_or_be_unreachable() {
    let (scope, calls) = (Scope::new("test"), Calls::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("tcp://{}", listener.local_addr().unwrap());
    scope.spawn("docker", async move {
        for answer in [created(), Send(http("200 OK", frame(1, "ok"))), ended(0)] {
            let (stream, _) = listener.accept().await.unwrap();
            take(stream, answer, &calls).await;
        }
        Ok::<_, Infallible>(())
    });
    assert_eq!(run_at(&host, check()).await, (Passing, "ok".to_owned()));
    for (host, expected) in [
        (host.as_str(), "refused"),
        (
            "unix:///no/such.sock",
            "Docker cannot be reached at unix:///no/such.sock: No such file",
        ),
        (
            "ssh://me:secret@there",
            "DOCKER_HOST is \"ssh://***@there\": it must be unix:///PATH or",
        ),
        (
            "tcp://me:secret@there:1",
            "DOCKER_HOST is \"tcp://***@there:1\"",
        ),
        ("tcp://there", "it must be unix:///PATH or tcp://HOST:PORT"),
    ] {
        let (status, output) = run_at(host, check()).await;
        assert_eq!(status, Critical, "{output}");
        assert!(output.contains(expected), "{output}");
    }
}
