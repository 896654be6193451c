//! Values of settings before they mean anything: what one source says, and the layers of all
//! sources on top of each other.

use std::collections::BTreeMap;

use super::go;
use super::table::{Item, Kind, SETTINGS, Setting};

/// A parsed value. It may be a secret, so it has no `Debug` outside of tests.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Value {
    Text(String),
    Int(i64),
    Bool(bool),
    /// Nanoseconds, possibly negative.
    Duration(i64),
    Pairs(BTreeMap<String, String>),
}

impl Value {
    /// Reads a value as a flag or a variable gives it.
    pub(super) fn parse(kind: Kind, text: &str) -> Result<Self, String> {
        Ok(match kind {
            Kind::Text | Kind::Secret => Self::Text(text.to_owned()),
            Kind::Int => Self::Int(go::parse_int(text)?),
            Kind::Bool => Self::Bool(go::parse_bool(text)?),
            Kind::Duration => Self::Duration(go::parse_duration(text)?),
            Kind::Pairs => {
                let Some((key, value)) = text.split_once('=') else {
                    return Err(format!("Missing \"=\" value in argument: {text}"));
                };
                Self::Pairs(BTreeMap::from([(key.to_owned(), value.to_owned())]))
            }
        })
    }
}

/// Where a value comes from; a later one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Default,
    File,
    Environment,
    Flag,
}

/// Values of some settings, each with the strongest source that gave one.
#[derive(Clone, Default)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Values(BTreeMap<Item, (Source, Value)>);

impl Values {
    /// Adds a value: it replaces one of a weaker or the same source, pairs replace one by one.
    pub(super) fn put(&mut self, key: Item, source: Source, value: Value) {
        let Some((present, old)) = self.0.get_mut(&key) else {
            self.0.insert(key, (source, value));
            return;
        };
        let stronger = source >= *present;
        match (old, value) {
            (Value::Pairs(old), Value::Pairs(new)) => {
                for (name, value) in new {
                    if stronger || !old.contains_key(&name) {
                        old.insert(name, value);
                    }
                }
            }
            (old, new) if stronger => *old = new,
            _ => {}
        }
        *present = source.max(*present);
    }

    /// Adds all values of another source.
    pub(super) fn merge(&mut self, other: Self) {
        for (key, (source, value)) in other.0 {
            self.put(key, source, value);
        }
    }

    /// The strongest source that gave the setting a value, an empty one included.
    pub(super) fn source(&self, key: Item) -> Source {
        self.0
            .get(&key)
            .map_or(Source::Default, |(source, _)| *source)
    }

    /// Whether any source gave a value.
    pub(super) fn given(&self, key: Item) -> bool {
        self.0.contains_key(&key)
    }

    pub(super) fn text(&self, key: Item) -> &str {
        match self.0.get(&key) {
            Some((_, Value::Text(text))) => text,
            _ => key.setting().default.unwrap_or_default(),
        }
    }

    /// The text, unless it is empty.
    pub(super) fn some_text(&self, key: Item) -> Option<&str> {
        Some(self.text(key)).filter(|text| !text.is_empty())
    }

    pub(super) fn int(&self, key: Item) -> i64 {
        match self.get(key) {
            Some(Value::Int(number)) => number,
            _ => 0,
        }
    }

    pub(super) fn bool(&self, key: Item) -> bool {
        matches!(self.get(key), Some(Value::Bool(true)))
    }

    /// Nanoseconds.
    pub(super) fn duration(&self, key: Item) -> i64 {
        match self.get(key) {
            Some(Value::Duration(nanoseconds)) => nanoseconds,
            _ => 0,
        }
    }

    pub(super) fn pairs(&self, key: Item) -> BTreeMap<String, String> {
        match self.get(key) {
            Some(Value::Pairs(pairs)) => pairs,
            _ => BTreeMap::new(),
        }
    }

    /// The value, or the declared default. That defaults parse, and that every setting is read as
    /// what it is declared to be, is tested.
    fn get(&self, key: Item) -> Option<Value> {
        let Setting { kind, default, .. } = key.setting();
        let given = self.0.get(&key).map(|(_, value)| value.clone());
        given.or_else(|| Value::parse(*kind, (*default)?).ok())
    }
}

/// The setting behind a flag.
pub(super) fn by_flag(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.flag == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_sound() {
        for (position, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.key as usize, position);
            if let Some(default) = setting.default {
                assert!(
                    Value::parse(setting.kind, default).is_ok(),
                    "-{}",
                    setting.flag
                );
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
        let text = |text: &str| Value::Text(text.to_owned());
        let mut values = Values::default();
        values.put(Item::Addresses, Source::Flag, text(""));
        values.put(Item::Addresses, Source::File, text("file"));
        values.put(Item::Addresses, Source::Environment, text("env"));
        assert_eq!(values.text(Item::Addresses), "");
        values.put(Item::Addresses, Source::Flag, text("last"));
        assert_eq!(values.text(Item::Addresses), "last");
        assert_eq!(values.source(Item::Addresses), Source::Flag);
    }

    #[test]
    fn pairs_merge_key_by_key() {
        let pairs = |text: &str| Value::parse(Kind::Pairs, text).unwrap();
        let mut values = Values::default();
        for (source, pair) in [
            (Source::Flag, "a=flag"),
            (Source::File, "a=file"),
            (Source::File, "b=file"),
            (Source::Environment, "c=env=2"),
            (Source::Flag, "c="),
        ] {
            values.put(Item::LoginMeta, source, pairs(pair));
        }
        let expected = [("a", "flag"), ("b", "file"), ("c", "")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(values.pairs(Item::LoginMeta), BTreeMap::from(expected));
    }
}
