//! The form of the tables: which fields of a message the proxy acts upon, and which it may ignore.

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    /// Its full name.
    pub(super) name: &'static str,
    /// The fields that the decoder reads.
    pub(super) fields: &'static [Field],
    /// The fields that only Envoy can serve, with their names for the reason of the refusal. A field in no list is
    /// refused as well, by its number.
    pub(super) refused: &'static [(u32, &'static str)],
    /// Groups of fields of which only one may be set.
    pub(super) choices: &'static [&'static [u32]],
}

impl Message {
    pub(super) fn field(&self, number: u32) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.number == number)
    }
}

/// A field.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Whether it may occur several times.
    pub(super) many: bool,
    pub(super) usage: Usage,
    /// Whether it has a private key, which is never shown.
    pub(super) private: bool,
}

/// What the decoder does with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// It acts upon it. A value that no code has read is refused.
    Served,
    /// It makes no difference here; the row says why.
    Harmless,
}

/// The type of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Bool,
    U32,
    U64,
    I32,
    I64,
    Double,
    Enum(&'static Enum),
    String,
    Bytes,
    Message(&'static Message),
    /// A `google.protobuf.Any` with one of these messages.
    Any(&'static [&'static Message]),
    /// From strings to messages.
    Map(&'static Message),
}

/// An enumeration, with all its values.
#[derive(Debug)]
pub(super) struct Enum {
    pub(super) name: &'static str,
    pub(super) values: &'static [(i32, &'static str)],
}

impl Field {
    /// A field that the decoder acts upon.
    pub(super) const fn served(number: u32, name: &'static str, kind: Kind) -> Field {
        Field {
            number,
            name,
            kind,
            many: false,
            usage: Usage::Served,
            private: false,
        }
    }

    /// A field that makes no difference here.
    pub(super) const fn harmless(number: u32, name: &'static str, kind: Kind) -> Field {
        let mut field = Field::served(number, name, kind);
        field.usage = Usage::Harmless;
        field
    }

    /// It may occur several times.
    pub(super) const fn many(mut self) -> Field {
        self.many = true;
        self
    }

    /// It has a private key.
    pub(super) const fn private(mut self) -> Field {
        self.private = true;
        self
    }
}
