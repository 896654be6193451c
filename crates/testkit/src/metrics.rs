//! Parses metrics pages in the Prometheus text format as strictly as Prometheus.

use std::collections::{HashMap, HashSet};

/// The value of every series, by name and labels as written.
///
/// # Panics
///
/// If a series or the type of a family occurs twice, or a line is neither a comment nor a sample.
#[track_caller]
pub fn series(page: &str) -> HashMap<&str, f64> {
    let (mut values, mut families) = (HashMap::new(), HashSet::new());
    for line in page.lines() {
        if let Some(metadata) = line.strip_prefix("# TYPE ") {
            let family = metadata.split(' ').next();
            assert!(families.insert(family), "twice on the page: {line}");
        }
        if line.starts_with('#') {
            continue;
        }
        let sample = line.rsplit_once(' ');
        let sample = sample.and_then(|(series, value)| Some((series, value.parse().ok()?)));
        let (series, value) = sample.unwrap_or_else(|| panic!("not a sample: {line}"));
        let twice = values.insert(series, value).is_some();
        assert!(!twice, "twice on the page: {line}");
    }
    values
}
