//! What headers say about the pages that are asked for and sent.

use std::time::Duration;

use http::{HeaderMap, HeaderName, header};

use super::Format;

/// How long a page may take when the request does not say: Prometheus's own default.
const DEFAULT_TIME: Duration = Duration::from_secs(10);

/// How long a page may take at most, whatever the request says.
const LONGEST_TIME: Duration = Duration::from_secs(120);

/// How long whoever asks will wait, in seconds.
const SCRAPE_TIMEOUT: HeaderName = HeaderName::from_static("x-prometheus-scrape-timeout-seconds");

/// How long a page may take: nine tenths of what the reader grants; the rest is for the transport.
pub(super) fn time(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(SCRAPE_TIMEOUT);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .map(|granted| granted.mul_f64(0.9).min(LONGEST_TIME))
        .filter(|time| !time.is_zero())
        .unwrap_or(DEFAULT_TIME)
}

/// OpenMetrics only for whoever prefers it: everybody reads text.
pub(super) fn wanted(headers: &HeaderMap) -> Format {
    let (mut open, mut text) = (0.0_f64, 0.0_f64);
    let values = headers.get_all(header::ACCEPT).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    for item in values.flat_map(|value| value.split(',')) {
        let item = item.to_ascii_lowercase();
        let (name, parameters) = item.split_once(';').unwrap_or((&item, ""));
        let parameter = |name| {
            let mut pairs = parameters
                .split(';')
                .filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(known, value)| (known.trim() == name).then_some(value.trim()))
        };
        // What is no number is not wanted.
        let quality = parameter("q").map_or(1.0, |number| number.parse().unwrap_or(0.0));
        let version = parameter("version").map(|text| text.trim_matches('"'));
        match (name.trim(), version) {
            ("application/openmetrics-text", None | Some("1.0.0")) => open = open.max(quality),
            ("text/plain", None | Some("0.0.4")) | ("text/*", _) => text = text.max(quality),
            _ => {}
        }
    }
    match open > text {
        true => Format::OpenMetrics,
        false => Format::Text,
    }
}

/// The format that a source says it has sent. Who says nothing speaks text.
pub(super) fn sent(content_type: &str) -> Format {
    let open = content_type
        .trim_start()
        .to_ascii_lowercase()
        .starts_with("application/openmetrics-text");
    match open {
        true => Format::OpenMetrics,
        false => Format::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_whoever_prefers_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "Application/OpenMetrics-Text; version=\"1.0.0\"",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=0.0.1,*/*;q=0.1",
                Format::Text,
            ),
            (
                "application/openmetrics-text;q=0.5,text/plain;q=0.5",
                Format::Text,
            ),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=x", Format::Text),
            ("*/*", Format::Text),
            ("", Format::Text),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            assert_eq!(wanted(&headers), expected, "{accept}");
        }
        assert_eq!(
            sent("application/openmetrics-text; version=1.0.0"),
            Format::OpenMetrics
        );
        assert_eq!(sent("text/plain; version=0.0.4"), Format::Text);
    }

    #[test]
    fn the_reader_says_how_long_it_waits() {
        let time = |value: &'static str| {
            time(&HeaderMap::from_iter([(
                SCRAPE_TIMEOUT,
                value.parse().unwrap(),
            )]))
        };
        assert_eq!(time("20"), Duration::from_secs(18));
        assert_eq!(time("1e9"), LONGEST_TIME);
        for nonsense in ["", "0", "-1", "NaN", "soon", "1e300"] {
            assert_eq!(time(nonsense), DEFAULT_TIME, "{nonsense}");
        }
    }
}
