//! The database file and its log after power failures and damage.

mod damage;
mod failures;
mod memory;
mod power_loss;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::file::File;
use crate::backend::{Batch, Commit, KeyBytes, Loaded};

fn key(number: u32) -> KeyBytes {
    format!("key {number:04}").into_bytes().into()
}

/// A batch of `rows` rows that depend on the index.
fn batch(index: u64, rows: u32) -> Batch {
    let changed = (0..rows).map(|row| {
        // Some rows are removed and added again, some are longer than a page.
        let number = (index as u32 * 7 + row * 3) % 40;
        let value = format!("{index} {row} ").repeat(1 + (row as usize * 97) % 900);
        let removed = number.is_multiple_of(5) && index.is_multiple_of(2);
        (key(number), (!removed).then(|| value.into_bytes()))
    });
    Batch {
        base: index - 1,
        index,
        rows: changed.collect(),
        commit: Commit::default(),
    }
}

/// The contents after a commit.
fn after(loaded: &Loaded, batch: &Batch) -> Loaded {
    let mut rows: BTreeMap<_, _> = loaded.rows.iter().cloned().collect();
    for (key, value) in &batch.rows {
        match value {
            Some(value) => rows.insert(key.clone(), value.clone()),
            None => rows.remove(key),
        };
    }
    Loaded {
        header: loaded.header.clone(),
        index: batch.index,
        rows: rows.into_iter().collect(),
    }
}

fn first() -> Loaded {
    Loaded {
        header: b"header".to_vec(),
        index: 1,
        rows: (0..30).map(|n| (key(n), vec![n as u8; 300])).collect(),
    }
}

/// Creates a file with this many commits. Returns its path, the open file and its contents.
fn written(directory: &Path, commits: u64) -> (PathBuf, File, Loaded) {
    let path = directory.join("store.redb");
    let mut contents = first();
    let mut file = File::create(&path, &contents).unwrap();
    for index in 2..2 + commits {
        let batch = batch(index, 10);
        file.commit(&batch).unwrap();
        contents = after(&contents, &batch);
    }
    (path, file, contents)
}
