//! The query of a request to the admin interface.

use percent_encoding::percent_decode_str;
use regex::{Regex, RegexBuilder};

use super::Page;

/// The largest program of a regular expression, in bytes. A hostile one is refused.
const REGEX_LIMIT: usize = 256 * 1024;

/// The formats of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    Prometheus,
}

/// The parameters of a request, decoded.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the part after `?`. As in Envoy, `+` stands for itself.
    pub(super) fn parse(query: &str) -> Query {
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let parts = query.split('&').filter(|part| !part.is_empty());
        let pairs = parts.map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(name), decode(value))
        });
        Query(pairs.collect())
    }

    /// Whether it is there, with or without a value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All of them, in their order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.0.iter();
        pairs.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Its first value.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(key, _)| key == name);
        pair.map(|(_, value)| value.as_str())
    }

    /// The regular expression in a parameter; `None` without one.
    ///
    /// # Errors
    /// The page that refuses it.
    pub(super) fn regex(&self, name: &str) -> Result<Option<Regex>, Page> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let regex = RegexBuilder::new(text)
            .size_limit(REGEX_LIMIT)
            .dfa_size_limit(REGEX_LIMIT)
            .build();
        regex
            .map(Some)
            .map_err(|error| Page::bad(format!("Invalid regular expression in {name}: {error}\n")))
    }

    /// The format.
    ///
    /// # Errors
    /// The page that refuses one that is not in `allowed`.
    pub(super) fn format(&self, path: &str, allowed: &[(&str, Format)]) -> Result<Format, Page> {
        let Some(wanted) = self.get("format") else {
            return Ok(Format::Text);
        };
        let found = allowed.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, format)| *format).ok_or_else(|| {
            let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
            let names = names.join("|");
            Page::bad(format!(
                "usage: {path}?format=({names}): the built-in proxy has no other format\n"
            ))
        })
    }

    /// Refuses parameters that are not served.
    ///
    /// # Errors
    /// The page that names the first one.
    pub(super) fn refuse(&self, names: &[&str]) -> Result<(), Page> {
        let found = names.iter().find(|name| self.has(name));
        found.map_or(Ok(()), |name| {
            Err(Page::bad(format!(
                "the built-in proxy does not serve the parameter {name}: run with -proxy envoy for it\n"
            )))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::parse("usedonly&filter=%5Elistener%5C..*%28a%7Cb%29%24&x=1+1&&y=");
        assert!(query.has("usedonly") && query.has("y") && !query.has("z"));
        assert_eq!(query.get("filter"), Some(r"^listener\..*(a|b)$"));
        assert_eq!(query.get("x"), Some("1+1"));
    }

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        for (query, expected) in [
            ("filter=(", "Invalid regular expression in filter"),
            ("filter=(a{1000}){1000}", "size limit"),
        ] {
            let page = Query::parse(query).regex("filter").unwrap_err();
            assert_eq!(page.status, http::StatusCode::BAD_REQUEST);
            assert!(page.body.contains(expected), "{}", page.body);
        }
        let page = Query::parse("mask=a")
            .refuse(&["resource", "mask"])
            .unwrap_err();
        assert!(page.body.contains("parameter mask"), "{}", page.body);
        let page = Query::parse("format=html").format("/stats", &[("text", Format::Text)]);
        assert!(page.unwrap_err().body.contains("?format=(text)"));
    }
}
