//! The fields of the type that a filter is applied to. A selector of an unknown field is refused
//! when the filter is parsed.

/// The type of a field, which determines its operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// True or false.
    Bool,
    /// A whole number.
    Integer,
    /// A list of texts.
    Texts,
    /// A map with arbitrary keys.
    Map,
    /// A list of records: a condition on one of their fields holds if it holds for at least one
    /// record.
    List,
    /// A record with known fields. Conditions apply to its fields only.
    Record,
    /// Unknown: all operators are accepted, and an absent field counts as missing.
    Any,
}

/// The path to a field: one step for each part of the selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath {
    /// At least one step.
    pub steps: Vec<Step>,
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The field's name in the serialized value.
    pub key: String,
    /// The field's type.
    pub kind: Kind,
}

/// The fields that selectors may name.
pub trait Fields {
    /// Finds a field.
    ///
    /// # Errors
    ///
    /// The number of leading parts of the selector that are valid, and the names that could follow
    /// them.
    fn find(&self, selector: &[String]) -> Result<FieldPath, (usize, String)>;
}

/// Accepts any field, for types whose fields are not known when the filter is parsed.
#[derive(Debug, Clone, Copy)]
pub struct AnyFields;

impl Fields for AnyFields {
    fn find(&self, selector: &[String]) -> Result<FieldPath, (usize, String)> {
        let step = |key: &String| Step {
            key: key.clone(),
            kind: Kind::Any,
        };
        let steps = selector.iter().map(step).collect();
        Ok(FieldPath { steps })
    }
}

/// The type of a field, with its nested fields.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A text, or an enum that is serialized as one.
    Text,
    /// True or false.
    Bool,
    /// A whole number.
    Integer,
    /// A list of texts.
    Texts,
    /// A map of which only keys can be selected.
    Keys,
    /// A map and the type of its values.
    Map(&'static Shape),
    /// A list of records with these fields.
    List(&'static [Field]),
    /// A record with these fields.
    Record(&'static [Field]),
}

/// A field of a record.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    name: &'static str,
    key: &'static str,
    shape: Shape,
}

impl Field {
    /// A field with the same name in filters and in the serialized value.
    pub const fn new(name: &'static str, shape: Shape) -> Self {
        Field {
            name,
            key: name,
            shape,
        }
    }

    /// A field whose name in filters differs from its key in the serialized value.
    pub const fn named(name: &'static str, key: &'static str, shape: Shape) -> Self {
        Field { name, key, shape }
    }

    /// The field's name in the serialized value.
    pub const fn key(&self) -> &'static str {
        self.key
    }
}

impl Shape {
    fn kind(&self) -> Kind {
        match self {
            Shape::Text => Kind::Text,
            Shape::Bool => Kind::Bool,
            Shape::Integer => Kind::Integer,
            Shape::Texts => Kind::Texts,
            Shape::Keys | Shape::Map(_) => Kind::Map,
            Shape::List(_) => Kind::List,
            Shape::Record(_) => Kind::Record,
        }
    }
}

/// The fields of a record.
impl Fields for [Field] {
    fn find(&self, selector: &[String]) -> Result<FieldPath, (usize, String)> {
        let top = Shape::List(&[]);
        let mut steps = Vec::with_capacity(selector.len());
        let mut fields = Some(self);
        let mut shape = &top;
        for (i, part) in selector.iter().enumerate() {
            let key;
            match (fields, shape) {
                (Some(known), _) => {
                    let Some(field) = known.iter().find(|field| field.name == part) else {
                        return Err((i, names(known)));
                    };
                    key = field.key.to_owned();
                    shape = &field.shape;
                }
                (None, Shape::Map(inner)) => {
                    key = part.clone();
                    shape = inner;
                }
                (None, _) => return Err((i, "nothing, for its parent has no fields".to_owned())),
            }
            fields = match shape {
                Shape::Record(fields) | Shape::List(fields) => Some(fields),
                _ => None,
            };
            let kind = shape.kind();
            steps.push(Step { key, kind });
        }
        Ok(FieldPath { steps })
    }
}

fn names(fields: &[Field]) -> String {
    let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
    names.join(", ")
}
