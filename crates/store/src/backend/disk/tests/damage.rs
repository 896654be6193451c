//! Damaged files are refused and unchanged; readable files have their original contents.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::memory::{Files, Memory};
use super::{after, batch, first, written};
use crate::backend::Loaded;
use crate::backend::disk::file::{File, Unopened};
use crate::backend::disk::log::{self, PAGE, SIZE};
use crate::backend::disk::{Directory, Disk};
use crate::open_error::OpenError;

fn paths(directory: &Path) -> [PathBuf; 2] {
    ["store.redb", log::NAME].map(|name| directory.join(name))
}

fn read(directory: &Path) -> Files {
    paths(directory).map(|path| std::fs::read(path).unwrap())
}

/// Opens files. The error says why they were refused; they are unchanged then.
fn open(files: &Files) -> Result<Loaded, String> {
    let memory = Memory::new(files.clone());
    // In test builds redb panics in some cases in which other builds return errors.
    let opened = catch_unwind(AssertUnwindSafe(|| memory.open()));
    let reason = match opened {
        Ok(Ok((loaded, _))) => return Ok(loaded),
        Ok(Err(Unopened::Io(error))) => panic!("{error}"),
        Ok(Err(Unopened::Damaged(reason))) => reason,
        Err(_) => "a panic".to_owned(),
    };
    assert!(memory.steps().is_empty(), "the files were changed");
    Err(reason)
}

/// Whether files were refused. Otherwise they have these contents.
fn refused(files: &Files, contents: &Loaded) -> bool {
    match open(files) {
        Ok(loaded) => {
            let index = loaded.index;
            assert!(loaded == *contents, "something else was read: {index}");
            false
        }
        Err(_) => true,
    }
}

/// The files after a kill and after a clean stop, with their contents.
fn states(commits: u64) -> ([Files; 2], Loaded) {
    let directory = tempfile::tempdir().unwrap();
    let (_, file, contents) = written(directory.path(), commits);
    let killed = read(directory.path());
    file.close().unwrap();
    ([killed, read(directory.path())], contents)
}

#[test]
fn flipped_bits_are_found_or_do_not_matter() {
    let mut random = StdRng::seed_from_u64(1);
    let (states, contents) = states(5);
    for files in states {
        for number in 0..2 {
            let in_use = files[number].iter().enumerate();
            let in_use = in_use.filter(|(_, byte)| **byte != 0);
            let in_use: Vec<usize> = in_use.map(|(at, _)| at).collect();
            let header = [320, 64][number];
            let in_header = (0..header).flat_map(|at| (0..8).map(move |bit| (at, 1 << bit)));
            let anywhere = (0..300).map(|_| {
                let at = in_use[random.random_range(0..in_use.len())];
                (at, 1_u8 << random.random_range(0..8))
            });
            let mut found = 0;
            for (at, bit) in in_header.chain(anywhere) {
                let mut damaged = files.clone();
                damaged[number][at] ^= bit;
                found += usize::from(refused(&damaged, &contents));
            }
            assert!(found > 100, "{found} in file {number}");
        }
    }
}

#[test]
fn a_damaged_record_that_was_acknowledged_is_refused() {
    // The log has two records.
    let ([killed, _], contents) = states(2);
    let begins = |page: &[u8]| page.starts_with(&killed[1][..16]);
    let records: Vec<usize> = killed[1]
        .chunks(PAGE)
        .enumerate()
        .filter_map(|(number, page)| begins(page).then_some(number * PAGE))
        .collect();
    assert_eq!(records.len(), 3, "{records:?}");
    for (number, at) in records[..2].iter().enumerate() {
        for offset in [16, 48, 52, 60, 100, PAGE + 1] {
            let mut damaged = killed.clone();
            damaged[1][at + offset] ^= 1;
            let reason = open(&damaged).unwrap_err();
            let expected = format!("damaged after index {}", number + 1);
            assert!(reason.contains(&expected), "{reason}");
        }
    }
    // A record that was not written completely, as nothing stands behind it.
    let mut torn = killed.clone();
    torn[1][records[1] + PAGE..].fill(0);
    let loaded = open(&torn).unwrap();
    assert_eq!(loaded, after(&first(), &batch(2, 10)));
    assert!(!refused(&killed, &contents));
}

#[test]
fn a_file_that_lost_its_end_or_its_beginning_is_refused() {
    let (states, contents) = states(5);
    for [database, log] in states {
        let refused = |database: &[u8], log: &[u8]| {
            let files = [database.to_vec(), log.to_vec()];
            refused(&files, &contents)
        };
        let lengths = [0, 1, 511, 512, 4095, 4096, 4097, database.len() / 2];
        let ends = [database.len() - 4096, database.len() - 1];
        for length in lengths.into_iter().chain(ends) {
            assert!(refused(&database[..length], &log), "{length}");
        }
        let zeros = [vec![0; 4096], database[4096..].to_vec()].concat();
        assert!(refused(&zeros, &log));
        assert!(refused(&[b'x'; 20_000], &log));
        for length in [1, 15, 16, 512, PAGE, SIZE / 2, SIZE - 1] {
            assert!(refused(&database, &log[..length]), "{length}");
        }
        assert!(refused(&database, &[&log[..], &[0]].concat()));
        let zeros = [vec![0; PAGE], log[PAGE..].to_vec()].concat();
        assert!(refused(&database, &zeros));
        assert!(refused(&database, &[b'x'; SIZE]));
    }
}

#[test]
fn a_log_of_another_database_or_another_copy_is_refused() {
    let refused = |database: &[u8], log: &[u8]| {
        let files = [database.to_vec(), log.to_vec()];
        let reason = open(&files).unwrap_err();
        assert!(reason.contains("another copy of it"), "{reason}");
    };
    // Copies of one store that was stopped and started again.
    let store = tempfile::tempdir().unwrap();
    let (path, mut file, _) = written(store.path(), 2);
    let mut copies = vec![read(store.path())];
    for index in 4..8 {
        file.commit(&batch(index, 5)).unwrap();
        file.close().unwrap();
        copies.push(read(store.path()));
        file = File::open(&path).unwrap().1.unwrap();
    }
    for (older, [database, log]) in copies.iter().enumerate() {
        for (newer, [newer_database, newer_log]) in copies.iter().enumerate().skip(older + 1) {
            refused(database, newer_log);
            // The log before the newest one is contained in the database.
            if newer > older + 1 {
                refused(newer_database, log);
            }
        }
    }
    let [_, [database, log]] = states(3).0;
    refused(&database, &copies[0][1]);
    refused(&copies[0][0], &log);
}

#[test]
fn a_database_without_its_log_is_refused_unless_an_empty_file_takes_its_place() {
    for commits in [0, 2, 5] {
        let (states, contents) = states(commits);
        for (is_stopped, [database, _]) in [false, true].into_iter().zip(states) {
            let directory = tempfile::tempdir().unwrap();
            let [path, log] = paths(directory.path());
            std::fs::write(&path, &database).unwrap();
            let Err(Unopened::Damaged(reason)) = File::open(&path).map(|_| ()) else {
                panic!("it is opened");
            };
            assert!(
                reason.contains("store.wal is missing") && reason.contains("an empty file"),
                "{reason}"
            );
            assert!(!log.exists());
            assert_eq!(std::fs::read(&path).unwrap(), database);
            std::fs::write(&log, "").unwrap();
            let (loaded, file) = File::open(&path).unwrap();
            if is_stopped {
                assert_eq!(loaded, contents);
            }
            let next = batch(loaded.index + 1, 5);
            file.unwrap().commit(&next).unwrap();
            assert_eq!(File::open(&path).unwrap().0, after(&loaded, &next));
        }
    }
}

/// Removes what servers without a log do not write.
fn forget_log(path: &Path) {
    let database = redb::Database::open(path).unwrap();
    let txn = database.begin_write().unwrap();
    {
        let about = redb::TableDefinition::<&str, &[u8]>::new("about");
        let mut about = txn.open_table(about).unwrap();
        assert!(about.remove("log").unwrap().is_some());
    }
    txn.commit().unwrap();
}

#[test]
fn a_database_that_never_had_a_log_gets_one() {
    let directory = tempfile::tempdir().unwrap();
    let (path, file, contents) = written(directory.path(), 2);
    file.close().unwrap();
    forget_log(&path);
    let Err(Unopened::Damaged(reason)) = File::open(&path).map(|_| ()) else {
        panic!("it is opened with a log that it does not have");
    };
    assert!(reason.contains("belongs to another database"), "{reason}");
    std::fs::remove_file(directory.path().join(log::NAME)).unwrap();
    let (loaded, file) = File::open(&path).unwrap();
    assert_eq!(loaded, contents);
    let mut file = file.unwrap();
    file.commit(&batch(4, 5)).unwrap();
    let (loaded, _) = File::open(&path).unwrap();
    assert_eq!(loaded, after(&contents, &batch(4, 5)));
}

#[test]
fn a_replacement_is_complete_at_every_step() {
    let directory = tempfile::tempdir().unwrap();
    let (path, file, old) = written(directory.path(), 2);
    let [database, log] = read(directory.path());
    let new = after(&old, &batch(4, 3));
    drop(File::create(&path, &new).unwrap());
    drop(file);
    let [new_database, new_log] = read(directory.path());
    // The database is replaced before the log begins again.
    for (files, expected) in [
        ([&database, &log], &old),
        ([&new_database, &log], &new),
        ([&new_database, &new_log], &new),
    ] {
        let loaded = open(&files.map(Vec::clone)).unwrap();
        assert_eq!(loaded, *expected);
    }
    open(&[database, new_log]).unwrap_err();
}

#[test]
fn the_refusal_names_the_file_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (path, file, _) = written(directory.path(), 1);
    file.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let locked = Directory::lock(directory.path()).unwrap();
    let error = Disk::open(locked).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("store.redb is damaged") && text.contains("snapshot"),
        "{text}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}
