//! A damaged file is refused and unchanged; a readable file has its original contents.

use std::panic::catch_unwind;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{batch, written};
use crate::backend::Loaded;
use crate::backend::disk::acknowledged::Acknowledged;
use crate::backend::disk::file::{File, Unopened};
use crate::backend::disk::{Directory, Disk};
use crate::open_error::OpenError;

/// Opens a file with these bytes. `true` if it was refused and is unchanged.
fn refused(path: &Path, bytes: &[u8], contents: &Loaded) -> bool {
    std::fs::write(path, bytes).unwrap();
    Acknowledged::open(path).note(contents.index);
    // In test builds redb panics in some cases in which other builds return errors.
    let opened = catch_unwind(|| File::open(path).map(|(loaded, _)| loaded));
    match opened {
        Ok(Ok(loaded)) => {
            assert!(
                loaded == *contents,
                "something else was read: {}",
                loaded.index
            );
            false
        }
        Ok(Err(Unopened::Io(error))) => panic!("{error}"),
        Ok(Err(Unopened::Damaged(_))) | Err(_) => {
            assert!(
                std::fs::read(path).unwrap() == bytes,
                "the file was changed"
            );
            true
        }
    }
}

/// Files after a clean stop and after a kill.
fn files(directory: &Path) -> [(Vec<u8>, Loaded); 2] {
    let (path, file, contents) = written(directory, 5);
    let killed = std::fs::read(&path).unwrap();
    file.close().unwrap();
    let stopped = std::fs::read(&path).unwrap();
    [(stopped, contents.clone()), (killed, contents)]
}

#[test]
fn flipped_bits_are_found_or_do_not_matter() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged");
    let mut random = StdRng::seed_from_u64(1);
    for (bytes, contents) in files(directory.path()) {
        let mut found = 0;
        let in_header = (0..320).flat_map(|at| (0..8).map(move |bit| (at, 1 << bit)));
        let in_use = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        let in_use: Vec<usize> = in_use.map(|(at, _)| at).collect();
        let anywhere = (0..300).map(|_| {
            let at = in_use[random.random_range(0..in_use.len())];
            (at, 1_u8 << random.random_range(0..8))
        });
        for (at, bit) in in_header.chain(anywhere) {
            let mut damaged = bytes.clone();
            damaged[at] ^= bit;
            found += usize::from(refused(&path, &damaged, &contents));
        }
        assert!(found > 100, "{found}");
    }
}

#[test]
fn a_file_that_lost_its_end_or_its_beginning_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged");
    for (bytes, contents) in files(directory.path()) {
        let lengths = [
            0,
            1,
            511,
            512,
            4095,
            4096,
            4097,
            bytes.len() / 2,
            bytes.len() - 4096,
        ];
        for length in lengths.into_iter().chain([bytes.len() - 1]) {
            assert!(refused(&path, &bytes[..length], &contents), "{length}");
        }
        let zeros = [vec![0; 4096], bytes[4096..].to_vec()].concat();
        assert!(refused(&path, &zeros, &contents));
        assert!(refused(&path, &vec![b'x'; 20_000], &contents));
    }
}

#[test]
fn a_file_behind_the_last_acknowledged_commit_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, mut file, contents) = written(directory.path(), 2);
    let older = std::fs::read(&path).unwrap();
    file.commit(&batch(4, 5)).unwrap();
    file.close().unwrap();
    std::fs::write(&path, older).unwrap();
    let Err(Unopened::Damaged(reason)) = File::open(&path).map(|_| ()) else {
        panic!("it is opened");
    };
    assert!(reason.contains("3, and 4 was acknowledged"), "{reason}");
    std::fs::remove_file(directory.path().join(Acknowledged::NAME)).unwrap();
    let (loaded, _) = File::open(&path).unwrap();
    assert_eq!(loaded, contents);
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
