//! A `serde` deserializer over a JSON value that tracks its position in the document.

use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde_json::{Map, Value};

use super::position::{Fault, Notes, Position, Segment};

/// A map of opaque JSON values with verbatim keys.
pub type Opaque = Map<String, Value>;

/// Name that requests an enum whose variant is the object's `Kind` field.
pub(crate) const KIND_TAGGED: &str = "$legate_model::kind-tagged";

const KIND: &str = "Kind";

/// Handling of fields that the target type does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownFields {
    /// Skip them.
    Ignore,
    /// Fail with an error that lists all of them.
    Refuse,
}

/// A document that cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The text is not JSON.
    #[error("not valid JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A value has the wrong type, is out of range, or is missing.
    #[error("{}{message}", prefix(path))]
    Value {
        /// Its path, e.g. `Proxy.Upstreams[0].LocalBindPort`; empty for the document itself.
        path: String,
        /// The problem.
        message: String,
    },
    /// The document has fields that the target type does not have.
    #[error("{}", unknown(fields))]
    UnknownFields {
        /// Their paths.
        fields: Vec<String>,
    },
}

fn prefix(path: &str) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!("{path}: ")
    }
}

fn unknown(fields: &[String]) -> String {
    let keys: Vec<String> = fields
        .iter()
        .map(|field| format!("invalid config key {field:?}"))
        .collect();
    let plural = if fields.len() == 1 { "" } else { "s" };
    format!("{} error{plural}: {}", fields.len(), keys.join(", "))
}

/// Whether two spellings denote the same field.
pub fn same_key(a: &str, b: &str) -> bool {
    let plain = |text: &str| -> Vec<u8> {
        text.bytes()
            .filter(|byte| *byte != b'_')
            .map(|byte| byte.to_ascii_lowercase())
            .collect()
    };
    plain(a) == plain(b)
}

/// Decodes a JSON text.
///
/// # Errors
///
/// [`DecodeError`] contains the problem and its position.
pub fn from_slice<T: DeserializeOwned>(
    text: &[u8],
    unknown: UnknownFields,
) -> Result<T, DecodeError> {
    from_value(serde_json::from_slice(text)?, unknown)
}

/// Decodes a JSON value.
///
/// # Errors
///
/// [`DecodeError`] contains the problem and its position.
pub fn from_value<T: DeserializeOwned>(
    value: Value,
    unknown: UnknownFields,
) -> Result<T, DecodeError> {
    let (decoded, notes) = run(value, Position::default())?;
    if unknown == UnknownFields::Refuse {
        refuse_unknown(&notes)?;
    }
    Ok(decoded)
}

/// Decodes a document and returns the notes that were collected.
pub(super) fn run<T: DeserializeOwned>(
    value: Value,
    place: Position,
) -> Result<(T, Notes), DecodeError> {
    let decoder = Decoder {
        value,
        place: &place,
    };
    let decoded = T::deserialize(decoder).map_err(|fault| DecodeError::Value {
        path: fault.path.unwrap_or_default(),
        message: fault.message,
    })?;
    Ok((decoded, place.into_notes()))
}

pub(super) fn refuse_unknown(notes: &Notes) -> Result<(), DecodeError> {
    match notes.unknown.is_empty() {
        true => Ok(()),
        false => Err(DecodeError::UnknownFields {
            fields: notes.unknown.clone(),
        }),
    }
}

/// One value and its position.
struct Decoder<'a> {
    value: Value,
    place: &'a Position,
}

impl Decoder<'_> {
    /// In HCL, a list with one object is equivalent to the object.
    fn take_only(&mut self) {
        if self.place.is_hcl
            && let Value::Array(items) = &mut self.value
            && let [Value::Object(_)] = items.as_slice()
            && let Some(only) = items.pop()
        {
            self.value = only;
        }
    }

    fn unexpected(&self) -> Unexpected<'_> {
        match &self.value {
            Value::Null => Unexpected::Other("null"),
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(_) => Unexpected::Other("number"),
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        }
    }
}

impl<'de> Deserializer<'de> for Decoder<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Array(items) => visitor.visit_seq(Items {
                items: items.into_iter().enumerate(),
                place: self.place,
            }),
            Value::Object(fields) => visitor.visit_map(Entries {
                entries: fields.into_iter(),
                next: None,
                place: self.place,
            }),
            scalar => scalar
                .deserialize_any(visitor)
                .map_err(<Fault as de::Error>::custom),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Fault> {
        if self.place.is_hcl && !self.value.is_array() {
            self.value = Value::Array(vec![self.value]);
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Fault> {
        self.take_only();
        self.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.take_only();
        match self.value {
            Value::Object(object) => visitor.visit_map(Fields {
                known: known_fields(object, name, fields, self.place)?.into_iter(),
                next: None,
                place: self.place,
            }),
            _ => Err(de::Error::invalid_type(self.unexpected(), &"an object")),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name == KIND_TAGGED {
            visitor.visit_enum(take_kind(self)?)
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.value {
            Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            _ => Err(de::Error::invalid_type(self.unexpected(), &"a string")),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct identifier ignored_any
    }
}

/// Gives every key its canonical spelling, drops nulls, and notes fields that are unknown or have no
/// effect.
fn known_fields(
    object: Map<String, Value>,
    target: &str,
    fields: &'static [&'static str],
    place: &Position,
) -> Result<Vec<(&'static str, Value)>, Fault> {
    let mut known: Vec<(&'static str, Value)> = Vec::with_capacity(object.len());
    for (key, value) in object {
        let Some(field) = fields.iter().find(|field| same_key(field, &key)) else {
            place.note_unknown(&key);
            continue;
        };
        if value.is_null() {
            continue;
        }
        if known.iter().any(|(other, _)| other == field) {
            return place.at(Segment::Key(field), || {
                Err(de::Error::custom(
                    "the field is given twice, in two spellings",
                ))
            });
        }
        place.note_unserved(target, field, &value);
        known.push((field, value));
    }
    Ok(known)
}

/// The fields of a struct.
struct Fields<'a> {
    known: std::vec::IntoIter<(&'static str, Value)>,
    next: Option<(&'static str, Value)>,
    place: &'a Position,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.next = self.known.next();
        match &self.next {
            None => Ok(None),
            Some((field, _)) => {
                let key: StrDeserializer<'_, Fault> = field.into_deserializer();
                seed.deserialize(key).map(Some)
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (field, value) = self.next.take().ok_or_else(value_before_key)?;
        let place = self.place;
        place.at(Segment::Key(field), || {
            seed.deserialize(Decoder { value, place })
        })
    }
}

fn value_before_key() -> Fault {
    de::Error::custom("a value was requested before its key")
}

/// The entries of a map, whose keys are user-defined.
struct Entries<'a> {
    entries: serde_json::map::IntoIter,
    next: Option<(String, Value)>,
    place: &'a Position,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.next = self.entries.next();
        match &self.next {
            None => Ok(None),
            Some((key, _)) => {
                let key: StringDeserializer<Fault> = key.clone().into_deserializer();
                seed.deserialize(key).map(Some)
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (key, value) = self.next.take().ok_or_else(value_before_key)?;
        let place = self.place;
        place.at(Segment::Key(&key), || {
            seed.deserialize(Decoder { value, place })
        })
    }
}

/// The items of a list.
struct Items<'a> {
    items: std::iter::Enumerate<std::vec::IntoIter<Value>>,
    place: &'a Position,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some((index, value)) = self.items.next() else {
            return Ok(None);
        };
        let place = self.place;
        place
            .at(Segment::Index(index), || {
                seed.deserialize(Decoder { value, place })
            })
            .map(Some)
    }
}

/// An object split into its `Kind` and the rest.
struct Tagged<'a> {
    kind: Value,
    rest: Map<String, Value>,
    place: &'a Position,
}

fn take_kind(mut decoder: Decoder<'_>) -> Result<Tagged<'_>, Fault> {
    decoder.take_only();
    let Value::Object(mut rest) = decoder.value else {
        return Err(de::Error::invalid_type(
            decoder.unexpected(),
            &"an object with the field Kind",
        ));
    };
    let spellings: Vec<String> = rest
        .keys()
        .filter(|key| same_key(key, KIND))
        .cloned()
        .collect();
    // The first two texts are Consul's.
    let fault = |message: &str| Fault {
        path: Some(String::new()),
        message: message.to_owned(),
    };
    match spellings.as_slice() {
        [] => Err(fault(
            "Payload does not contain a kind/Kind key at the top level",
        )),
        [key] => match rest.remove(key) {
            Some(kind @ Value::String(_)) => Ok(Tagged {
                kind,
                rest,
                place: decoder.place,
            }),
            _ => Err(fault("Kind value in payload is not a string")),
        },
        _ => Err(fault("Kind: the field is given twice, in two spellings")),
    }
}

impl<'a, 'de> EnumAccess<'de> for Tagged<'a> {
    type Error = Fault;
    type Variant = Decoder<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Decoder<'a>), Fault> {
        let Self { kind, rest, place } = self;
        place.note_unserved(KIND_TAGGED, KIND, &kind);
        let kind = Decoder { value: kind, place };
        let kind = place.at(Segment::Key(KIND), || seed.deserialize(kind))?;
        let fields = Decoder {
            value: Value::Object(rest),
            place,
        };
        Ok((kind, fields))
    }
}

impl<'de> VariantAccess<'de> for Decoder<'_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_struct("", fields, visitor)
    }
}
