//! The values that a template works with.

use std::rc::Rc;

/// A value: one of the few kinds that bootstrap templates meet.
#[derive(Debug, Clone)]
pub(in crate::bootstrap) enum Value {
    /// `nil`, which only a template can write.
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    /// A list of texts.
    List(Rc<[Value]>),
    Structure(Rc<Structure>),
}

/// Named values.
#[derive(Debug)]
pub(in crate::bootstrap) struct Structure {
    /// What Go calls the type, for error messages.
    pub(in crate::bootstrap) type_name: &'static str,
    pub(in crate::bootstrap) fields: Vec<(&'static str, Value)>,
}

impl Value {
    /// Whether `if` takes it for true: anything but zero and nothing.
    pub(super) fn truth(&self) -> bool {
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

    /// What Go calls the value's type.
    pub(super) fn type_name(&self) -> &'static str {
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
    pub(super) fn field(&self, name: &str) -> Result<Value, String> {
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
