//! Sequences of random commands, restarts and crashes: a store on disk, one in memory and a naive
//! model agree.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::durable::{Opened, open};
use super::random::{Naive, any_command, assert_same};
use super::{access, attempt, rows};
use crate::{Command, Rejected, Store, TokenKey, WriteError};

#[derive(Debug, Clone)]
enum Step {
    /// Concurrent commands.
    Apply(Vec<Command>),
    /// Stops and starts the server.
    Restart,
    /// Kills and starts the server.
    Crash,
    /// Saves a snapshot.
    Save,
    /// Restores the last snapshot.
    Restore,
}

fn any_secret_command() -> impl Strategy<Value = Command> {
    let name = || prop::sample::select(vec!["a", "b"]);
    prop_oneof![
        (name(), name()).prop_map(|(accessor, secret)| access::token(accessor, secret, "")),
        name().prop_map(|name| Command::DeleteToken(TokenKey::Accessor(name.to_owned()))),
        name().prop_map(access::ca),
        name().prop_map(access::method),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let command = prop_oneof![4 => any_command(), 1 => any_secret_command()];
    prop_oneof![
        12 => prop::collection::vec(command, 1..5).prop_map(Step::Apply),
        1 => Just(Step::Restart),
        2 => Just(Step::Crash),
        1 => Just(Step::Save),
        1 => Just(Step::Restore),
    ]
}

/// A store on disk, and its directories so far.
struct Server {
    opened: Option<Opened>,
    root: tempfile::TempDir,
    lives: u32,
    saved: Vec<u8>,
}

impl Server {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let opened = open(&root.path().join("0")).await;
        let mut server = Self {
            opened: Some(opened),
            root,
            lives: 0,
            saved: Vec::new(),
        };
        server.save();
        server
    }

    fn store(&self) -> &Store {
        &self.opened.as_ref().expect("it is open").store
    }

    fn save(&mut self) {
        let mut saved = Vec::new();
        self.store().save(&mut saved).unwrap();
        self.saved = saved;
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join(self.lives.to_string())
    }

    async fn restart(&mut self) {
        self.opened.take().expect("it is open").stop().await;
        self.opened = Some(open(&self.directory()).await);
    }

    /// Continues with a copy of the files of the running server, as after a kill.
    async fn crash(&mut self) {
        let old = self.directory();
        self.lives += 1;
        copy(&old, &self.directory());
        self.opened.take().expect("it is open").stop().await;
        self.opened = Some(open(&self.directory()).await);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for name in ["store.redb", "store.wal", "store.key"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn attempt_on(result: Result<crate::Applied, WriteError>) -> Result<crate::Applied, Rejected> {
    result.map_err(|error| match error {
        WriteError::Rejected(rejected) => rejected,
        WriteError::Unavailable(error) => panic!("{error}"),
    })
}

async fn run(steps: Vec<Step>) {
    let mut server = Server::new().await;
    let memory = Store::new();
    let mut naive = Naive::default();
    let mut saved = naive.clone();
    for step in steps {
        match step {
            Step::Restart => server.restart().await,
            Step::Crash => server.crash().await,
            Step::Save => {
                server.save();
                saved = naive.clone();
            }
            Step::Restore => {
                for store in [server.store(), &memory] {
                    let snapshot = server
                        .store()
                        .read_snapshot(std::io::Cursor::new(&*server.saved));
                    store.restore(snapshot.unwrap()).await.unwrap();
                }
                naive = saved.clone();
            }
            Step::Apply(commands) => {
                let together = commands.iter().cloned();
                let together = together.map(|command| server.store().apply(command));
                let results = futures_util::future::join_all(together).await;
                for (command, result) in commands.into_iter().zip(results) {
                    let expected = naive.expected(&command);
                    let in_memory = attempt(&memory, command);
                    assert_eq!(attempt_on(result), in_memory);
                    if let Some(expected) = expected {
                        assert_eq!(in_memory.is_ok(), expected.is_some());
                        naive = expected.unwrap_or(naive);
                    }
                }
            }
        }
        assert_eq!(rows(server.store()), rows(&memory));
        assert_same(&server.store().state(), &naive);
    }
    server.opened.take().expect("it is open").stop().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn disk_memory_and_model_agree(steps in prop::collection::vec(any_step(), 1..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
