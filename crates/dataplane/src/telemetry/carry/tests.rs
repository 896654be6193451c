//! What pages show around a hand-over, and what becomes of a table.

use super::*;
use crate::telemetry::Format;
use crate::telemetry::merge::Merge;

/// The page as it is shown.
fn shown(carrying: Carrying, page: &str) -> String {
    let (mut merge, mut out) = (Merge::new(Format::Text), Vec::new());
    merge.begin(Format::Text);
    merge.carry(carrying);
    merge.push(page.as_bytes(), &mut out).unwrap();
    merge.end(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The Envoy with this epoch serves, and hands over with this page.
fn hand_over(offsets: &Offsets, epoch: u32, page: &str) {
    shown(offsets.handing_over(epoch).unwrap(), page);
}

fn read(offsets: &Offsets, epoch: u32, page: &str) -> String {
    shown(offsets.answered_by(epoch).unwrap(), page)
}

const FIRST: &str = "# TYPE a counter\na{x=\"1\"} 9007199254740000\na{x=\"2\"} 0\n\
     # TYPE g gauge\ng{} 7\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 3\n\
     h_sum{} 4.5\nh_count{} 3\n# TYPE s summary\ns{quantile=\"0.5\"} 8\ns_sum{} 16\ns_count{} 2\n";

#[test]
fn counters_and_what_histograms_count_are_carried_on_and_nothing_else() {
    let offsets = Offsets::default();
    assert_eq!(shown(offsets.connected().unwrap(), FIRST), FIRST);
    hand_over(&offsets, 0, FIRST);
    assert!(offsets.connected().is_none(), "it has to be asked");
    // It has not been taken over yet.
    assert_eq!(read(&offsets, 0, FIRST), FIRST);
    let second = "# TYPE a counter\na{x=\"1\"} 5\na{x=\"2\"} 1\na{x=\"3\"} 1e2\n\
                  # TYPE g gauge\ng{} 1\n# TYPE h histogram\nh_bucket{le=\"1\"} 0\n\
                  h_bucket{le=\"+Inf\"} 1\nh_sum{} 0.25 17\nh_count{} 1\n\
                  # TYPE s summary\ns{quantile=\"0.5\"} NaN\ns_sum{} 0\ns_count{} 0\n";
    assert_eq!(
        read(&offsets, 1, second),
        "# TYPE a counter\na{x=\"1\"} 9007199254740005\na{x=\"2\"} 1\na{x=\"3\"} 1e2\n\
         # TYPE g gauge\ng{} 1\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\n\
         h_bucket{le=\"+Inf\"} 4\nh_sum{} 4.75 17\nh_count{} 4\n\
         # TYPE s summary\ns{quantile=\"0.5\"} NaN\ns_sum{} 16\ns_count{} 2\n"
    );
}

#[test]
fn samples_that_belong_to_no_counter_stay_as_they_are() {
    let offsets = Offsets::default();
    let page = "a 5\n# TYPE b counter\nb 2\nb_sum 3\nbc 4\n# TYPE c untyped\nc 5\nb 6\n\
                # TYPE d counter\nd NaN\nd -1\nd +Inf\nd 0x1\n";
    let page = page.strip_suffix("d 0x1\n").unwrap();
    hand_over(&offsets, 4, page);
    assert_eq!(read(&offsets, 5, page), page.replacen("b 2", "b 4", 1));
}

#[test]
fn openmetrics_keeps_its_timestamps_and_exemplars() {
    let offsets = Offsets::default();
    let page = "# TYPE a counter\na_total{b=\"c\"} 1 1.5 # {id=\"x\"} 1 2.5\na_created{b=\"c\"} 9\n# EOF\n";
    for (epoch, value) in [(0, 1), (1, 2), (2, 3)] {
        let carrying = offsets.handing_over(epoch).unwrap();
        let (mut merge, mut out) = (Merge::new(Format::OpenMetrics), Vec::new());
        merge.begin(Format::OpenMetrics);
        merge.carry(carrying);
        merge.push(page.as_bytes(), &mut out).unwrap();
        merge.end(&mut out).unwrap();
        merge.finish(&mut out);
        let expected = page.replacen("} 1 1.5", &format!("}} {value} 1.5"), 1);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
    // As text, what is carried on has the same names.
    let (mut merge, mut out) = (Merge::new(Format::Text), Vec::new());
    merge.begin(Format::OpenMetrics);
    merge.carry(offsets.answered_by(3).unwrap());
    merge.push(page.as_bytes(), &mut out).unwrap();
    merge.end(&mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "# TYPE a_total counter\na_total{b=\"c\"} 4 1500\na_created{b=\"c\"} 9\n"
    );
}

fn counter(value: u64) -> String {
    format!("# TYPE a counter\na{{}} {value}\n")
}

#[test]
fn a_page_of_the_old_envoy_that_is_late_counts_as_well() {
    let offsets = Offsets::default();
    // Began before anything was prepared, and goes on.
    let early = offsets.connected().unwrap();
    hand_over(&offsets, 0, &counter(10));
    let late = offsets.answered_by(0).unwrap();
    assert_eq!(read(&offsets, 1, &counter(1)), counter(11));
    assert_eq!(shown(late, &counter(12)), counter(12));
    assert_eq!(read(&offsets, 1, &counter(1)), counter(13));
    assert_eq!(shown(early, &counter(20)), counter(20));
    assert_eq!(read(&offsets, 1, &counter(2)), counter(22));
    // Nothing can be said of one that asks only now.
    assert!(offsets.answered_by(0).is_none() && offsets.handing_over(0).is_none());
    assert_eq!(read(&offsets, 1, &counter(3)), counter(23));
}

#[test]
fn several_hand_overs_add_up_and_a_second_try_reads_again() {
    let offsets = Offsets::default();
    hand_over(&offsets, 0, &counter(10));
    // The first child failed, and Envoy has made the counter again meanwhile.
    hand_over(&offsets, 0, &counter(4));
    assert_eq!(read(&offsets, 1, &counter(1)), counter(5));
    hand_over(&offsets, 1, &counter(2));
    // Nobody reads while this one serves.
    hand_over(&offsets, 2, &counter(100));
    assert_eq!(read(&offsets, 3, &counter(0)), counter(106));
}

#[test]
fn a_counter_that_was_made_again_begins_anew() {
    let offsets = Offsets::default();
    hand_over(&offsets, 0, &counter(10));
    assert_eq!(read(&offsets, 1, &counter(5)), counter(15));
    let overlapping = offsets.answered_by(1).unwrap();
    assert_eq!(read(&offsets, 1, &counter(7)), counter(17));
    // Rendered earlier and read later: that is no new counter.
    assert_eq!(shown(overlapping, &counter(6)), counter(16));
    assert_eq!(read(&offsets, 1, &counter(3)), counter(3));
    assert_eq!(read(&offsets, 1, &counter(9)), counter(9));
    assert!(offsets.state().table.is_empty());
}

#[test]
fn after_a_crash_everything_begins_anew() {
    for (epoch, lost) in [(0, true), (1, true), (2, false)] {
        let offsets = Offsets::default();
        hand_over(&offsets, 0, &counter(10));
        assert_eq!(read(&offsets, 1, &counter(5)), counter(15));
        let before = offsets.answered_by(1).unwrap();
        offsets.starting(epoch);
        assert_eq!(offsets.connected().is_some(), lost, "{epoch}");
        // What was on its way says nothing about the new one.
        assert_eq!(shown(before, &counter(6)), counter(16));
        let (now, value) = if lost { (epoch, 7) } else { (1, 17) };
        assert_eq!(read(&offsets, now, &counter(7)), counter(value));
    }
    // One that died before it answered leaves what its successor needs.
    let offsets = Offsets::default();
    hand_over(&offsets, 0, &counter(10));
    offsets.starting(1);
    offsets.starting(1);
    assert_eq!(read(&offsets, 1, &counter(1)), counter(11));
}

#[test]
fn after_a_hand_over_it_always_has_to_be_asked() {
    // The connection may be one to the old Envoy, also where nothing is added to the new one.
    let offsets = Offsets::default();
    hand_over(&offsets, 0, &counter(0));
    assert_eq!(read(&offsets, 1, &counter(0)), counter(0));
    assert!(offsets.connected().is_none());
}

fn buckets(values: &[(&str, u64)]) -> String {
    let lines = values
        .iter()
        .map(|(le, value)| format!("h_bucket{{l=\"le=\",le=\"{le}\"}} {value}\n"));
    format!("# TYPE h histogram\n{}", lines.collect::<String>())
}

#[test]
fn bounds_that_are_new_have_what_the_ones_below_them_have() {
    let offsets = Offsets::default();
    hand_over(&offsets, 0, &buckets(&[("1", 2), ("4", 5), ("+Inf", 9)]));
    let second = [("0.5", 1), ("1", 1), ("2", 3), ("4", 3), ("+Inf", 3)];
    let expected = [("0.5", 1), ("1", 3), ("2", 5), ("4", 8), ("+Inf", 12)];
    assert_eq!(read(&offsets, 1, &buckets(&second)), buckets(&expected));
    // Other labels have nothing to do with it.
    let other = "h_bucket{le=\"1\"} 1\n";
    assert_eq!(
        read(&offsets, 1, &(buckets(&second) + other)),
        buckets(&expected) + other
    );
}

#[test]
fn series_have_a_limit_and_those_that_are_known_stay() {
    let offsets = Offsets::default();
    let page = |range: std::ops::Range<usize>| {
        let lines = range.map(|number| format!("a{{n=\"{number}\"}} 1\n"));
        format!("# TYPE a counter\n{}", lines.collect::<String>())
    };
    hand_over(&offsets, 0, &page(0..SERIES - 1));
    hand_over(&offsets, 0, &page(SERIES - 1..SERIES + 9));
    assert!(offsets.state().told);
    let later = read(&offsets, 1, &page(0..SERIES + 9));
    assert_eq!(later.matches("} 2\n").count(), SERIES);
    assert_eq!(later.matches("} 1\n").count(), 9);
    assert_eq!(offsets.state().table.len(), SERIES);
    offsets.starting(0);
    assert_eq!(offsets.state().table.len(), 0);
}

mod generated;
