//! Servers in separate processes, killed at random and with a full disk.
//!
//! The test binary runs itself. The children's work is in tests that do nothing unless a directory
//! is written to their standard input.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use legate_model::Node;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rand::Rng;

use super::durable::{config, open, try_open};
use super::{node, register, rows};
use crate::{OpenError, Store, WriteError};

const WRITERS: u64 = 8;

/// How often a writing process is killed.
const KILLS: u64 = 200;

/// Starts a test of this binary as a process. The output of the test is the part of each line
/// before `@`.
fn start(test: &str, wrapper: &[&str], directory: &Path) -> Child {
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    let arguments = [
        "--exact",
        test,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    let words: Vec<&str> = wrapper
        .iter()
        .copied()
        .chain([this])
        .chain(arguments)
        .collect();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{}", directory.display()).unwrap();
    child
}

/// The directory of a child.
fn given() -> Option<PathBuf> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    Some(PathBuf::from(line.trim())).filter(|path| !path.as_os_str().is_empty())
}

/// A node with a number as address, padded so that it needs space.
fn counted(writer: u64, count: u64) -> Node {
    Node {
        address: format!("{count}"),
        ..node(&format!("writer-{writer}"))
    }
}

fn count(store: &Store, writer: u64) -> u64 {
    let node = store.state().read().node(&format!("writer-{writer}"));
    node.map_or(0, |node| node.address.parse().unwrap())
}

#[tokio::test]
#[ignore = "run by the test that kills it"]
async fn child_that_writes() {
    let Some(directory) = given() else { return };
    let opened = open(&directory).await;
    let store = &opened.store;
    let write = |writer: u64| async move {
        let next = count(store, writer) + 1;
        let write = store.apply(register(counted(writer, next), None, Vec::new()));
        write.await.unwrap();
        (writer, next)
    };
    let mut writes: FuturesUnordered<_> = (0..WRITERS).map(write).collect();
    while let Some((writer, next)) = writes.next().await {
        // One system call, so that a line is complete or missing.
        let line = format!("{writer} {next} @\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        writes.push(write(writer));
    }
}

/// Kills the child some time after its first acknowledged write. Returns the last acknowledged
/// write of each writer.
fn kill(mut child: Child, after: Duration) -> Vec<u64> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    while !lines.contains('@') {
        assert!(
            output.read_line(&mut lines).unwrap() > 0,
            "it ended: {lines}"
        );
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    output.read_to_string(&mut lines).unwrap();
    let mut last = vec![0; WRITERS as usize];
    for line in lines.lines().filter_map(|line| line.strip_suffix(" @")) {
        let words: Vec<u64> = line
            .rsplit(' ')
            .take(2)
            .map(|word| word.parse().unwrap())
            .collect();
        last[words[1] as usize] = words[0];
    }
    last
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut last = vec![0; WRITERS as usize];
    for round in 0..KILLS {
        let child = start("tests::processes::child_that_writes", &[], directory.path());
        let after = Duration::from_micros(rand::rng().random_range(0..20_000));
        let acknowledged = kill(child, after);
        let opened = open(directory.path()).await;
        for (writer, last) in (0..).zip(&mut last) {
            let acknowledged = acknowledged[writer as usize].max(*last);
            let stored = count(&opened.store, writer);
            // The write in flight may be stored or not.
            assert!(
                stored == acknowledged || stored == acknowledged + 1,
                "round {round}: {acknowledged} acknowledged, {stored} stored"
            );
            *last = stored;
        }
        opened.stop().await;
    }
    assert!(last.iter().sum::<u64>() > KILLS);
}

#[tokio::test]
async fn a_second_process_learns_the_holder_of_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let child = start("tests::processes::child_that_writes", &[], directory.path());
    let holder = format!("process {}", child.id());
    // After its first acknowledgement the child has locked the directory.
    let mut child = child;
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    while !lines.contains('@') {
        assert!(
            output.read_line(&mut lines).unwrap() > 0,
            "it ended: {lines}"
        );
    }
    let refused = try_open(config(directory.path(), None)).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let error = refused.err().expect("it is refused");
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&holder), "{error}");
}

/// Limits the size of files that this process may write.
fn limit_files(bytes: Option<u64>) {
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, bytes.unwrap_or(hard), hard).unwrap();
}

/// A node that needs several pages.
fn large(number: u64) -> Node {
    let mut large = node(&format!("large-{number}"));
    large.meta.insert("text".to_owned(), "x".repeat(20_000));
    large
}

#[tokio::test]
#[ignore = "run by the test that gives it a small disk"]
async fn child_on_a_full_disk() {
    let Some(directory) = given() else { return };
    let opened = open(&directory).await;
    let store = &opened.store;
    let write = |number| store.apply(register(large(number), None, Vec::new()));
    write(0).await.unwrap();
    let mut next = 1;
    for round in 0..5 {
        let size = std::fs::metadata(directory.join("store.redb"))
            .unwrap()
            .len();
        limit_files(Some(size + round * 10_000));
        // The second time with the file closed. Less than before may still fit.
        for _ in 0..2 {
            let error = loop {
                match write(next).await {
                    Ok(_) => next += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, WriteError::Unavailable(_)), "{error}");
            assert!(error.to_string().contains("make room"), "{error}");
        }
        let nodes = store.state().read().nodes().len() as u64;
        assert_eq!(nodes, next, "reads go on, and show what is stored");
        assert!(store.save(std::io::sink()).is_ok());
        limit_files(None);
        write(next).await.unwrap();
        next += 1;
    }
    let before = rows(store);
    opened.stop().await;
    let opened = open(&directory).await;
    assert_eq!(rows(&opened.store), before);
    opened.stop().await;
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    // Without the trap, the kernel kills a process that exceeds its limit.
    let wrapper = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];
    let test = "tests::processes::child_on_a_full_disk";
    let child = start(test, &wrapper, directory.path());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    assert!(directory.path().join("store.redb").exists());
}
