//! Asks a value one question: a serialiser that goes where the selector leads, and answers there.

use std::fmt;

use serde::ser::{self, Impossible, Serialize, Serializer};

use crate::question::Question;

/// Whether the condition holds for a value.
pub(crate) fn holds<T: Serialize + ?Sized>(question: &Question, value: &T) -> bool {
    walk(Ask::Field(question, 0), value)
}

fn walk<T: Serialize + ?Sized>(ask: Ask<'_>, value: &T) -> bool {
    value.serialize(Walker(ask)).unwrap_or(false)
}

/// Whether an item or a key is what is looked for.
fn is_item<T: Serialize + ?Sized>(question: &Question, item: &T) -> bool {
    question
        .item()
        .is_some_and(|text| walk(Ask::Is(text), item))
}

/// What a value is asked.
#[derive(Clone, Copy)]
enum Ask<'a> {
    /// The question, of what stands behind so many steps of its way.
    Field(&'a Question, usize),
    /// Whether it is this text.
    Is(&'a str),
}

impl<'a> Ask<'a> {
    /// The question, when the field is reached.
    fn here(self) -> Option<&'a Question> {
        match self {
            Ask::Field(question, depth) if depth == question.steps().len() => Some(question),
            _ => None,
        }
    }

    /// The name of the next step, and what is asked behind it.
    fn next(self) -> Option<(&'a str, Ask<'a>)> {
        let Ask::Field(question, depth) = self else {
            return None;
        };
        let step = question.steps().get(depth)?;
        Some((&step.key, Ask::Field(question, depth + 1)))
    }

    /// The answer where the next step leads nowhere. `record`: because a record left it out.
    fn absent(self, record: bool) -> bool {
        match self {
            Ask::Field(question, depth) if record => question.left_out(depth),
            Ask::Field(question, _) => question.missing(),
            Ask::Is(_) => false,
        }
    }

    /// The answer where a value is null, as one that its record left out.
    fn null(self) -> bool {
        match self {
            Ask::Field(question, depth) => question.left_out(depth.saturating_sub(1)),
            Ask::Is(_) => false,
        }
    }
}

/// Answers instead of writing.
struct Walker<'a>(Ask<'a>);

impl Walker<'_> {
    fn text(&self, own: &str) -> bool {
        match self.0 {
            Ask::Is(text) => own == text,
            ask => match ask.here() {
                Some(question) => question.text(own),
                None => ask.absent(false),
            },
        }
    }

    fn integer(&self, own: i128) -> bool {
        let here = self.0.here();
        here.map_or_else(|| self.0.absent(false), |question| question.integer(own))
    }
}

/// A value that does not serialise.
#[derive(Debug)]
struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value cannot be serialised")
    }
}

impl std::error::Error for Failed {}

impl ser::Error for Failed {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Failed
    }
}

macro_rules! integers {
    ($($name:ident $type:ty),*) => {$(
        fn $name(self, value: $type) -> Result<bool, Failed> {
            Ok(self.integer(i128::from(value)))
        }
    )*};
}

impl<'a> Serializer for Walker<'a> {
    type Ok = bool;
    type Error = Failed;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Impossible<bool, Failed>;
    type SerializeMap = Entries<'a>;
    type SerializeStruct = Entries<'a>;
    type SerializeStructVariant = Impossible<bool, Failed>;

    integers!(
        serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64
    );

    fn serialize_bool(self, value: bool) -> Result<bool, Failed> {
        let here = self.0.here();
        Ok(here.map_or_else(|| self.0.absent(false), |question| question.boolean(value)))
    }

    /// No field of a filter has fractions.
    fn serialize_f32(self, _: f32) -> Result<bool, Failed> {
        Ok(self.0.absent(false))
    }

    fn serialize_f64(self, _: f64) -> Result<bool, Failed> {
        Ok(self.0.absent(false))
    }

    fn serialize_char(self, value: char) -> Result<bool, Failed> {
        Ok(self.text(value.encode_utf8(&mut [0; 4])))
    }

    fn serialize_str(self, value: &str) -> Result<bool, Failed> {
        Ok(self.text(value))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<bool, Failed> {
        Ok(self.0.absent(false))
    }

    fn serialize_none(self) -> Result<bool, Failed> {
        Ok(self.0.null())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<bool, Failed> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<bool, Failed> {
        Ok(self.0.null())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<bool, Failed> {
        Ok(self.0.null())
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<bool, Failed> {
        Ok(self.text(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<bool, Failed> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<bool, Failed> {
        Err(Failed)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, Failed> {
        Ok(Items {
            ask: self.0,
            empty: true,
            found: false,
        })
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a>, Failed> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'a>, Failed> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Failed> {
        Err(Failed)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries<'a>, Failed> {
        Ok(Entries::new(self.0, false))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries<'a>, Failed> {
        Ok(Entries::new(self.0, true))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Failed> {
        Err(Failed)
    }
}

/// A list: of texts where the field is reached, else of records, one of which is enough.
struct Items<'a> {
    ask: Ask<'a>,
    empty: bool,
    found: bool,
}

impl ser::SerializeSeq for Items<'_> {
    type Ok = bool;
    type Error = Failed;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Failed> {
        self.empty = false;
        self.found = self.found
            || match self.ask.here() {
                Some(question) => is_item(question, item),
                None => walk(self.ask, item),
            };
        Ok(())
    }

    fn end(self) -> Result<bool, Failed> {
        Ok(match self.ask.here() {
            Some(question) => question.many(self.found, self.empty),
            None => self.found,
        })
    }
}

impl ser::SerializeTuple for Items<'_> {
    type Ok = bool;
    type Error = Failed;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Failed> {
        ser::SerializeSeq::serialize_element(self, item)
    }

    fn end(self) -> Result<bool, Failed> {
        ser::SerializeSeq::end(self)
    }
}

impl ser::SerializeTupleStruct for Items<'_> {
    type Ok = bool;
    type Error = Failed;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Failed> {
        ser::SerializeSeq::serialize_element(self, item)
    }

    fn end(self) -> Result<bool, Failed> {
        ser::SerializeSeq::end(self)
    }
}

/// A map or a record.
struct Entries<'a> {
    ask: Ask<'a>,
    record: bool,
    empty: bool,
    /// Whether the next value is the one that is looked for, or the key was.
    found: bool,
    answer: Option<bool>,
}

impl<'a> Entries<'a> {
    fn new(ask: Ask<'a>, record: bool) -> Self {
        Entries {
            ask,
            record,
            empty: true,
            found: false,
            answer: None,
        }
    }

    fn finish(self) -> bool {
        match self.ask.here() {
            Some(question) => question.many(self.found, self.empty),
            None => self.answer.unwrap_or_else(|| self.ask.absent(self.record)),
        }
    }
}

impl ser::SerializeMap for Entries<'_> {
    type Ok = bool;
    type Error = Failed;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Failed> {
        self.empty = false;
        match (self.ask.here(), self.ask.next()) {
            (Some(question), _) => self.found = self.found || is_item(question, key),
            (None, Some((name, _))) => self.found = walk(Ask::Is(name), key),
            (None, None) => {}
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failed> {
        if let Some((_, ask)) = self.ask.next().filter(|_| self.found) {
            self.answer = Some(walk(ask, value));
        }
        Ok(())
    }

    fn end(self) -> Result<bool, Failed> {
        Ok(self.finish())
    }
}

impl ser::SerializeStruct for Entries<'_> {
    type Ok = bool;
    type Error = Failed;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Failed> {
        if let Some((_, ask)) = self.ask.next().filter(|(name, _)| *name == key) {
            self.answer = Some(walk(ask, value));
        }
        Ok(())
    }

    fn end(self) -> Result<bool, Failed> {
        Ok(self.finish())
    }
}
