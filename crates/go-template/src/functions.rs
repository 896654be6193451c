//! The functions of templates. `and` and `or` are only declared here, because the caller evaluates
//! their arguments lazily.

use std::cmp::Ordering;

use crate::format;
use crate::value::Value;

/// The functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    And,
    Or,
    Not,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Len,
    Index,
    Print,
    Printf,
    Println,
}

/// A function that templates can call.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: Name,
    /// The name in templates.
    pub(crate) word: &'static str,
    /// The minimum number of arguments, and whether more are accepted.
    arguments: (usize, bool),
}

static FUNCTIONS: [Function; 14] = [
    function(Name::And, "and", (1, true)),
    function(Name::Or, "or", (1, true)),
    function(Name::Not, "not", (1, false)),
    function(Name::Eq, "eq", (1, true)),
    function(Name::Ne, "ne", (2, false)),
    function(Name::Lt, "lt", (2, false)),
    function(Name::Le, "le", (2, false)),
    function(Name::Gt, "gt", (2, false)),
    function(Name::Ge, "ge", (2, false)),
    function(Name::Len, "len", (1, false)),
    function(Name::Index, "index", (1, true)),
    function(Name::Print, "print", (0, true)),
    function(Name::Printf, "printf", (1, true)),
    function(Name::Println, "println", (0, true)),
];

const fn function(name: Name, word: &'static str, arguments: (usize, bool)) -> Function {
    Function {
        name,
        word,
        arguments,
    }
}

/// Functions of Go's templates that are not supported.
const REFUSED: [&str; 5] = ["call", "html", "js", "slice", "urlquery"];

impl Function {
    /// The function named `word`, or an error that lists the supported ones.
    pub(crate) fn find(word: &str) -> Result<&'static Self, String> {
        if let Some(function) = FUNCTIONS.iter().find(|function| function.word == word) {
            return Ok(function);
        }
        let words: Vec<&str> = FUNCTIONS.iter().map(|function| function.word).collect();
        let reason = match REFUSED.contains(&word) {
            true => format!("the function {word} is not supported"),
            false => format!("function {word:?} not defined"),
        };
        Err(format!("{reason}; the functions are {}", words.join(", ")))
    }

    /// Refuses a wrong number of arguments.
    pub(crate) fn check_count(&self, count: usize) -> Result<(), String> {
        let (least, more) = self.arguments;
        if count < least || (count > least && !more) {
            let bound = if more { "at least " } else { "" };
            return Err(format!(
                "wrong number of args for {}: want {bound}{least} got {count}",
                self.word
            ));
        }
        Ok(())
    }

    /// Calls the function. For `and` and `or` it returns the last argument, because the caller has
    /// evaluated the others.
    pub(crate) fn call(&self, arguments: &[Value]) -> Result<Value, String> {
        let Some((first, rest)) = arguments.split_first() else {
            return match self.name {
                Name::Println => Ok(Value::from("\n")),
                _ => Ok(Value::from("")),
            };
        };
        let truth = match (self.name, rest) {
            (Name::And | Name::Or, _) => return Ok(rest.last().unwrap_or(first).clone()),
            (Name::Len, _) => return len(first),
            (Name::Index, _) => return index(first, rest),
            (Name::Print, _) => return format::print(arguments).map(Value::from),
            (Name::Println, _) => return format::println(arguments).map(Value::from),
            (Name::Printf, _) => return printf(first, rest),
            (Name::Not, _) => !first.truth(),
            (Name::Eq, _) => equals_any(first, rest)?,
            (Name::Ne, [second, ..]) => !equals(first, second)?,
            (Name::Lt, [second, ..]) => order(first, second)? == Some(Ordering::Less),
            (Name::Le, [second, ..]) => !after(first, second)?,
            (Name::Gt, [second, ..]) => after(first, second)?,
            (Name::Ge, [second, ..]) => order(first, second)? != Some(Ordering::Less),
            (_, []) => return Err("missing argument for comparison".to_owned()),
        };
        Ok(Value::Bool(truth))
    }
}

fn printf(format: &Value, values: &[Value]) -> Result<Value, String> {
    match format {
        Value::Text(format) => format::printf(format, values).map(Value::from),
        other => Err(format!("the format is of type {}", other.type_name())),
    }
}

fn equals_any(first: &Value, rest: &[Value]) -> Result<bool, String> {
    if rest.is_empty() {
        return Err("missing argument for comparison".to_owned());
    }
    for other in rest {
        if equals(first, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn equals(one: &Value, other: &Value) -> Result<bool, String> {
    match (one, other) {
        (Value::Bool(one), Value::Bool(other)) => Ok(one == other),
        (Value::Int(one), Value::Int(other)) => Ok(one == other),
        (Value::Float(one), Value::Float(other)) => Ok(one == other),
        (Value::Text(one), Value::Text(other)) => Ok(one == other),
        (Value::Nil, Value::Nil) => Ok(true),
        // Where these lists come from, Go's empty lists are nil.
        (Value::List(items), Value::Nil) | (Value::Nil, Value::List(items)) => Ok(items.is_empty()),
        (Value::Nil, _) | (_, Value::Nil) => Ok(false),
        (Value::List(_), Value::List(_)) | (Value::Structure(_), Value::Structure(_)) => {
            Err(format!("non-comparable type {}", one.type_name()))
        }
        _ => Err(incompatible(one, other)),
    }
}

/// Compares two numbers or texts; `None` if one is NaN.
fn order(one: &Value, other: &Value) -> Result<Option<Ordering>, String> {
    match (one, other) {
        (Value::Int(one), Value::Int(other)) => Ok(Some(one.cmp(other))),
        (Value::Float(one), Value::Float(other)) => Ok(one.partial_cmp(other)),
        (Value::Text(one), Value::Text(other)) => Ok(Some(one.cmp(other))),
        _ if sortable(one) && sortable(other) => Err(incompatible(one, other)),
        _ => Err(format!(
            "invalid type for comparison: {} and {}",
            one.type_name(),
            other.type_name()
        )),
    }
}

fn sortable(value: &Value) -> bool {
    matches!(value, Value::Int(_) | Value::Float(_) | Value::Text(_))
}

fn after(one: &Value, other: &Value) -> Result<bool, String> {
    Ok(order(one, other)? == Some(Ordering::Greater))
}

fn incompatible(one: &Value, other: &Value) -> String {
    format!(
        "incompatible types for comparison: {} and {}",
        one.type_name(),
        other.type_name()
    )
}

fn len(value: &Value) -> Result<Value, String> {
    let length = match value {
        Value::Text(text) => text.len(),
        Value::List(items) => items.len(),
        other => return Err(format!("len of type {}", other.type_name())),
    };
    Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
}

/// `index list 1`; for a text it is the value of a byte.
fn index(item: &Value, indexes: &[Value]) -> Result<Value, String> {
    let mut item = item.clone();
    if matches!(item, Value::Nil) {
        return Err("index of untyped nil".to_owned());
    }
    for index in indexes {
        let at = |length: usize| match index {
            Value::Int(index) => usize::try_from(*index)
                .ok()
                .filter(|index| *index < length)
                .ok_or_else(|| format!("index out of range: {index} of {length}")),
            other => Err(format!(
                "cannot index slice/array with type {}",
                other.type_name()
            )),
        };
        item = match &item {
            Value::List(items) => items[at(items.len())?].clone(),
            Value::Text(text) => Value::Int(i64::from(text.as_bytes()[at(text.len())?])),
            other => return Err(format!("can't index item of type {}", other.type_name())),
        };
    }
    Ok(item)
}
