use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;

const PAGE: u32 = 16;

/// What reading has cost.
#[derive(Debug)]
struct Cost {
    requests: usize,
    /// The number of keys that were counted.
    counted: usize,
}

/// Reads all keys as from etcd: each exactly once, in order.
fn read(keys: &BTreeSet<Vec<u8>>) -> Cost {
    let mut pages = Pages::new((b"k/".to_vec(), b"k0".to_vec()), PAGE);
    let (mut found, mut cost) = (
        Vec::new(),
        Cost {
            requests: 0,
            counted: 0,
        },
    );
    while let Some((from, to)) = pages.next() {
        assert!(from < to, "{from:?} {to:?}");
        let within = keys.range(from..to);
        let (count, limit) = (within.clone().count(), PAGE as usize);
        let page = within.take(limit).map(|key| KeyValue {
            key: key.clone(),
            ..KeyValue::default()
        });
        let page: Vec<_> = page.collect();
        pages.read(&page, i64::try_from(count).unwrap());
        found.extend(page.into_iter().map(|kv| kv.key));
        cost.requests += 1;
        cost.counted += count;
        assert!(cost.requests < 100_000, "it does not end: {pages:?}");
    }
    assert!(found.iter().eq(keys), "each key once, in order");
    cost
}

fn named(names: impl IntoIterator<Item = String>) -> BTreeSet<Vec<u8>> {
    let keys = names.into_iter().map(|name| format!("k/{name}"));
    keys.map(String::into_bytes).collect()
}

fn any_id(n: usize) -> String {
    let digest = Sha256::digest(n.to_be_bytes());
    uuid::Uuid::from_slice(&digest[..16]).unwrap().to_string()
}

#[test]
fn nothing_and_one_page_take_one_request() {
    assert_eq!(read(&BTreeSet::new()).requests, 1);
    assert_eq!(read(&named(["".to_owned()])).requests, 1);
    assert_eq!(read(&named((0..16).map(|n| n.to_string()))).requests, 1);
}

#[test]
fn requests_and_counted_keys_grow_with_the_number_of_keys() {
    type Name = fn(usize) -> String;
    let distributions: [(&str, Name); 5] = [
        ("numbers", |n| format!("{n:08}")),
        ("names", |n| format!("rows/\x03default/default/service-{n}")),
        ("random ids", any_id),
        ("tenants", |n| {
            let tenant = any_id(n / 50);
            format!("{tenant}/a-long-name-that-all-services-share-{n:06}")
        }),
        ("tables", |n| match n % 3 {
            0 => format!("rows/\x01node-{n}"),
            1 => format!("rows/\x02node-{}\x00web-{n}", n / 100),
            _ => format!("rows/\x30{n:x}"),
        }),
    ];
    for (name, key) in distributions {
        for rows in [1_000, 30_000] {
            let cost = read(&named((0..rows).map(key)));
            let pages = rows.div_ceil(PAGE as usize);
            assert!(
                cost.requests <= 5 * pages,
                "{name}: {cost:?} of {pages} pages"
            );
            assert!(cost.counted <= 10 * rows, "{name}: {cost:?} of {rows} keys");
        }
    }
}

/// Keys of any shape: some share long prefixes with others.
fn any_keys() -> impl Strategy<Value = BTreeSet<Vec<u8>>> {
    let byte = prop_oneof![any::<u8>(), Just(0), Just(255), b'0'..=b'9'];
    let long = (byte.clone(), 40..60_usize).prop_map(|(byte, length)| vec![byte; length]);
    let part = prop_oneof![vec(byte, 0..4), long];
    let cluster = (part.clone(), vec(part, 1..200));
    vec(cluster, 0..6).prop_map(|clusters| {
        let keys = clusters.into_iter().flat_map(|(shared, ends)| {
            ends.into_iter()
                .map(move |end| [&b"k/"[..], &shared, &end].concat())
        });
        keys.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_key_is_read_exactly_once(keys in any_keys()) {
        let cost = read(&keys);
        let pages = keys.len().div_ceil(PAGE as usize).max(1);
        prop_assert!(cost.requests <= 20 * pages, "{cost:?} of {pages} pages");
    }
}
