//! Recognises samples, which are most of a page: the shape of their lines, and the length of runs of them.

use memchr::memrchr;
use wide::u8x16;

use crate::metadata::{begins_name, name_length};

/// Maximum length of a line, 64 KiB.
pub const LINE_LIMIT: usize = 64 * 1024;

/// Number of bytes that are searched together: their line ends are the bits of one number.
const BLOCK: usize = 64;

/// Length of the longest prefix of complete lines that are valid samples in UTF-8, and their number.
pub(crate) fn samples(text: &[u8]) -> (usize, u64) {
    let (mut length, mut lines) = (0, 0);
    if !text.first().is_some_and(begins_name) {
        return (length, lines);
    }
    let (blocks, rest) = text.as_chunks();
    let mut last = [0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    // Whether the current line is ASCII so far.
    let mut ascii = true;
    // The name of the last usual sample, with its brace: neighbours mostly have the same one.
    let mut series: &[u8] = &[];
    for (number, block) in blocks.iter().chain([&last]).enumerate() {
        let plain = block.is_ascii();
        ascii &= plain;
        let mut ends = line_ends(block);
        while ends != 0 {
            let end = number * BLOCK + ends.trailing_zeros() as usize;
            let line = &text[length..end];
            let utf8 = ascii || std::str::from_utf8(line).is_ok();
            let usual = line.len() <= LINE_LIMIT && is_usual_sample(line, &mut series);
            if !utf8 || !(usual || is_sample(line)) {
                return (length, lines);
            }
            (length, lines) = (end + 1, lines + 1);
            ends &= ends - 1;
            ascii = plain;
        }
    }
    (length, lines)
}

/// A bit mask of the line ends; the lowest bit is the first byte.
fn line_ends(block: &[u8; BLOCK]) -> u64 {
    let (parts, _) = block.as_chunks();
    let ends = |part: &[u8; 16]| u8x16::new(*part).cmp_eq(u8x16::splat(b'\n')).move_mask() as u64;
    let parts = parts.iter().rev();
    parts.fold(0, |bits, part| bits << 16 | ends(part))
}

/// Recognises samples with labels and an integer value, the most frequent ones, by their name and their end.
/// `series` is the name of the last one with its brace, and becomes that of this one.
fn is_usual_sample<'a>(line: &'a [u8], series: &mut &'a [u8]) -> bool {
    let Some(blank) = line.iter().rposition(|byte| !byte.is_ascii_digit()) else {
        return false;
    };
    let [.., b'"' | b'{' | b',', b'}', b' '] = &line[..=blank] else {
        return false;
    };
    if series.is_empty() || !line.starts_with(series) {
        let name = name_length(line);
        if name == 0 || line.get(name) != Some(&b'{') {
            return false;
        }
        *series = &line[..=name];
    }
    blank + 1 < line.len()
}

/// Whether a line has the shape of a sample: a name, optional labels in braces, a value, and an optional timestamp
/// in milliseconds.
pub(crate) fn is_sample(line: &[u8]) -> bool {
    let name = name_length(line);
    let rest = &line[name..];
    let blanks = rest.iter().take_while(|byte| is_blank(byte)).count();
    name > 0
        && line.len() <= LINE_LIMIT
        && match rest[blanks..].split_first() {
            Some((b'{', rest)) => memrchr(b'}', rest)
                .is_some_and(|end| is_labels(&rest[..end]) && is_value(&rest[end + 1..])),
            _ => blanks > 0 && is_value(rest),
        }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether the content of the braces ends like labels.
fn is_labels(labels: &[u8]) -> bool {
    labels
        .last()
        .is_none_or(|last| matches!(last, b'"' | b',') || is_blank(last))
}

/// A number and an optional timestamp.
fn is_value(bytes: &[u8]) -> bool {
    let mut words = bytes.split(is_blank).filter(|word| !word.is_empty());
    let text = |word| std::str::from_utf8(word).unwrap_or_default();
    let number = words.next().is_some_and(|word| is_number(text(word)));
    let time = words
        .next()
        .is_none_or(|word| text(word).parse::<i64>().is_ok());
    number && time && words.next().is_none()
}

/// Whether readers accept it as a number: like Rust, but no sign before `NaN`.
fn is_number(text: &str) -> bool {
    match text.parse::<f64>() {
        Ok(number) => !number.is_nan() || text.starts_with(['n', 'N']),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_end_at_the_first_other_line_at_any_position() {
        for length in 0..200 {
            let text = format!("a{{b=\"{}\"}} 12\nc 1.5\n", "x".repeat(length));
            let before = text.repeat(5);
            for other in [
                "",
                "d 1",
                "# d\nd 1\n",
                "d\nd 1\n",
                "\nd 1\n",
                "d 1\r\nd 1\n",
            ] {
                let page = [&before, other].concat();
                assert_eq!(samples(page.as_bytes()), (before.len(), 10), "{page:?}");
            }
        }
    }

    #[test]
    fn invalid_utf8_is_not_a_sample() {
        for length in 0..100 {
            let before = format!("a{{b=\"{}\u{e4}\"}} 1\nc 1\n", "x".repeat(length));
            let page = [before.as_bytes(), b"d{e=\"\xff\"} 1\n", before.as_bytes()].concat();
            assert_eq!(samples(&page), (before.len(), 2), "{length}");
        }
    }
}
