//! The functions of templates. `and` and `or` only name themselves here, because they evaluate
//! their arguments one by one.

use std::cmp::Ordering;

use super::format;
use super::value::Value;

/// A function that templates can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
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

/// Every function with its name, its fewest arguments, and whether it takes more.
const FUNCTIONS: [(Function, &str, usize, bool); 14] = [
    (Function::And, "and", 1, true),
    (Function::Or, "or", 1, true),
    (Function::Not, "not", 1, false),
    (Function::Eq, "eq", 1, true),
    (Function::Ne, "ne", 2, false),
    (Function::Lt, "lt", 2, false),
    (Function::Le, "le", 2, false),
    (Function::Gt, "gt", 2, false),
    (Function::Ge, "ge", 2, false),
    (Function::Len, "len", 1, false),
    (Function::Index, "index", 1, true),
    (Function::Print, "print", 0, true),
    (Function::Printf, "printf", 1, true),
    (Function::Println, "println", 0, true),
];

/// Functions of Go's templates that are not here.
const REFUSED: [&str; 5] = ["call", "html", "js", "slice", "urlquery"];

impl Function {
    /// The function called `name`, or why there is none.
    pub(super) fn named(name: &str) -> Result<Self, String> {
        if let Some((function, ..)) = FUNCTIONS.iter().find(|(_, known, ..)| *known == name) {
            return Ok(*function);
        }
        let names: Vec<&str> = FUNCTIONS.iter().map(|(_, name, ..)| *name).collect();
        let reason = match REFUSED.contains(&name) {
            true => format!("the function {name} is not supported"),
            false => format!("function {name:?} not defined"),
        };
        Err(format!("{reason}; the functions are {}", names.join(", ")))
    }

    pub(super) fn name(self) -> &'static str {
        let found = FUNCTIONS.iter().find(|(function, ..)| *function == self);
        found.map_or("", |(_, name, ..)| name)
    }

    /// Refuses a wrong number of arguments.
    pub(super) fn check_count(self, count: usize) -> Result<(), String> {
        let found = FUNCTIONS.iter().find(|(function, ..)| *function == self);
        let (least, more) = found.map_or((0, true), |(.., least, more)| (*least, *more));
        if count < least || (count > least && !more) {
            let bound = if more { "at least " } else { "" };
            return Err(format!(
                "wrong number of args for {}: want {bound}{least} got {count}",
                self.name()
            ));
        }
        Ok(())
    }

    /// Calls the function. `and` and `or` return the last argument here: those before it have
    /// been looked at by the caller.
    pub(super) fn call(self, arguments: &[Value]) -> Result<Value, String> {
        let Some((first, rest)) = arguments.split_first() else {
            return match self {
                Function::Println => Ok(Value::from("\n")),
                _ => Ok(Value::from("")),
            };
        };
        let truth = match (self, rest) {
            (Function::And | Function::Or, _) => return Ok(rest.last().unwrap_or(first).clone()),
            (Function::Len, _) => return len(first),
            (Function::Index, _) => return index(first, rest),
            (Function::Print, _) => return format::print(arguments).map(Value::from),
            (Function::Println, _) => return format::println(arguments).map(Value::from),
            (Function::Printf, _) => return printf(first, rest),
            (Function::Not, _) => !first.truth(),
            (Function::Eq, _) => equals_any(first, rest)?,
            (Function::Ne, [second, ..]) => !equals(first, second)?,
            (Function::Lt, [second, ..]) => order(first, second)? == Some(Ordering::Less),
            (Function::Le, [second, ..]) => !after(first, second)?,
            (Function::Gt, [second, ..]) => after(first, second)?,
            (Function::Ge, [second, ..]) => order(first, second)? != Some(Ordering::Less),
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
        // Go has no empty list apart from nil where these lists come from.
        (Value::List(items), Value::Nil) | (Value::Nil, Value::List(items)) => Ok(items.is_empty()),
        (Value::Nil, _) | (_, Value::Nil) => Ok(false),
        (Value::List(_), Value::List(_)) | (Value::Structure(_), Value::Structure(_)) => {
            Err(format!("non-comparable type {}", one.type_name()))
        }
        _ => Err(incompatible(one, other)),
    }
}

/// The order of two numbers or texts; none when one is no number at all.
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

/// `index list 1`; of a text it is the value of a byte.
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
