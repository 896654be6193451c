//! What fields the values have that a filter is applied to: a selector that leads to none is refused
//! when the filter is read, and not when it is applied.

/// What a field holds, which decides what conditions it can have.
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
    /// Values by free names.
    Map,
    /// Records without keys: a condition on a field of them holds when it holds for one of them.
    List,
    /// Fields with known names. Only those fields can have conditions.
    Record,
    /// Unknown: every condition is accepted, and a field that is not there is missing.
    Any,
}

/// The way to a field: one step a part of the selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// At least one.
    pub steps: Vec<Step>,
}

/// One step of the way to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What the field is called where it is serialised.
    pub key: String,
    /// What it holds.
    pub kind: Kind,
}

/// The fields that selectors may name.
pub trait Fields {
    /// The way to a field.
    ///
    /// # Errors
    ///
    /// How many parts of the selector lead somewhere, and what could follow them.
    fn find(&self, selector: &[String]) -> Result<Place, (usize, String)>;
}

/// Any field: for values whose fields are not known where the filter is read.
#[derive(Debug, Clone, Copy)]
pub struct AnyFields;

impl Fields for AnyFields {
    fn find(&self, selector: &[String]) -> Result<Place, (usize, String)> {
        let step = |key: &String| Step {
            key: key.clone(),
            kind: Kind::Any,
        };
        let steps = selector.iter().map(step).collect();
        Ok(Place { steps })
    }
}

/// What a type holds.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A text, or an enum that is one in JSON.
    Text,
    /// True or false.
    Bool,
    /// A whole number.
    Integer,
    /// A list of texts.
    Texts,
    /// A map whose values cannot be selected.
    Keys,
    /// A map, and what its values are.
    Map(&'static Shape),
    /// A list of records.
    List(&'static [Field]),
    /// A record.
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
    /// A field that has the same name in filters and where it is serialised.
    pub const fn new(name: &'static str, shape: Shape) -> Self {
        Field {
            name,
            key: name,
            shape,
        }
    }

    /// A field that filters name otherwise.
    pub const fn named(name: &'static str, key: &'static str, shape: Shape) -> Self {
        Field { name, key, shape }
    }

    /// What it is called where it is serialised.
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
    fn find(&self, selector: &[String]) -> Result<Place, (usize, String)> {
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
        Ok(Place { steps })
    }
}

fn names(fields: &[Field]) -> String {
    let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
    names.join(", ")
}
