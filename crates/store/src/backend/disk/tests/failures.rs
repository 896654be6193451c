//! Failed commits: their outcome is determined before the next commit.

use std::io;
use std::sync::Arc;

use super::{after, batch, first};
use crate::backend::disk::{Directory, Disk};
use crate::backend::{Backend, Change, Loaded, NotCommitted};

fn full() -> redb::Error {
    io::Error::from(io::ErrorKind::StorageFull).into()
}

/// Opens a directory with the first contents.
async fn opened(path: &std::path::Path) -> (Disk, Loaded) {
    let (mut disk, loaded) = Disk::open(Directory::lock(path).unwrap()).unwrap();
    assert!(loaded.is_none());
    let contents = first();
    disk.replace(0, Arc::new(contents.clone())).await.unwrap();
    (disk, contents)
}

async fn reopened(disk: Disk, path: &std::path::Path) -> Loaded {
    disk.close().await;
    let (_, loaded) = Disk::open(Directory::lock(path).unwrap()).unwrap();
    loaded.expect("it was written")
}

#[tokio::test]
async fn a_failed_commit_found_in_the_file_is_returned() {
    let directory = tempfile::tempdir().unwrap();
    let (mut disk, contents) = opened(directory.path()).await;
    let failing = Arc::new(batch(2, 10));
    let written = Arc::clone(&failing);
    let change = Change::Batch(Arc::clone(&failing));
    let failed = disk.with_file(1, change, move |inner| {
        let file = inner.file.as_mut().expect("it is open");
        file.commit(&written)?;
        Err(full())
    });
    assert!(matches!(failed.await, Err(NotCommitted::Unavailable(_))));

    let other = Arc::new(batch(2, 5));
    assert_eq!(disk.commit(other).await, Err(NotCommitted::Lost));
    assert_eq!(disk.changed().await, Change::Batch(Arc::clone(&failing)));
    let next = batch(3, 5);
    disk.commit(Arc::new(next.clone())).await.unwrap();
    let expected = after(&after(&contents, &failing), &next);
    assert_eq!(reopened(disk, directory.path()).await, expected);
}

#[tokio::test]
async fn a_failed_commit_missing_from_the_file_is_discarded() {
    let directory = tempfile::tempdir().unwrap();
    let (mut disk, contents) = opened(directory.path()).await;
    let change = Change::Batch(Arc::new(batch(2, 10)));
    let failed = disk.with_file(1, change, |_| Err(full())).await;
    let Err(NotCommitted::Unavailable(error)) = failed else {
        panic!("{failed:?}");
    };
    assert!(error.reason.contains("make room"), "{error}");
    let next = batch(2, 5);
    disk.commit(Arc::new(next.clone())).await.unwrap();
    let expected = after(&contents, &next);
    assert_eq!(reopened(disk, directory.path()).await, expected);
}

#[tokio::test]
async fn a_failed_replacement_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (mut disk, contents) = opened(directory.path()).await;
    // Prevents the creation of the new file.
    std::fs::create_dir(directory.path().join("store.new")).unwrap();
    let other = Arc::new(after(&contents, &batch(2, 3)));
    let failed = disk.replace(1, Arc::clone(&other)).await;
    assert!(matches!(failed, Err(NotCommitted::Unavailable(_))));
    std::fs::remove_dir(directory.path().join("store.new")).unwrap();
    let next = batch(2, 5);
    disk.commit(Arc::new(next.clone())).await.unwrap();
    let expected = after(&contents, &next);
    assert_eq!(reopened(disk, directory.path()).await, expected);
}
