//! Power failures and full disks at any step: of the writes to a file since its last fsync, any
//! sectors may be on disk. Everything acknowledged is there, and no commit in part.

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::memory::{Files, Memory, Step};
use super::{after, batch, written};
use crate::backend::Loaded;
use crate::backend::disk::file::File;
use crate::backend::disk::log;

const SECTOR: usize = 512;

/// What happened to a store in memory.
struct Life {
    /// The files at the beginning.
    start: Files,
    memory: Memory,
    /// The contents at first, and after each commit. The last commit may have failed.
    versions: Vec<Loaded>,
    /// The number of steps after which each version was acknowledged.
    acknowledged: Vec<usize>,
}

impl Life {
    fn new(start: Files) -> Self {
        Self {
            memory: Memory::new(start.clone()),
            start,
            versions: Vec::new(),
            acknowledged: Vec::new(),
        }
    }

    /// Opens the files as they are now. `None` if nothing can be written.
    fn open(&mut self) -> Option<File> {
        let (loaded, file) = self.memory.open().unwrap();
        if self.versions.is_empty() {
            self.versions.push(loaded);
        } else {
            // A commit that failed may have been stored or not.
            let known = self.acknowledged.len().saturating_sub(1);
            let found = self.versions[known..]
                .iter()
                .position(|known| *known == loaded);
            let found = found.unwrap_or_else(|| panic!("index {} was found", loaded.index));
            self.versions.truncate(known + found + 1);
        }
        let file = file.ok();
        if file.is_some() && self.acknowledged.len() < self.versions.len() {
            self.acknowledged.push(self.memory.steps().len());
        }
        file
    }

    /// Commits a batch, which fails if the disk is full.
    fn commit(&mut self, file: &mut File, rows: u32) -> Result<(), redb::Error> {
        let last = self.versions.last().unwrap();
        let batch = batch(last.index + 1, rows);
        self.versions.push(after(last, &batch));
        file.commit(&batch)?;
        self.acknowledged.push(self.memory.steps().len());
        Ok(())
    }

    /// Opens the files, and commits batches of these numbers of rows until one fails. Then the process
    /// stops, cleanly or not.
    fn live(&mut self, sizes: &[u32], is_clean: bool) {
        let Some(mut file) = self.open() else { return };
        let failed = sizes
            .iter()
            .any(|rows| self.commit(&mut file, *rows).is_err());
        if failed || !is_clean {
            // Nothing is written by the end of a killed process.
            self.memory.fill_after(Some(0));
            drop(file);
        } else {
            let _ = file.close();
        }
    }

    /// What is on disk after a power failure, and what may be read from it.
    fn cut(&self, random: &mut StdRng) -> (Files, &[Loaded]) {
        let steps = self.memory.steps();
        let cut = random.random_range(0..=steps.len());
        let mut files = self.start.clone();
        for (number, bytes) in files.iter_mut().enumerate() {
            let steps = steps[..cut].iter();
            let steps = steps.filter_map(|(file, step)| (*file == number).then_some(step));
            fail(bytes, &steps.collect::<Vec<_>>(), random);
        }
        let possible = match self.acknowledged.iter().rposition(|steps| *steps <= cut) {
            Some(known) => known..self.versions.len().min(known + 2),
            None => 0..1,
        };
        (files, &self.versions[possible])
    }
}

/// Applies the steps that are on disk after a power failure.
fn fail(bytes: &mut Vec<u8>, steps: &[&Step], random: &mut StdRng) {
    let synced = steps.iter().rposition(|step| matches!(step, Step::Sync));
    let (safe, unsafe_steps) = steps.split_at(synced.map_or(0, |at| at + 1));
    for step in safe {
        step.apply(bytes);
    }
    // Another share of sectors each time.
    let share = random.random_range(0.0..=1.0);
    for step in unsafe_steps {
        let Step::Write(at, data) = step else {
            // A new length is on disk at the latest with data beyond the old one.
            step.apply(bytes);
            continue;
        };
        for (number, sector) in data.chunks(SECTOR).enumerate() {
            if random.random_bool(share) {
                let at = at + number * SECTOR;
                Step::Write(at, sector.to_vec()).apply(bytes);
            }
        }
    }
}

/// The files of a new store after a clean stop.
fn new_files() -> Files {
    let directory = tempfile::tempdir().unwrap();
    let (path, file, _) = written(directory.path(), 0);
    file.close().unwrap();
    [path.clone(), path.with_file_name(log::NAME)].map(|path| std::fs::read(path).unwrap())
}

fn any_sizes() -> impl Strategy<Value = Vec<u32>> {
    // Some fit into the log many times, some not at all.
    let size = prop_oneof![2 => 1..4_u32, 1 => 4..40_u32];
    prop::collection::vec(size, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn acknowledged_commits_survive_and_none_is_partial(
        sizes in prop::array::uniform3(any_sizes()),
        full_after in prop::array::uniform2(prop::option::of(0..300_usize)),
        clean in prop::array::uniform3(any::<bool>()),
        seed in any::<u64>(),
    ) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut life = Life::new(new_files());
        life.memory.fill_after(full_after[0]);
        life.live(&sizes[0], clean[0]);
        // There is room again. What was written before may not be on disk yet.
        life.memory.fill_after(None);
        life.live(&sizes[1], clean[1]);
        for _ in 0..8 {
            let (files, possible) = life.cut(&mut random);
            let mut next = Life::new(files);
            next.memory.fill_after(full_after[1]);
            next.live(&sizes[2], clean[2]);
            let found = &next.versions[0];
            prop_assert!(possible.contains(found), "index {}", found.index);
            // The power fails again, also while the store is opened.
            for _ in 0..4 {
                let (files, possible) = next.cut(&mut random);
                let mut last = Life::new(files);
                last.open();
                let found = &last.versions[0];
                prop_assert!(possible.contains(found), "index {}", found.index);
            }
        }
    }
}

fn syncs(life: &Life) -> usize {
    let steps = life.memory.steps();
    let syncs = steps.iter().filter(|(_, step)| matches!(step, Step::Sync));
    syncs.count()
}

#[test]
fn a_commit_waits_for_the_disk_once() {
    let mut life = Life::new(new_files());
    let mut file = life.open().unwrap();
    let before = syncs(&life);
    // As many as fit into the log.
    let fit = log::SIZE / log::PAGE - 1;
    for _ in 0..fit {
        life.commit(&mut file, 1).unwrap();
    }
    assert_eq!(syncs(&life) - before, fit);
    let steps = life.memory.steps();
    let is_length = |(_, step): &_| matches!(step, Step::Length(_));
    assert!(!steps.iter().any(is_length));
    // The database, and the beginning of the log.
    life.commit(&mut file, 1).unwrap();
    assert_eq!(syncs(&life) - before, fit + 2);
    life.commit(&mut file, 1).unwrap();
    assert_eq!(syncs(&life) - before, fit + 3);
}

#[test]
fn a_full_disk_is_read() {
    let mut life = Life::new(new_files());
    life.live(&[1, 2, 3], false);
    // Not even the repair of the database can be written.
    assert!(life.open().is_none());
    assert_eq!(life.versions.len(), 4);
    life.memory.fill_after(None);
    assert!(life.open().is_some());
    assert_eq!(life.versions.len(), 4);
}
