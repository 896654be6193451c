//! Pages in, one page out.

use proptest::prelude::*;

use super::*;

fn text(sources: &[&str]) -> String {
    let sources: Vec<_> = sources
        .iter()
        .map(|source| (Format::Text, source.as_bytes()))
        .collect();
    String::from_utf8(merge_pages(Format::Text, &sources, 7)).unwrap()
}

fn from_open(page: &str) -> String {
    let sources = [(Format::OpenMetrics, page.as_bytes())];
    String::from_utf8(merge_pages(Format::Text, &sources, 5)).unwrap()
}

#[test]
fn metadata_is_said_once_and_never_behind_samples() {
    let first = "# HELP a First.\n# TYPE a gauge\na{s=\"1\"} 1\nb 1\n";
    let second =
        "# HELP a Other.\n# TYPE a counter\na{s=\"2\"} 2\n# TYPE b gauge\nb 2\n# TYPE c gauge\nc 3";
    assert_eq!(
        text(&[first, second]),
        "# HELP a First.\n# TYPE a gauge\na{s=\"1\"} 1\nb 1\n\
         a{s=\"2\"} 2\nb 2\n# TYPE c gauge\nc 3\n"
    );
}

#[test]
fn parts_of_histograms_and_summaries_belong_to_their_families() {
    let page = "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n\
                # HELP h Too late.\n# TYPE g gauge\ng 1\ng_sum 1\n# TYPE g_sum gauge\n";
    let merged = text(&[page]);
    assert!(!merged.contains("Too late"), "{merged}");
    // A gauge has no sum: that was a family of its own, whose type comes too late.
    assert!(!merged.contains("# TYPE g_sum"), "{merged}");
    assert!(
        text(&["# TYPE h histogram\nh_sum 1\n# TYPE h_sum gauge\nh_sum 2\n"])
            .contains("h_sum gauge")
    );
}

#[test]
fn metadata_that_stands_apart_is_kept() {
    let page = "# HELP a A.\n# HELP b B.\n# TYPE a gauge\n# TYPE b counter\na 1\nb 2\n";
    assert_eq!(text(&[page]), page);
}

#[test]
fn a_source_is_cut_at_the_first_line_that_is_no_metric() {
    let html = "<!doctype html>\n<p>welcome 1\n";
    let half = "good 1\nbad\ngood 2\n";
    assert_eq!(
        text(&[html, half, "last 1"]),
        "# line 1 is no metric\ngood 1\n# line 2 is no metric\nlast 1\n"
    );
    let mut merge = Merge::new(Format::Text);
    let mut out = Vec::new();
    merge.begin(Format::Text);
    assert_eq!(merge.push(b"a \xff\n", &mut out), Err(Broken::Line(1)));
    merge.push(b"a 1\n", &mut out).unwrap();
    merge.end(&mut out).unwrap();
    assert!(out.is_empty(), "nothing more is taken from it");
}

#[test]
fn remarks_blanks_and_types_that_readers_do_not_know_are_left_out() {
    let page = "\n# hello\n  a 1\r\n# TYPE b cloud\nb 1\n# UNIT b s\n# EOF\nc 1\n";
    assert_eq!(text(&[page]), "a 1\nb 1\nc 1\n");
}

#[test]
fn lines_and_sources_have_limits() {
    let mut out = Vec::new();
    let mut merge = Merge::new(Format::Text);
    let long = vec![b'a'; LINE_LIMIT + 1];
    assert_eq!(merge.push(&long, &mut out), Err(Broken::LongLine(1)));
    merge.begin(Format::Text);
    let line = format!("abc{{d=\"{}\"}} 1\n", "e".repeat(8_000));
    let block = line.repeat(100).into_bytes();
    let pushed = (0..).try_for_each(|_| {
        out.clear();
        merge.push(&block, &mut out)
    });
    assert_eq!(pushed, Err(Broken::TooLarge));
    assert!(merge.source.bytes == SOURCE_LIMIT && merge.source.begun.is_empty());
}

#[test]
fn families_beyond_the_limit_are_untyped_and_memory_stays_the_same() {
    let mut merge = Merge::new(Format::Text);
    let mut out = Vec::new();
    for number in 0..FAMILIES + 1_000 {
        let page = format!("# TYPE f{number} gauge\nf{number} 1\n");
        out.clear();
        merge.push(page.as_bytes(), &mut out).unwrap();
        assert_eq!(out.len() < page.len(), number >= FAMILIES, "{number}");
    }
    assert_eq!(merge.families.len(), FAMILIES);
    // A line and the table are all that is held.
    assert!(merge.source.begun.capacity() <= 2 * LINE_LIMIT);
    assert!(merge.families.capacity() <= 2 * FAMILIES);
}

#[test]
fn openmetrics_ends_once() {
    let first = "# TYPE a counter\n# UNIT a \na_total 1 # {id=\"x\"} 1 2.5\n# EOF\n";
    let second = "# TYPE a counter\na_total{b=\"c\"} 2 1.5\n# EOF\nignored";
    let text = "b 1\n";
    let sources = [
        (Format::OpenMetrics, first.as_bytes()),
        (Format::Text, text.as_bytes()),
        (Format::OpenMetrics, second.as_bytes()),
        (Format::OpenMetrics, b"c 1\n".as_slice()),
    ];
    assert_eq!(
        String::from_utf8(merge_pages(Format::OpenMetrics, &sources, 3)).unwrap(),
        "# TYPE a counter\n# UNIT a \na_total 1 # {id=\"x\"} 1 2.5\na_total{b=\"c\"} 2 1.5\nc 1\n# EOF\n"
    );
    let mut merge = Merge::new(Format::OpenMetrics);
    merge.begin(Format::Text);
    assert_eq!(merge.push(b"b 1\n", &mut Vec::new()), Err(Broken::Format));
    merge.begin(Format::OpenMetrics);
    assert_eq!(merge.end(&mut Vec::new()), Err(Broken::NoEnd));
}

#[test]
fn openmetrics_sources_are_written_as_text() {
    let page = "# HELP a A \\\"counter\\\".\n# TYPE a counter\na_total 1 1.5 # {id=\"x\"} 1\na_created 9\n\
                # TYPE v info\n# HELP v V.\nv_info{x=\"y\"} 1\n# TYPE u unknown\nu 1\n# UNIT u s\n\
                # TYPE g gaugehistogram\n# HELP g G.\ng_gcount 1\n# HELP n N.\nn 1\n# EOF\n";
    assert_eq!(
        from_open(page),
        "# HELP a_total A \"counter\".\n# TYPE a_total counter\na_total 1 1500\na_created 9\n\
         # TYPE v_info gauge\n# HELP v_info V.\nv_info{x=\"y\"} 1\n# TYPE u untyped\nu 1\n\
         # HELP g G.\ng_gcount 1\n# HELP n N.\nn 1\n"
    );
}

#[test]
fn remarks_are_one_short_line() {
    let mut out = Vec::new();
    Merge::new(Format::Text).remark(&format!("a\nb{}", "\u{1f980}".repeat(9_000)), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("# a b") && text.len() < 600, "{text}");
    assert_eq!(text.matches('\n').count(), 1);
}

/// Whether a reader that takes nothing wrong takes this page: no family's metadata twice or behind
/// its samples, and every line a metric.
fn is_sound(page: &[u8], format: Format) -> Result<(), TestCaseError> {
    let page = std::str::from_utf8(page).unwrap();
    let mut told = std::collections::HashSet::new();
    let mut sampled = std::collections::HashSet::new();
    let mut kinds = std::collections::HashMap::new();
    let mut ends = 0;
    for line in page.lines() {
        prop_assert_eq!(ends, 0, "something follows the end");
        match parse(line, format) {
            Err(_) => return Err(TestCaseError::fail(format!("{line:?} is no metric"))),
            Ok(Line::Nothing) => prop_assert!(format == Format::Text, "{}", line),
            Ok(Line::End) => ends += 1,
            Ok(Line::Metadata { what, family, text }) => {
                if what == Metadata::Type {
                    kinds.insert(family, Kind::of(text, format));
                }
                prop_assert!(told.insert((what as u8, family)), "twice: {}", line);
                prop_assert!(!sampled.contains(family), "too late: {}", line);
            }
            Ok(Line::Sample(sample)) => {
                let base = SUFFIXES.iter().find_map(|suffix| {
                    let base = sample.name.strip_suffix(suffix)?;
                    kinds.get(base)?.suffixes().contains(suffix).then_some(base)
                });
                sampled.insert(base.unwrap_or(sample.name));
            }
        }
    }
    prop_assert_eq!(ends, usize::from(format == Format::OpenMetrics));
    Ok(())
}

fn formats() -> impl Strategy<Value = Format> {
    prop_oneof![Just(Format::Text), Just(Format::OpenMetrics)]
}

fn lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => "[ab](_total|_sum|_bucket)?(\\{x=\"[a-z\\\\]{0,2}\"\\})? [0-9.]{1,3}( [0-9.]{1,2})?\r?\n",
        4 => "# (HELP|TYPE|UNIT) [ab](_total)? (counter|gauge|histogram|info|unknown|x\\\\?)?\n",
        1 => "# EOF\n",
        1 => "[ -~]{0,12}\n",
        1 => "\\PC{0,4}",
    ];
    let text = proptest::collection::vec(line, 0..12).prop_map(|lines| lines.concat().into_bytes());
    prop_oneof![8 => text, 1 => proptest::collection::vec(any::<u8>(), 0..40)]
}

proptest! {
    #[test]
    fn any_sources_make_a_sound_page_however_they_are_cut(
        format in formats(),
        sources in proptest::collection::vec((formats(), lines()), 0..4),
        piece in 1usize..40,
    ) {
        let sources: Vec<_> = sources.iter().map(|(format, page)| (*format, page.as_slice())).collect();
        let page = merge_pages(format, &sources, piece);
        is_sound(&page, format)?;
        prop_assert_eq!(&page, &merge_pages(format, &sources, usize::MAX));
        // What is sound already stays as it is, but for remarks.
        let again = merge_pages(format, &[(format, page.as_slice())], piece);
        let kept: Vec<_> = page.split_inclusive(|byte| *byte == b'\n')
            .filter(|line| !line.starts_with(b"# line ") && !line.starts_with(b"# the "))
            .flatten().copied().collect();
        prop_assert_eq!(again, kept);
    }
}
