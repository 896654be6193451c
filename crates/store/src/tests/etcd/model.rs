//! Sequences of random commands to several servers, with restarts: all servers, a store in memory
//! and a naive model agree.

use proptest::prelude::*;

use super::cluster::{Cluster, Server};
use super::sharing::agree;
use crate::tests::random::{Naive, any_command, assert_same};
use crate::tests::{attempt, rows};
use crate::{Applied, Command, EtcdConfig, Rejected, Store, Unavailable, WriteError};

/// How often a change or a start is tried, each time for as long as it waits for etcd or a leader.
const ATTEMPTS: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    /// A command to one of the servers.
    Apply(usize, Command),
    /// Stops and starts a server.
    Restart(usize),
    /// Kills and starts a server.
    Crash(usize),
    /// One server saves a snapshot, and another restores it.
    Restore(usize, usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let server = || 0..3_usize;
    prop_oneof![
        30 => (server(), any_command()).prop_map(|(at, command)| Step::Apply(at, command)),
        1 => server().prop_map(Step::Restart),
        1 => server().prop_map(Step::Crash),
        1 => (server(), server()).prop_map(|(from, to)| Step::Restore(from, to)),
    ]
}

/// Changes a server, again if it was not available: on a busy machine a new leader can take longer than a change
/// waits for it. `None`: it was changed, but the server could not say so in time.
async fn change<T>(
    servers: &[Server],
    before: &Store,
    attempt: impl AsyncFn() -> Result<T, Unavailable>,
) -> Option<T> {
    for _ in 0..ATTEMPTS {
        match attempt().await {
            Ok(changed) => return Some(changed),
            Err(Unavailable { .. }) => {
                agree(servers).await;
                if rows(&servers[0].store) != rows(before) {
                    return None;
                }
            }
        }
    }
    panic!("no server could commit in {ATTEMPTS} attempts");
}

/// Applies a command to a server.
async fn apply(store: &Store, command: &Command) -> Result<Result<Applied, Rejected>, Unavailable> {
    match store.apply(command.clone()).await {
        Ok(applied) => Ok(Ok(applied)),
        Err(WriteError::Rejected(rejected)) => Ok(Err(rejected)),
        Err(WriteError::Unavailable(unavailable)) => Err(unavailable),
    }
}

/// Restores what a server saved, read with the keys of a server.
async fn restore(store: &Store, server: &Server, saved: &[u8]) -> Result<Applied, Unavailable> {
    let snapshot = server.store.read_snapshot(std::io::Cursor::new(saved));
    store.restore(snapshot.unwrap()).await
}

/// Starts a server, which gives up if etcd does not answer in time.
async fn open(config: &EtcdConfig) -> Server {
    let mut opened = Server::open(config.clone()).await;
    for _ in 1..ATTEMPTS {
        if opened.is_ok() {
            break;
        }
        opened = Server::open(config.clone()).await;
    }
    opened.unwrap()
}

async fn run(config: &EtcdConfig, steps: Vec<Step>) {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(open(config).await);
    }
    let memory = Store::new();
    let mut naive = Naive::default();
    for step in steps {
        match step {
            Step::Apply(at, command) => {
                let apply = async || apply(&servers[at].store, &command).await;
                let result = change(&servers, &memory, apply).await;
                let expected = naive.expected(&command);
                let in_memory = attempt(&memory, command);
                match (&result, &in_memory) {
                    (None, _) => {}
                    // A no-op is answered from the server's own state, without a commit.
                    (Some(Ok(ours)), Ok(theirs)) if !theirs.changed => assert!(!ours.changed),
                    (Some(result), _) => assert_eq!(*result, in_memory),
                }
                naive = expected.flatten().unwrap_or(naive);
            }
            Step::Restart(at) => {
                servers.remove(at).stop().await;
                servers.insert(at, open(config).await);
            }
            Step::Crash(at) => {
                drop(servers.remove(at));
                servers.insert(at, open(config).await);
            }
            Step::Restore(from, to) => {
                let mut saved = Vec::new();
                servers[from].store.save(&mut saved).unwrap();
                let restored = async || restore(&servers[to].store, &servers[to], &saved).await;
                change(&servers, &memory, restored).await;
                restore(&memory, &servers[to], &saved).await.unwrap();
            }
        }
        // A server may answer from a slightly older state, unlike the model.
        agree(&servers).await;
        assert_eq!(rows(&servers[0].store), rows(&memory));
        assert_same(&servers[0].store.state(), &naive);
    }
}

#[test]
fn servers_memory_and_model_agree() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.unwrap();
    let cluster = runtime.block_on(Cluster::start(3));
    let mut config = ProptestConfig::with_cases(16);
    config.failure_persistence = None;
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let mut case = 0;
    let case = std::cell::RefCell::new(&mut case);
    let ran = runner.run(&prop::collection::vec(any_step(), 1..40), |steps| {
        let mut config = cluster.config();
        **case.borrow_mut() += 1;
        config.prefix = format!("case{}", case.borrow());
        runtime.block_on(run(&config, steps));
        Ok(())
    });
    ran.unwrap();
}
