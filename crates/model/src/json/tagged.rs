//! Enums whose variant is the object's `Kind` field.

use serde::de::value::StringDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, VariantAccess, Visitor,
};
use serde_json::{Map, Value};

use super::place::{Fault, Place, Segment};
use super::{Decoder, same_key};
use crate::served;

const KIND: &str = "Kind";

/// An object split into its `Kind` and the rest.
pub(super) struct Tagged {
    kind: String,
    rest: Map<String, Value>,
}

pub(super) fn take_kind(mut decoder: Decoder<'_>) -> Result<Tagged, Fault> {
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
    // The first two are Consul's words.
    let fault = |message: &str| Fault {
        path: Some(String::new()),
        message: message.to_owned(),
    };
    match spellings.as_slice() {
        [] => Err(fault(
            "Payload does not contain a kind/Kind key at the top level",
        )),
        [key] => match rest.remove(key) {
            Some(Value::String(kind)) => Ok(Tagged { kind, rest }),
            _ => Err(fault("Kind value in payload is not a string")),
        },
        _ => Err(fault("Kind: the field is given twice, in two spellings")),
    }
}

impl Tagged {
    pub(super) fn at(self, place: &Place) -> TaggedAccess<'_> {
        TaggedAccess {
            tagged: self,
            place,
        }
    }
}

pub(super) struct TaggedAccess<'a> {
    tagged: Tagged,
    place: &'a Place,
}

impl<'a, 'de> EnumAccess<'de> for TaggedAccess<'a> {
    type Error = Fault;
    type Variant = Decoder<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Decoder<'a>), Fault> {
        if served::is_unserved_kind(&self.tagged.kind) {
            self.place.note_unserved(KIND);
        }
        let kind: StringDeserializer<Fault> = self.tagged.kind.into_deserializer();
        let kind = self
            .place
            .at(Segment::Key(KIND), || seed.deserialize(kind))?;
        let fields = Decoder {
            value: Value::Object(self.tagged.rest),
            place: self.place,
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
