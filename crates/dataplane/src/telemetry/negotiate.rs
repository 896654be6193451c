//! What whoever asks for a page can read, from the headers of the request. Decides nothing about
//! what sources can say.

use std::time::Duration;

use http::{HeaderMap, HeaderName, header};

use super::Format;

/// How long a page may take when the request does not say: Prometheus's own default.
const USUAL: Duration = Duration::from_secs(10);

/// How long a page may take at most, whatever the request says.
const LONGEST: Duration = Duration::from_secs(120);

/// How long whoever asks will wait, in seconds.
const SCRAPE_TIMEOUT: HeaderName = HeaderName::from_static("x-prometheus-scrape-timeout-seconds");

/// What the request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) format: Format,
    pub(super) gzip: bool,
    /// How long all sources together may take.
    pub(super) time: Duration,
}

impl Wish {
    pub(super) fn of(headers: &HeaderMap) -> Wish {
        let joined = |name| {
            let values = headers.get_all(name).into_iter();
            let texts: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
            texts.join(",")
        };
        Wish {
            format: format(&joined(&header::ACCEPT)),
            gzip: gzip(&joined(&header::ACCEPT_ENCODING)),
            time: headers
                .get(SCRAPE_TIMEOUT)
                .and_then(|value| time(value.to_str().ok()?))
                .unwrap_or(USUAL),
        }
    }
}

/// Nine tenths of what the reader grants; the rest is for the way.
fn time(seconds: &str) -> Option<Duration> {
    let granted = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    Some(granted.mul_f64(0.9).min(LONGEST)).filter(|time| !time.is_zero())
}

/// The items of a header that are wanted at all, in lower case: name, parameters and quality.
fn items(header: &str) -> impl Iterator<Item = (String, Vec<String>, f64)> + '_ {
    header.split(',').filter_map(|item| {
        let mut parts = item.split(';').map(|part| part.trim().to_ascii_lowercase());
        let name = parts.next().filter(|name| !name.is_empty())?;
        let (quality, parameters): (Vec<_>, Vec<_>) =
            parts.partition(|part| part.starts_with("q="));
        let quality = match quality.first() {
            None => 1.0,
            Some(text) => text.get(2..)?.trim().parse().ok()?,
        };
        (quality > 0.0).then_some((name, parameters, quality))
    })
}

/// OpenMetrics only for whoever prefers it: everybody reads text.
fn format(accept: &str) -> Format {
    let (mut open, mut text) = (0.0_f64, 0.0_f64);
    for (name, parameters, quality) in items(accept) {
        let version = parameters
            .iter()
            .find_map(|part| part.strip_prefix("version="))
            .map(|version| version.trim_matches('"'));
        match (name.as_str(), version) {
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

fn gzip(accept: &str) -> bool {
    items(accept).any(|(name, _, _)| matches!(name.as_str(), "gzip" | "x-gzip"))
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
            assert_eq!(format(accept), expected, "{accept}");
        }
        assert_eq!(
            sent("application/openmetrics-text; version=1.0.0"),
            Format::OpenMetrics
        );
        assert_eq!(sent("text/plain; version=0.0.4"), Format::Text);
    }

    #[test]
    fn gzip_is_for_whoever_takes_it() {
        for accept in ["gzip", "deflate, GZip;q=0.5", "br,gzip"] {
            assert!(gzip(accept), "{accept}");
        }
        for accept in ["", "identity", "gzip;q=0", "*"] {
            assert!(!gzip(accept), "{accept}");
        }
    }

    #[test]
    fn the_reader_says_how_long_it_waits() {
        let wish = |value: &'static str| {
            let headers = HeaderMap::from_iter([(SCRAPE_TIMEOUT, value.parse().unwrap())]);
            Wish::of(&headers).time
        };
        assert_eq!(wish("20"), Duration::from_secs(18));
        assert_eq!(wish("1e9"), LONGEST);
        for nonsense in ["", "0", "-1", "NaN", "soon", "1e300"] {
            assert_eq!(wish(nonsense), USUAL, "{nonsense}");
        }
    }
}
