//! Merging metrics pages: it does not matter how pages arrive, and what comes out is a page that
//! merging leaves as it is.
//!
//! Input: two bytes for formats and piece length, then the pages of sources with a 0 in between.
#![no_main]

use legate_dataplane::telemetry::Format;
use legate_dataplane::telemetry::merge::{Merge, merge_pages};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [formats, piece, pages @ ..] = input else {
        return;
    };
    let sources: Vec<(Format, &[u8])> = pages
        .split(|byte| *byte == 0)
        .take(4)
        .enumerate()
        .map(|(place, page)| (format(*formats, place), page))
        .collect();

    let whole = merge_pages(&sources, pages.len());
    let in_pieces = merge_pages(&sources, usize::from(*piece));
    assert_eq!(show(&whole), show(&in_pieces), "a cut makes a difference");

    let again = merge_again(&whole);
    let expected = without_remarks(&whole);
    assert_eq!(show(&again), show(&expected), "a merged page changes");
});

/// One bit each says what the sources send.
fn format(bits: u8, place: usize) -> Format {
    match bits >> place & 1 {
        0 => Format::Text,
        _ => Format::OpenMetrics,
    }
}

fn merge_again(page: &[u8]) -> Vec<u8> {
    let mut merge = Merge::default();
    let mut out = Vec::new();
    merge.begin(Format::Text);
    merge.push(page, &mut out).expect("the page is whole lines");
    merge.end(&mut out).expect("the page has its end");
    out
}

fn without_remarks(page: &[u8]) -> Vec<u8> {
    let metadata = [&b"# HELP "[..], b"# TYPE "];
    page.split_inclusive(|byte| *byte == b'\n')
        .filter(|line| {
            !line.starts_with(b"#") || metadata.iter().any(|word| line.starts_with(word))
        })
        .collect::<Vec<_>>()
        .concat()
}

fn show(page: &[u8]) -> String {
    page.escape_ascii().to_string().replace("\\n", "\n")
}
