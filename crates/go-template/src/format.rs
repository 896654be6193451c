//! Formats values like Go's `print`, `println` and `printf`, the latter with the verbs `%v`, `%s`,
//! `%q`, `%d`, `%t` and `%%`. A verb that does not match its value is an error, where Go would
//! write an error text into the output.

use crate::value::Value;

/// Concatenates values, with a space between two adjacent values that are not texts.
pub(crate) fn print(values: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    for (index, value) in values.iter().enumerate() {
        let spaced = index > 0
            && !matches!(value, Value::Text(_))
            && !matches!(values[index - 1], Value::Text(_));
        if spaced {
            text.push(' ');
        }
        write(&mut text, value)?;
    }
    Ok(text)
}

/// Joins values with spaces and appends a line break.
pub(crate) fn println(values: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            text.push(' ');
        }
        write(&mut text, value)?;
    }
    text.push('\n');
    Ok(text)
}

/// Inserts values at the verbs of `format`.
pub(crate) fn printf(format: &str, values: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    let mut values = values.iter();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let mut characters = after.chars();
        match characters.next() {
            Some('%') => text.push('%'),
            Some(verb @ ('v' | 's' | 'q' | 'd' | 't')) => {
                let value = values.next().ok_or_else(|| {
                    format!("the format {format:?} has more verbs than there are values")
                })?;
                verb_text(&mut text, verb, value)?;
            }
            Some(other) => {
                return Err(format!(
                    "%{other} is not supported; use %v, %s, %q, %d, %t or %%, without flags and widths"
                ));
            }
            None => return Err("the format ends with a lone %; write %%".to_owned()),
        }
        rest = characters.as_str();
    }
    text.push_str(rest);
    match values.next() {
        None => Ok(text),
        Some(_) => Err(format!(
            "the format {format:?} has fewer verbs than there are values"
        )),
    }
}

fn verb_text(text: &mut String, verb: char, value: &Value) -> Result<(), String> {
    match (verb, value) {
        (_, Value::List(items)) => list(text, items, |text, item| verb_text(text, verb, item)),
        ('v', value)
        | ('s', value @ Value::Text(_))
        | ('d', value @ Value::Int(_))
        | ('t', value @ Value::Bool(_)) => write(text, value),
        ('q', Value::Text(value)) => {
            text.push_str(&quoted(value));
            Ok(())
        }
        _ => Err(format!(
            "%{verb} does not take a value of type {}; use %v",
            value.type_name()
        )),
    }
}

/// Quotes as JSON does, which equals Go's `%q` for all texts that are valid in JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Appends the plain form of a value.
pub(crate) fn write(text: &mut String, value: &Value) -> Result<(), String> {
    match value {
        Value::Nil => text.push_str("<nil>"),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => text.push_str(&value.to_string()),
        Value::Float(value) => text.push_str(&float(*value)),
        Value::Text(value) => text.push_str(value),
        Value::List(items) => list(text, items, write)?,
        Value::Structure(_) => {
            return Err(format!(
                "can't print all of {}; name one of its fields",
                value.type_name()
            ));
        }
    }
    Ok(())
}

fn list(
    text: &mut String,
    items: &[Value],
    mut item: impl FnMut(&mut String, &Value) -> Result<(), String>,
) -> Result<(), String> {
    text.push('[');
    for (index, value) in items.iter().enumerate() {
        if index > 0 {
            text.push(' ');
        }
        item(text, value)?;
    }
    text.push(']');
    Ok(())
}

/// The shortest text that parses to the same number, with an exponent from 1e6 and below 1e-4.
fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value == 0.0 || (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}
