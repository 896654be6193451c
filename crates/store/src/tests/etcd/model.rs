//! Sequences of random commands to several servers, with restarts: all servers, a store in memory
//! and a naive model agree.

use proptest::prelude::*;

use super::cluster::{Cluster, Server};
use super::sharing::agree;
use crate::tests::random::{Naive, any_command, assert_same};
use crate::tests::{attempt, rows};
use crate::{Applied, Command, EtcdConfig, Rejected, Store, WriteError};

/// How often a command is tried, each time for as long as a write waits for a leader.
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

/// Applies a command to a server. `None`: it was applied, but the server could not say so in time.
async fn apply(
    servers: &[Server],
    at: usize,
    command: &Command,
    before: &Store,
) -> Option<Result<Applied, Rejected>> {
    for _ in 0..ATTEMPTS {
        match servers[at].store.apply(command.clone()).await {
            Ok(applied) => return Some(Ok(applied)),
            Err(WriteError::Rejected(rejected)) => return Some(Err(rejected)),
            // On a busy machine a new leader can take longer than a write waits for it.
            Err(WriteError::Unavailable(_)) => {
                agree(servers).await;
                if rows(&servers[at].store) != rows(before) {
                    return None;
                }
            }
        }
    }
    panic!("server {at} could not commit in {ATTEMPTS} attempts: {command:?}");
}

async fn run(config: &EtcdConfig, steps: Vec<Step>) {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::open(config.clone()).await.unwrap());
    }
    let memory = Store::new();
    let mut naive = Naive::default();
    for step in steps {
        match step {
            Step::Apply(at, command) => {
                let result = apply(&servers, at, &command, &memory).await;
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
                servers.insert(at, Server::open(config.clone()).await.unwrap());
            }
            Step::Crash(at) => {
                drop(servers.remove(at));
                servers.insert(at, Server::open(config.clone()).await.unwrap());
            }
            Step::Restore(from, to) => {
                let mut saved = Vec::new();
                servers[from].store.save(&mut saved).unwrap();
                for store in [&servers[to].store, &memory] {
                    let snapshot = servers[to]
                        .store
                        .read_snapshot(std::io::Cursor::new(&*saved))
                        .unwrap();
                    store.restore(snapshot).await.unwrap();
                }
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
