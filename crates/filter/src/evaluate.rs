//! Evaluates a condition on a value: a serializer that follows the selector and evaluates the field
//! it ends at.

use std::fmt;

use serde::ser::{self, Impossible, Serialize, Serializer};

use crate::condition::Condition;

/// Whether the condition holds for a value.
pub(crate) fn holds<T: Serialize + ?Sized>(condition: &Condition, value: &T) -> bool {
    walk(Evaluation::Condition(condition, 0), value)
}

fn walk<T: Serialize + ?Sized>(evaluation: Evaluation<'_>, value: &T) -> bool {
    value.serialize(Walker(evaluation)).unwrap_or(false)
}

/// Whether an item of a list or a key of a map equals the text that the condition looks for.
fn is_item<T: Serialize + ?Sized>(condition: &Condition, item: &T) -> bool {
    condition
        .item()
        .is_some_and(|text| walk(Evaluation::Equals(text), item))
}

/// What to evaluate on the current value.
#[derive(Clone, Copy)]
enum Evaluation<'a> {
    /// The condition, after this many steps of its selector.
    Condition(&'a Condition, usize),
    /// Whether the value equals this text.
    Equals(&'a str),
}

impl<'a> Evaluation<'a> {
    /// The condition, if the selector ends at this value.
    fn here(self) -> Option<&'a Condition> {
        match self {
            Evaluation::Condition(condition, depth) if depth == condition.steps().len() => {
                Some(condition)
            }
            _ => None,
        }
    }

    /// The key of the selector's next step, and what to evaluate on its value.
    fn next(self) -> Option<(&'a str, Evaluation<'a>)> {
        let Evaluation::Condition(condition, depth) = self else {
            return None;
        };
        let step = condition.steps().get(depth)?;
        Some((&step.key, Evaluation::Condition(condition, depth + 1)))
    }

    /// The result if there is no value at the next step. `record`: the parent is a record, which
    /// leaves out empty fields.
    fn absent(self, record: bool) -> bool {
        match self {
            Evaluation::Condition(condition, depth) if record => condition.left_out(depth),
            Evaluation::Condition(condition, _) => condition.missing(),
            Evaluation::Equals(_) => false,
        }
    }

    /// The result for null, which is treated like a field that a record leaves out.
    fn null(self) -> bool {
        match self {
            Evaluation::Condition(condition, depth) => condition.left_out(depth.saturating_sub(1)),
            Evaluation::Equals(_) => false,
        }
    }
}

/// A serializer that evaluates instead of writing.
struct Walker<'a>(Evaluation<'a>);

impl Walker<'_> {
    fn text(&self, own: &str) -> bool {
        match self.0 {
            Evaluation::Equals(text) => own == text,
            evaluation => match evaluation.here() {
                Some(condition) => condition.text(own),
                None => evaluation.absent(false),
            },
        }
    }

    fn integer(&self, own: i128) -> bool {
        let here = self.0.here();
        here.map_or_else(|| self.0.absent(false), |condition| condition.integer(own))
    }
}

/// The value's `Serialize` failed.
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
        Ok(here.map_or_else(
            || self.0.absent(false),
            |condition| condition.boolean(value),
        ))
    }

    /// Filters support no fractions.
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
            evaluation: self.0,
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

/// A list. At the end of the selector its items are texts; otherwise they are records, of which one
/// has to match.
struct Items<'a> {
    evaluation: Evaluation<'a>,
    empty: bool,
    found: bool,
}

impl ser::SerializeSeq for Items<'_> {
    type Ok = bool;
    type Error = Failed;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Failed> {
        self.empty = false;
        self.found = self.found
            || match self.evaluation.here() {
                Some(condition) => is_item(condition, item),
                None => walk(self.evaluation, item),
            };
        Ok(())
    }

    fn end(self) -> Result<bool, Failed> {
        Ok(match self.evaluation.here() {
            Some(condition) => condition.many(self.found, self.empty),
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
    evaluation: Evaluation<'a>,
    record: bool,
    empty: bool,
    /// Whether the current key, or for `in` any key so far, is the one looked for.
    found: bool,
    answer: Option<bool>,
}

impl<'a> Entries<'a> {
    fn new(evaluation: Evaluation<'a>, record: bool) -> Self {
        Entries {
            evaluation,
            record,
            empty: true,
            found: false,
            answer: None,
        }
    }

    fn finish(self) -> bool {
        match self.evaluation.here() {
            Some(condition) => condition.many(self.found, self.empty),
            None => self
                .answer
                .unwrap_or_else(|| self.evaluation.absent(self.record)),
        }
    }
}

impl ser::SerializeMap for Entries<'_> {
    type Ok = bool;
    type Error = Failed;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Failed> {
        self.empty = false;
        match (self.evaluation.here(), self.evaluation.next()) {
            (Some(condition), _) => self.found = self.found || is_item(condition, key),
            (None, Some((name, _))) => self.found = walk(Evaluation::Equals(name), key),
            (None, None) => {}
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failed> {
        if let Some((_, evaluation)) = self.evaluation.next().filter(|_| self.found) {
            self.answer = Some(walk(evaluation, value));
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
        if let Some((_, evaluation)) = self.evaluation.next().filter(|(name, _)| *name == key) {
            self.answer = Some(walk(evaluation, value));
        }
        Ok(())
    }

    fn end(self) -> Result<bool, Failed> {
        Ok(self.finish())
    }
}
