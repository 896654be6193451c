//! Changes a message by the path of a field, as in `builtin/property-override`: similar to JSON
//! Patch (RFC 6902), with the field names of Envoy's `.proto` files.
//!
//! A path passes through singular message fields. Lists, maps and `google.protobuf.Any` can only be
//! replaced as a whole.

use std::borrow::Cow;
use std::fmt;

use prost_reflect::{
    DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage,
    Value,
};
use serde_json::{Map, Value as Json};

use crate::canonical;
use crate::pool;

/// The number of fields listed in an error, unless all are requested.
const NAMED_FIELDS: usize = 10;

/// The change of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Replaces the value.
    Set(Json),
    /// Unsets the field.
    Remove,
}

/// A change of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// The field names, each after a slash: `/outlier_detection/interval`.
    pub path: String,
    /// The change of the field.
    pub change: Change,
    /// Whether errors list all existing fields instead of the first ten.
    pub name_all_fields: bool,
}

/// A change that a message type does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The type is not one of Envoy's messages, or the bytes are not such a message.
    #[error("the bytes are not a message {0:?}")]
    Message(String),
    /// The path refers to the message itself.
    #[error("non-empty, non-root Path is required;\n{0}")]
    Root(Fields),
    /// The path has two consecutive slashes or a trailing one.
    #[error("empty field name in path")]
    EmptyName,
    /// The field does not exist.
    #[error("no match for field '{field}'!\n{fields}")]
    NoField {
        /// The name in the path or the value.
        field: String,
        /// The existing fields.
        fields: Fields,
    },
    /// The path passes through a list.
    #[error(
        "path contains member of repeated field '{0}'; repeated field member access is not supported"
    )]
    InList(String),
    /// The path passes through a map.
    #[error("path contains member of map field '{0}'; map field member access is not supported")]
    InMap(String),
    /// The path passes through a `google.protobuf.Any`.
    #[error("variant-type message fields (google.protobuf.Any) are not supported")]
    InAny,
    /// The path passes through a field that is not a message.
    #[error(
        "path contains member of non-message field '{field}' (type '{kind}'); this type does not support child fields"
    )]
    InScalar {
        /// The field.
        field: String,
        /// Its type.
        kind: String,
    },
    /// The value is missing.
    #[error(
        "non-nil Value is required; use an empty map to reset all fields on a message or the 'remove' op to unset fields"
    )]
    NoValue,
    /// The value does not match the field.
    #[error(
        "patch value {value} could not be applied to target field '{field}' of type '{kind}': {reason}"
    )]
    Mismatch {
        /// The value.
        value: String,
        /// The field.
        field: String,
        /// Its type.
        kind: String,
        /// The reason.
        reason: String,
    },
}

/// The fields of a message, for an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    message: String,
    names: Vec<String>,
    all: bool,
}

impl Fields {
    fn of(descriptor: &MessageDescriptor, all: bool) -> Self {
        Self {
            message: descriptor.full_name().to_owned(),
            names: descriptor
                .fields()
                .map(|field| field.name().to_owned())
                .collect(),
            all,
        }
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "available {} fields:", self.message)?;
        let most = if self.all { usize::MAX } else { NAMED_FIELDS };
        for name in self.names.iter().take(most) {
            writeln!(f, "{name}")?;
        }
        match self.names.len() > most {
            true => f.write_str(
                "First 10 fields for this message included, configure with `Debug = true` to print all.",
            ),
            false => Ok(()),
        }
    }
}

impl Patch {
    /// The paths of all fields that the patch names: its own, and those in objects of its value, also within lists.
    pub fn paths(&self) -> Vec<String> {
        let own = format!("/{}", self.path.trim_start_matches('/'));
        let mut all = vec![own.clone()];
        if let Change::Set(value) = &self.change {
            add_paths(&mut all, &own, value);
        }
        all
    }

    /// Checks that messages of this type support the change: the path exists and the value matches.
    ///
    /// # Errors
    ///
    /// [`PatchError`] has the reason.
    pub fn check(&self, type_name: &str) -> Result<(), PatchError> {
        self.apply(type_name, &[]).map(drop)
    }

    /// Applies the change to an encoded message.
    ///
    /// # Errors
    ///
    /// [`PatchError`] has the reason.
    pub fn apply(&self, type_name: &str, bytes: &[u8]) -> Result<Vec<u8>, PatchError> {
        let unknown = || PatchError::Message(type_name.to_owned());
        let descriptor = pool::message(type_name).ok_or_else(unknown)?;
        let mut message = DynamicMessage::decode(descriptor, bytes).map_err(|_| unknown())?;
        let path = self.path.trim_start_matches('/');
        if path.is_empty() {
            let fields = Fields::of(&message.descriptor(), self.name_all_fields);
            return Err(PatchError::Root(fields));
        }
        let names: Vec<&str> = path.split('/').collect();
        self.change(&mut message, &names)?;
        Ok(canonical::of_message(&message))
    }

    fn change(&self, message: &mut DynamicMessage, path: &[&str]) -> Result<(), PatchError> {
        let Some((name, rest)) = path.split_first() else {
            return Err(PatchError::EmptyName);
        };
        let field = self.field(&message.descriptor(), name)?;
        if !rest.is_empty() {
            has_fields(&field)?;
            // Parent messages of a removed field are not created.
            let is_set = message.has_field(&field);
            let mut nothing = Value::Message(empty(&field)?);
            let inner = match is_set || matches!(self.change, Change::Set(_)) {
                true => message.get_field_mut(&field),
                false => &mut nothing,
            };
            return match inner.as_message_mut() {
                Some(inner) => self.change(inner, rest),
                None => Err(PatchError::Message((*name).to_owned())),
            };
        }
        match &self.change {
            Change::Remove => message.clear_field(&field),
            Change::Set(Json::Null) => return Err(PatchError::NoValue),
            Change::Set(value) => {
                let value = self.value(&field, value)?;
                message.set_field(&field, value);
            }
        }
        Ok(())
    }

    fn field(
        &self,
        descriptor: &MessageDescriptor,
        name: &str,
    ) -> Result<FieldDescriptor, PatchError> {
        if name.is_empty() {
            return Err(PatchError::EmptyName);
        }
        let field = descriptor.get_field_by_name(name);
        field.ok_or_else(|| PatchError::NoField {
            field: name.to_owned(),
            fields: Fields::of(descriptor, self.name_all_fields),
        })
    }

    /// Converts a value to the type of the field. An object sets the fields of a message by name,
    /// also for messages with a special JSON form such as Duration and the wrappers.
    fn value(&self, field: &FieldDescriptor, value: &Json) -> Result<Value, PatchError> {
        let is_plain = matches!(field.kind(), Kind::Message(message) if !has_own_form(&message));
        match value {
            Json::Object(fields) if is_plain && !field.is_list() && !field.is_map() => {
                self.message(field, fields).map(Value::Message)
            }
            Json::Array(values) if is_plain && field.is_list() => {
                let each = values.iter().map(|one| match one {
                    Json::Object(fields) => self.message(field, fields).map(Value::Message),
                    other => Err(mismatch(field, other, "it must be an object")),
                });
                each.collect::<Result<_, _>>().map(Value::List)
            }
            _ => from_json(field, value),
        }
    }

    fn message(
        &self,
        field: &FieldDescriptor,
        fields: &Map<String, Json>,
    ) -> Result<DynamicMessage, PatchError> {
        let mut message = empty(field)?;
        for (name, value) in fields {
            let field = self.field(&message.descriptor(), name)?;
            let value = self.value(&field, value)?;
            message.set_field(&field, value);
        }
        Ok(message)
    }
}

fn add_paths(all: &mut Vec<String>, path: &str, value: &Json) {
    match value {
        Json::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}/{name}");
                all.push(path.clone());
                add_paths(all, &path, value);
            }
        }
        Json::Array(values) => {
            for value in values {
                add_paths(all, path, value);
            }
        }
        _ => {}
    }
}

fn has_fields(field: &FieldDescriptor) -> Result<(), PatchError> {
    let name = || field.name().to_owned();
    if field.is_list() {
        return Err(PatchError::InList(name()));
    }
    if field.is_map() {
        return Err(PatchError::InMap(name()));
    }
    match field.kind() {
        Kind::Message(message) if message.full_name() == "google.protobuf.Any" => {
            Err(PatchError::InAny)
        }
        Kind::Message(_) => Ok(()),
        _ => Err(PatchError::InScalar {
            field: name(),
            kind: kind_of(field),
        }),
    }
}

fn empty(field: &FieldDescriptor) -> Result<DynamicMessage, PatchError> {
    match field.kind() {
        Kind::Message(message) => Ok(DynamicMessage::new(message)),
        _ => Err(PatchError::InScalar {
            field: field.name().to_owned(),
            kind: kind_of(field),
        }),
    }
}

/// Messages whose JSON form has arbitrary content instead of named fields.
fn has_own_form(message: &MessageDescriptor) -> bool {
    matches!(
        message.full_name(),
        "google.protobuf.Any"
            | "google.protobuf.Struct"
            | "google.protobuf.Value"
            | "google.protobuf.ListValue"
    )
}

/// Converts the JSON form of the field.
fn from_json(field: &FieldDescriptor, value: &Json) -> Result<Value, PatchError> {
    let parent = field.parent_message();
    let (holder, name, document) = match wrapper(field) {
        // For Duration and the like the JSON form of the whole message is not an object.
        Some(wrapper) if parent.full_name().starts_with("google.protobuf.") => {
            (wrapper, "value", value.clone())
        }
        _ => {
            let name = field.name();
            let document = Map::from_iter([(name.to_owned(), value.clone())]);
            (parent.clone(), name, Json::Object(document))
        }
    };
    let options = DeserializeOptions::new();
    let holder = DynamicMessage::deserialize_with_options(holder, document, &options)
        .map_err(|error| mismatch(field, value, &error.to_string()))?;
    let converted = holder.get_field_by_name(name).map(Cow::into_owned);
    let converted = converted.ok_or_else(|| mismatch(field, value, "it has no such value"))?;
    let known = |number: &Value| match (field.kind(), number) {
        (Kind::Enum(values), Value::EnumNumber(number)) => values.get_value(*number).is_some(),
        _ => true,
    };
    let all_known = match &converted {
        Value::List(list) => list.iter().all(known),
        one => known(one),
    };
    match all_known {
        true => Ok(converted),
        false => Err(mismatch(field, value, "there is no such value")),
    }
}

/// A wrapper message with a value of the field's type.
fn wrapper(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    let name = match field.kind() {
        Kind::Bool => "BoolValue",
        Kind::String => "StringValue",
        Kind::Bytes => "BytesValue",
        Kind::Int32 => "Int32Value",
        Kind::Int64 => "Int64Value",
        Kind::Uint32 => "UInt32Value",
        Kind::Uint64 => "UInt64Value",
        Kind::Float => "FloatValue",
        Kind::Double => "DoubleValue",
        _ => return None,
    };
    let is_one = !field.is_list() && !field.is_map();
    is_one.then(|| pool::message(&format!("google.protobuf.{name}")))?
}

fn mismatch(field: &FieldDescriptor, value: &Json, reason: &str) -> PatchError {
    PatchError::Mismatch {
        value: value.to_string(),
        field: field.name().to_owned(),
        kind: kind_of(field),
        reason: reason.to_owned(),
    }
}

fn kind_of(field: &FieldDescriptor) -> String {
    let kind = match field.kind() {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(values) => values.full_name().to_owned(),
        other => format!("{other:?}").to_ascii_lowercase(),
    };
    match () {
        () if field.is_map() => "map".to_owned(),
        () if field.is_list() => format!("repeated {kind}"),
        () => kind,
    }
}
