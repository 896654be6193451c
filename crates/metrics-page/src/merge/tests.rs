//! Pages in, one page out.

use proptest::prelude::*;

use super::*;

/// Joins whole pages, each fed in pieces of `piece` bytes. Sources that are broken are cut and
/// remarked upon.
fn merge_pages(sources: &[(Format, &[u8])], piece: usize) -> Vec<u8> {
    let mut merge = Merge::default();
    let mut out = Vec::new();
    for (format, bytes) in sources {
        merge.begin(*format);
        let mut pieces = bytes.chunks(piece);
        let pushed = pieces.try_for_each(|piece| merge.push(piece, &mut out));
        if let Err(broken) = pushed.and_then(|()| merge.end(&mut out)) {
            remark(&broken.to_string(), &mut out);
        }
    }
    out
}

fn text(sources: &[&str]) -> String {
    let sources: Vec<_> = sources
        .iter()
        .map(|source| (Format::Text, source.as_bytes()))
        .collect();
    String::from_utf8(merge_pages(&sources, 7)).unwrap()
}

fn from_open(page: &str) -> String {
    let sources = [(Format::OpenMetrics, page.as_bytes())];
    String::from_utf8(merge_pages(&sources, 5)).unwrap()
}

#[test]
fn metadata_of_a_family_is_that_of_the_first_source() {
    let first =
        "# HELP a First.\n# TYPE a gauge\n# TYPE a gauge\na{s=\"1\"} 1\n# TYPE b gauge\nb 1\n";
    let second =
        "# HELP a Other.\n# TYPE a counter\na{s=\"2\"} 2\n# HELP b B.\nb 2\n# TYPE c gauge\nc 3";
    assert_eq!(
        text(&[first, second]),
        "# HELP a First.\n# TYPE a gauge\na{s=\"1\"} 1\n# TYPE b gauge\nb 1\n\
         a{s=\"2\"} 2\nb 2\n# TYPE c gauge\nc 3\n"
    );
}

#[test]
fn samples_are_passed_on_as_they_came() {
    for line in [
        "a{b=\"c\",} 1 2",
        "a { b = \"c\" } 1\t2 ",
        "a{} 1 -2",
        "a{b=\"}\"} 1",
        "a{b=\"\u{e4}\"} 0.5",
        "a 1",
        "a:b 1 2",
        "a 2 ",
    ] {
        assert_eq!(text(&[line]), format!("{line}\n"));
    }
    for value in ["NaN", "+Inf", "-Inf", "1e9", "-0.5", ".5", "1."] {
        let line = format!("a{{b=\"c\"}} {value}\n");
        assert_eq!(text(&[&line]), line);
    }
}

#[test]
fn lines_without_the_shape_of_a_sample_are_rejected() {
    for line in [
        "<html>",
        "{\"a\": 1}",
        "a",
        "a 1 2 3",
        "a 1 1.5",
        "a one",
        "a{b=c} 1",
        "a{b=\"c} 1",
        "a{b=\"c\" 1",
        "a{b=\"c\"}",
        "1a 1",
        "{a=\"b\"} 1",
        "a -NaN",
        "a-b 1",
        "connected to 10.0.0.1",
        "connected to port 1",
        "connected to {port=\"a\"} 1",
        "a-b{c=\"d\"} 1",
        "\u{e4} 1",
    ] {
        assert_eq!(text(&[line]), "# line 1 is not a metric\n", "{line}");
    }
}

#[test]
fn separated_metadata_is_kept() {
    let page = "# HELP a A.\n# HELP b B.\n# TYPE a gauge\n# TYPE b counter\na 1\nb 2\n";
    assert_eq!(text(&[page]), page);
}

#[test]
fn a_sample_does_not_vouch_for_the_name_of_the_next_one() {
    for line in ["a b{c=\"d\"} 1", "ab c{c=\"d\"} 1", "{c=\"d\"} 1"] {
        let page = format!("a{{c=\"d\"}} 1\n{line}\n");
        let cut = "a{c=\"d\"} 1\n# line 2 is not a metric\n";
        assert_eq!(text(&[&page]), cut, "{line}");
    }
    let page = "a{} 1\na{b=\"c\"} 2\nab{} 3\na{} 4\n";
    assert_eq!(text(&[page]), page);
}

#[test]
fn a_source_is_cut_at_its_first_invalid_line() {
    let html = "<!doctype html>\n<p>welcome 1\n";
    let half = "good 1\nbad\ngood 2\n";
    assert_eq!(
        text(&[html, half, "last 1"]),
        "# line 1 is not a metric\ngood 1\n# line 2 is not a metric\nlast 1\n"
    );
    let mut merge = Merge::default();
    let mut out = Vec::new();
    merge.begin(Format::Text);
    assert_eq!(merge.push(b"a \xff\n", &mut out), Err(Broken::Line(1)));
    merge.push(b"a 1\n", &mut out).unwrap();
    merge.end(&mut out).unwrap();
    assert!(out.is_empty(), "nothing more is taken from it");
}

#[test]
fn comments_blanks_and_unknown_types_are_dropped() {
    let page = "\n# hello\n  a 1\r\n# TYPE b cloud\nb 1\n# UNIT b s\n# EOF\nc 1\n";
    assert_eq!(text(&[page]), "a 1\nb 1\nc 1\n");
}

#[test]
fn lines_and_sources_have_limits() {
    let mut out = Vec::new();
    let mut merge = Merge::default();
    let long = vec![b'a'; LINE_LIMIT + 1];
    assert_eq!(merge.push(&long, &mut out), Err(Broken::LongLine(1)));
    merge.begin(Format::Text);
    let page = [&b"x 1\n"[..], &long, b" 1\nx 2\n"].concat();
    assert_eq!(merge.push(&page, &mut out), Err(Broken::LongLine(2)));
    assert_eq!(out, b"x 1\n", "what came before stays");
    merge.begin(Format::Text);
    let line = format!("abc{{d=\"{}\"}} 1\n", "e".repeat(8_000));
    let block = line.repeat(100).into_bytes();
    let pushed = (0..).try_for_each(|_| {
        out.clear();
        merge.push(&block, &mut out)
    });
    assert_eq!(pushed, Err(Broken::TooLarge));
    assert_eq!(merge.bytes, SOURCE_LIMIT);
}

#[test]
fn families_beyond_the_limit_are_untyped_and_memory_stays_the_same() {
    let mut merge = Merge::default();
    let mut out = Vec::new();
    for number in 0..FAMILIES + 1_000 {
        let page = format!("# TYPE f{number} gauge\nf{number} 1\n");
        out.clear();
        merge.push(page.as_bytes(), &mut out).unwrap();
        assert_eq!(out.len() < page.len(), number >= FAMILIES, "{number}");
    }
    assert_eq!(merge.families.len(), FAMILIES);
    // A line and the table are all that is held.
    assert!(merge.partial.capacity() <= 2 * LINE_LIMIT);
    assert!(merge.families.capacity() <= 2 * FAMILIES);
}

#[test]
fn an_openmetrics_page_without_its_end_is_incomplete() {
    assert_eq!(from_open("a 1\n# EOF\nignored"), "a 1\n");
    assert_eq!(
        from_open("a 1\n"),
        "a 1\n# the page ends before its `# EOF`\n"
    );
    for line in [" a 1", "a  1", "a 1 NaN", "a 1 "] {
        let page = format!("{line}\n# EOF\n");
        assert_eq!(from_open(&page), "# line 1 is not a metric\n", "{line}");
    }
}

#[test]
fn openmetrics_sources_are_written_as_text() {
    let page = "# HELP a A \\\"counter\\\".\n# TYPE a counter\na_total 1 1.5 # {id=\"x\"} 1\na_created 9\n\
                # TYPE v info\n# HELP v V.\nv_info{x=\"y\"} 1\n# TYPE u unknown\nu 1\n# UNIT u s\n\
                # TYPE g gaugehistogram\n# HELP g G.\ng_gcount 1\n# HELP n N.\nn 1\n# EOF\n";
    assert_eq!(
        from_open(page),
        "# HELP a_total A \"counter\".\n# TYPE a_total counter\na_total 1 1500\na_created 9\n\
         # HELP v_info V.\n# TYPE v_info gauge\nv_info{x=\"y\"} 1\n# TYPE u untyped\nu 1\n\
         # HELP g G.\ng_gcount 1\n# HELP n N.\nn 1\n"
    );
}

#[test]
fn remarks_are_one_short_line() {
    let mut out = Vec::new();
    remark(&format!("a\nb{}", "\u{1f980}".repeat(9_000)), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("# a b") && text.len() < 600, "{text}");
    assert_eq!(text.matches('\n').count(), 1);
}

/// Whether no family's metadata is there twice, and every line is a sample or metadata.
fn is_sound(page: &[u8]) -> Result<(), TestCaseError> {
    let page = std::str::from_utf8(page).unwrap();
    let mut seen = std::collections::HashSet::new();
    for line in page.lines().filter(|line| !is_remark(line.as_bytes())) {
        match line.strip_prefix('#').map(Metadata::parse) {
            Some(Some(Metadata { word, family, .. })) => {
                prop_assert!(seen.insert((word, family)), "twice: {}", line);
            }
            Some(None) => return Err(TestCaseError::fail(format!("{line:?} says nothing"))),
            None => prop_assert!(is_sample(line.as_bytes()), "no metric: {}", line),
        }
    }
    Ok(())
}

fn is_remark(line: &[u8]) -> bool {
    line.starts_with(b"# line ") || line.starts_with(b"# the ")
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
    fn any_sources_however_cut_result_in_a_valid_page(
        sources in proptest::collection::vec((formats(), lines()), 0..4),
        piece in 1usize..40,
    ) {
        let sources: Vec<_> = sources.iter().map(|(format, page)| (*format, page.as_slice())).collect();
        let page = merge_pages(&sources, piece);
        is_sound(&page)?;
        prop_assert_eq!(&page, &merge_pages(&sources, usize::MAX));
        // What is sound already stays as it is, but for remarks.
        let again = merge_pages(&[(Format::Text, page.as_slice())], piece);
        let kept: Vec<_> = page.split_inclusive(|byte| *byte == b'\n')
            .filter(|line| !is_remark(line))
            .flatten().copied().collect();
        prop_assert_eq!(again, kept);
    }
}
