//! The values of templates.

use std::rc::Rc;

/// A value. Clones are cheap.
#[derive(Debug, Clone)]
pub enum Value {
    /// `nil`.
    Nil,
    /// `true` or `false`.
    Bool(bool),
    /// Go's `int`.
    Int(i64),
    /// Go's `float64`.
    Float(f64),
    /// Go's `string`.
    Text(Rc<str>),
    /// A list of texts, Go's `[]string`.
    List(Rc<[Value]>),
    /// Named values.
    Structure(Rc<Structure>),
}

/// Named values, see [`Value::structure`].
#[derive(Debug)]
pub struct Structure {
    type_name: &'static str,
    fields: Vec<(&'static str, Value)>,
}

impl Value {
    /// Named values. Error messages use `type_name`, and list the names in this order.
    pub fn structure(
        type_name: &'static str,
        fields: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        Value::Structure(Rc::new(Structure {
            type_name,
            fields: fields.into_iter().collect(),
        }))
    }

    /// Whether it counts as true in `if`: any value except zero and empty ones.
    pub(crate) fn truth(&self) -> bool {
        match self {
            Value::Nil => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(items) => !items.is_empty(),
            Value::Structure(_) => true,
        }
    }

    /// Go's name of the value's type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Nil => "<nil>",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float64",
            Value::Text(_) => "string",
            Value::List(_) => "[]string",
            Value::Structure(structure) => structure.type_name,
        }
    }

    /// The field `name`. A field of `nil` is `nil`, as in Go.
    pub(crate) fn field(&self, name: &str) -> Result<Value, String> {
        let refused = format!("can't evaluate field {name} in type {}", self.type_name());
        match self {
            Value::Nil => Ok(Value::Nil),
            Value::Structure(structure) => {
                let found = structure.fields.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.clone()).ok_or_else(|| {
                    let known: Vec<&str> = structure.fields.iter().map(|(name, _)| *name).collect();
                    format!("{refused} (which has {})", known.join(", "))
                })
            }
            _ => Err(refused),
        }
    }

    /// The number of bytes of its text; a list item counts even if it is empty.
    pub(crate) fn size(&self) -> usize {
        match self {
            Value::Text(text) => text.len(),
            Value::List(items) => items.iter().map(|item| 1 + item.size()).sum(),
            _ => 0,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text.into())
    }
}
