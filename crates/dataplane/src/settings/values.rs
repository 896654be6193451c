//! The merged values of all sources: for each setting the text from the strongest source, valid for
//! the type of the setting. Accessors parse it; its meaning is defined elsewhere.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};

use super::go;
use super::table::{Item, Kind};

/// The source of a value; a later variant takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Default,
    File,
    Environment,
    Flag,
}

/// The values of all sources. The entries of [`Kind::Pairs`] have names; all other values have the
/// empty name. Values may be secrets, so there is no `Debug` outside of tests.
#[derive(Default)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Values(BTreeMap<(Item, String), (Source, String)>);

impl Values {
    /// Stores a value as given by a flag or a variable.
    pub(super) fn put(&mut self, item: Item, source: Source, text: &str) -> Result<(), String> {
        match item.setting().kind {
            Kind::Text | Kind::Secret => {}
            Kind::Int => drop(go::parse_int(text)?),
            Kind::Bool => drop(go::parse_bool(text)?),
            Kind::Duration => drop(go::parse_duration(text)?),
            Kind::Pairs => {
                let Some((name, value)) = text.split_once('=') else {
                    return Err(format!("Missing \"=\" value in argument: {text}"));
                };
                self.put_named(item, name, source, value);
                return Ok(());
            }
        }
        self.put_named(item, "", source, text);
        Ok(())
    }

    /// Stores a value that is known to be valid, unless a stronger source has set one.
    pub(super) fn put_named(&mut self, item: Item, name: &str, source: Source, value: &str) {
        let entry = self.0.entry((item, name.to_owned()));
        let present = entry.or_insert((source, String::new()));
        if source >= present.0 {
            *present = (source, value.to_owned());
        }
    }

    fn get(&self, item: Item) -> Option<&(Source, String)> {
        self.0.get(&(item, String::new()))
    }

    /// The strongest source that has set the setting, even to an empty value.
    pub(super) fn source(&self, item: Item) -> Source {
        self.get(item)
            .map_or(Source::Default, |(source, _)| *source)
    }

    /// Whether any source has set the setting.
    pub(super) fn given(&self, item: Item) -> bool {
        self.get(item).is_some()
    }

    /// The value, or the declared default. Tests check that defaults are valid, and that every
    /// setting is read as its declared type.
    pub(super) fn text(&self, item: Item) -> &str {
        match self.get(item) {
            Some((_, text)) => text,
            None => item.setting().default.unwrap_or_default(),
        }
    }

    /// The text, unless it is empty.
    pub(super) fn some_text(&self, item: Item) -> Option<&str> {
        Some(self.text(item)).filter(|text| !text.is_empty())
    }

    pub(super) fn int(&self, item: Item) -> i64 {
        go::parse_int(self.text(item)).unwrap_or_default()
    }

    pub(super) fn bool(&self, item: Item) -> bool {
        go::parse_bool(self.text(item)).unwrap_or_default()
    }

    pub(super) fn pairs(&self, item: Item) -> BTreeMap<String, String> {
        let pairs = self.0.iter().filter(|((of, _), _)| *of == item);
        let pairs = pairs.map(|((_, name), (_, value))| (name.clone(), value.clone()));
        pairs.collect()
    }

    /// `None` for a negative duration.
    pub(super) fn duration(&self, item: Item) -> Option<Duration> {
        let nanoseconds = go::parse_duration(self.text(item)).unwrap_or_default();
        u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
    }

    pub(super) fn path(&self, item: Item) -> Option<PathBuf> {
        self.some_text(item).map(PathBuf::from)
    }

    pub(super) fn socket(&self, ip: Item, port: Item) -> anyhow::Result<SocketAddr> {
        Ok(SocketAddr::new(self.address(ip)?, self.port(port)?))
    }

    pub(super) fn address(&self, item: Item) -> anyhow::Result<IpAddr> {
        let text = self.text(item);
        parse_ip(text).with_context(|| format!("{item} {text:?} is not an IP address"))
    }

    pub(super) fn port(&self, item: Item) -> anyhow::Result<u16> {
        let value = self.int(item);
        let port = u16::try_from(value);
        port.map_err(|_| anyhow!("{item} {value} is not a port: use 0 to 65535"))
    }

    /// The port; 0 counts as unset.
    pub(super) fn port_or_default(&self, item: Item) -> anyhow::Result<u16> {
        match self.port(item)? {
            0 => Values::default().port(item),
            port => Ok(port),
        }
    }

    pub(super) fn count(&self, item: Item) -> anyhow::Result<u32> {
        let value = self.int(item);
        let count = u32::try_from(value);
        count.map_err(|_| anyhow!("{item} {value} is out of range: use 0 to 4294967295"))
    }

    pub(super) fn seconds(&self, item: Item) -> anyhow::Result<Duration> {
        Ok(Duration::from_secs(self.count(item)?.into()))
    }
}

/// Parses an IP address, with or without brackets.
pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    let inner = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    inner.unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::table::{SETTINGS, Setting};
    use super::*;

    #[test]
    fn declarations_are_consistent() {
        for (position, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.key as usize, position);
            if let Some(default) = setting.default {
                let put = Values::default().put(setting.key, Source::Flag, default);
                assert_eq!(put, Ok(()), "-{}", setting.flag);
            }
            assert!(!setting.doc.ends_with('.'), "-{}", setting.flag);
            let unique = |of: fn(&Setting) -> Option<&'static str>| {
                let mine = of(setting);
                mine.is_none() || SETTINGS.iter().filter(|other| of(other) == mine).count() == 1
            };
            assert!(unique(|setting| Some(setting.flag)), "-{}", setting.flag);
            assert!(unique(|setting| setting.env), "-{}", setting.flag);
            assert!(unique(|setting| setting.file), "-{}", setting.flag);
        }
    }

    #[test]
    fn the_stronger_source_wins_in_any_order() {
        let mut values = Values::default();
        let mut put = |source, text| values.put(Item::Addresses, source, text).unwrap();
        put(Source::Flag, "");
        put(Source::File, "file");
        put(Source::Environment, "env");
        assert_eq!(values.text(Item::Addresses), "");
        values.put(Item::Addresses, Source::Flag, "last").unwrap();
        assert_eq!(values.text(Item::Addresses), "last");
        assert_eq!(values.source(Item::Addresses), Source::Flag);
    }

    #[test]
    fn pairs_merge_key_by_key() {
        let mut values = Values::default();
        for (source, pair) in [
            (Source::Flag, "a=flag"),
            (Source::File, "a=file"),
            (Source::File, "b=file"),
            (Source::Environment, "c=env=2"),
            (Source::Flag, "c="),
        ] {
            values.put(Item::LoginMeta, source, pair).unwrap();
        }
        let expected = [("a", "flag"), ("b", "file"), ("c", "")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(values.pairs(Item::LoginMeta), BTreeMap::from(expected));
    }
}
