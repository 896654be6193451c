//! Merging metrics pages: the result does not depend on the chunks in which pages arrive, and merging the result
//! again does not change it.
//!
//! Input: one byte for the formats, one for the chunk length, then the pages of the sources, separated by 0 bytes.
#![no_main]

use legate_metrics_page::{Format, Merge};
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
    assert_eq!(show(&whole), show(&in_pieces), "chunks change the result");

    let again = merge_pages(&[(Format::Text, whole.as_slice())], whole.len());
    assert_eq!(show(&again), show(&whole), "a merged page changes");
});

/// The format of a source: one bit for each.
fn format(bits: u8, place: usize) -> Format {
    match bits >> place & 1 {
        0 => Format::Text,
        _ => Format::OpenMetrics,
    }
}

/// Merges pages in chunks of this length. Invalid sources are cut.
fn merge_pages(sources: &[(Format, &[u8])], piece: usize) -> Vec<u8> {
    let mut merge = Merge::default();
    let mut out = Vec::new();
    for (format, bytes) in sources {
        merge.begin(*format);
        let mut pieces = bytes.chunks(piece.max(1));
        let pushed = pieces.try_for_each(|piece| merge.push(piece, &mut out));
        let _ = pushed.and_then(|()| merge.end(&mut out));
    }
    out
}

fn show(page: &[u8]) -> String {
    page.escape_ascii().to_string().replace("\\n", "\n")
}
