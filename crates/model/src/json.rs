//! Decoding of JSON that people and Consul's clients write.
//!
//! Keys may be in any case and with or without underscores (`ServiceName`, `service_name`,
//! `servicename`); `null` means that the field is absent; unknown fields are ignored or all of them
//! are reported; errors say where in the document they are. Keys of maps are data and are kept.

mod place;
mod tagged;

use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use self::place::{Fault, Met, Place, Segment};
use self::tagged::take_kind;
use crate::served;

/// Asks the decoder for an enum whose variant is the object's `Kind` field.
pub(crate) const KIND_TAGGED: &str = "$legate_model::kind-tagged";

/// What happens to fields that the target does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownFields {
    /// They are skipped.
    Ignore,
    /// They are an error that names every one of them.
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
        /// Where it is, e.g. `Proxy.Upstreams[0].LocalBindPort`; empty for the document itself.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// There are fields that the target does not have.
    #[error("{}", unknown(fields))]
    UnknownFields {
        /// The path of every one of them.
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

/// Decodes a JSON text.
///
/// # Errors
///
/// [`DecodeError`] says what is wrong and where.
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
/// [`DecodeError`] says what is wrong and where.
pub fn from_value<T: DeserializeOwned>(
    value: Value,
    unknown: UnknownFields,
) -> Result<T, DecodeError> {
    let (decoded, met) = run(value)?;
    if unknown == UnknownFields::Refuse {
        refuse_unknown(&met)?;
    }
    Ok(decoded)
}

/// Decodes what [`crate::hcl::to_json`] has made of a text: where a list is wanted one value stands
/// for a list of it, and where an object is wanted a list of one object stands for it, as in Consul.
/// Unknown fields are refused.
///
/// # Errors
///
/// [`DecodeError`] says what is wrong and where.
pub fn from_hcl<T: DeserializeOwned>(value: Value) -> Result<Request<T>, DecodeError> {
    let (value, met) = run_at(value, Place::of_hcl())?;
    refuse_unknown(&met)?;
    Ok(Request {
        value,
        not_served: met.unserved,
    })
}

/// A request's body.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<T> {
    /// What was sent.
    pub value: T,
    /// The paths of fields that are kept and have no effect here; see [`crate::served`].
    pub not_served: Vec<String>,
}

/// Decodes the body of a request: unknown fields are refused.
///
/// # Errors
///
/// [`DecodeError`] says what is wrong and where.
pub fn request<T: DeserializeOwned>(text: &[u8]) -> Result<Request<T>, DecodeError> {
    let (value, met) = run(serde_json::from_slice(text)?)?;
    refuse_unknown(&met)?;
    Ok(Request {
        value,
        not_served: met.unserved,
    })
}

fn run<T: DeserializeOwned>(value: Value) -> Result<(T, Met), DecodeError> {
    run_at(value, Place::default())
}

fn run_at<T: DeserializeOwned>(value: Value, place: Place) -> Result<(T, Met), DecodeError> {
    let decoder = Decoder {
        value,
        place: &place,
    };
    let decoded = T::deserialize(decoder).map_err(|fault| DecodeError::Value {
        path: fault.path.unwrap_or_default(),
        message: fault.message,
    })?;
    Ok((decoded, place.into_met()))
}

fn refuse_unknown(met: &Met) -> Result<(), DecodeError> {
    match met.unknown.is_empty() {
        true => Ok(()),
        false => Err(DecodeError::UnknownFields {
            fields: met.unknown.clone(),
        }),
    }
}

/// One value and where it stands.
struct Decoder<'a> {
    value: Value,
    place: &'a Place,
}

impl Decoder<'_> {
    /// In HCL a list of one object stands for the object.
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
            let place = self.place;
            visitor.visit_enum(take_kind(self)?.at(place))
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

/// Writes an empty list as `null`, as Consul shows lists that nobody gave: clients in Go tell the two
/// apart.
pub(crate) fn null_if_empty<T: Serialize, S: Serializer>(
    items: &Vec<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match items.is_empty() {
        true => serializer.serialize_none(),
        false => items.serialize(serializer),
    }
}

/// Whether two spellings mean the same field.
pub fn same_key(a: &str, b: &str) -> bool {
    let plain = |text: &str| -> Vec<u8> {
        text.bytes()
            .filter(|byte| *byte != b'_')
            .map(|byte| byte.to_ascii_lowercase())
            .collect()
    };
    plain(a) == plain(b)
}

/// Gives every key its canonical spelling, leaves out nulls, and notes what is unknown or without
/// effect.
fn known_fields(
    object: Map<String, Value>,
    target: &str,
    fields: &'static [&'static str],
    place: &Place,
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
        for unserved in served::unserved(target, field, &value) {
            place.note_unserved(&unserved);
        }
        known.push((field, value));
    }
    Ok(known)
}

/// The fields of a struct.
struct Fields<'a> {
    known: std::vec::IntoIter<(&'static str, Value)>,
    next: Option<(&'static str, Value)>,
    place: &'a Place,
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
    de::Error::custom("a value was asked for before its key")
}

/// The entries of a map, whose keys are data.
struct Entries<'a> {
    entries: serde_json::map::IntoIter,
    next: Option<(String, Value)>,
    place: &'a Place,
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
    place: &'a Place,
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
