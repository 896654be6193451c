//! Literals: numbers in Go's decimal and prefixed notations, and text in double quotes. Hexadecimal
//! fractions and imaginary numbers, which no bootstrap template needs, are refused.

use crate::value::Value;

/// Parses a number, which starts with a sign, a digit or a dot.
pub(crate) fn number(text: &str) -> Result<Value, String> {
    let wrong = || format!("bad number syntax: {text:?}");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.ends_with('i') {
        return Err(format!(
            "the imaginary number {text} is not supported; write a whole or a decimal number"
        ));
    }
    let (radix, digits) = radix(digits);
    if radix == 10 && digits.contains(['.', 'e', 'E']) {
        return float(text).ok_or_else(wrong);
    }
    let digits = without_underscores(digits, radix != 10).ok_or_else(wrong)?;
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(wrong());
    }
    let sign = if negative { "-" } else { "" };
    i64::from_str_radix(&format!("{sign}{digits}"), radix)
        .map(Value::Int)
        .map_err(|_| format!("{text} overflows int"))
}

/// The base of a number's prefix, and the digits after it. A leading zero alone means octal, unless
/// the number has a fraction or an exponent.
fn radix(digits: &str) -> (u32, &str) {
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find(|(prefix, _)| {
            (digits.get(..2)).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        });
    match prefixed {
        Some((_, radix)) => (radix, &digits[2..]),
        None if digits.len() > 1
            && digits.starts_with('0')
            && !digits.contains(['.', 'e', 'E']) =>
        {
            (8, &digits[1..])
        }
        None => (10, digits),
    }
}

/// Removes underscores that separate digits; after a prefix one may come first.
fn without_underscores(digits: &str, prefixed: bool) -> Option<String> {
    let inner = match prefixed {
        true => digits.strip_prefix('_').unwrap_or(digits),
        false => digits,
    };
    let misplaced = inner.starts_with('_') || inner.ends_with('_') || inner.contains("__");
    (!misplaced).then(|| inner.replace('_', ""))
}

fn float(text: &str) -> Option<Value> {
    let known = |character: char| character.is_ascii_digit() || "+-.eE".contains(character);
    let value: f64 = text.chars().all(known).then(|| text.parse().ok())??;
    value.is_finite().then_some(Value::Float(value))
}

/// Parses the text between double quotes, with Go's escapes.
pub(crate) fn unquote(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let Some(escape) = after.chars().next() else {
            return Err("invalid syntax: a lone \\ in a string".to_owned());
        };
        rest = &after[escape.len_utf8()..];
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '0'..='7' => 3,
            _ => 0,
        };
        let simple = match escape {
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            '\\' | '"' => escape,
            _ => {
                let wrong = || format!("invalid syntax: \\{escape} in a string");
                let octal = escape.is_ascii_digit();
                let from = if octal { after } else { rest };
                let code = from.get(..digits).filter(|code| {
                    !code.is_empty() && code.bytes().all(|digit| digit.is_ascii_hexdigit())
                });
                let code = code.ok_or_else(wrong)?;
                rest = &from[digits..];
                let radix = if octal { 8 } else { 16 };
                let value = u32::from_str_radix(code, radix).map_err(|_| wrong())?;
                // In Go it is a byte, which is not valid text above 0x7f.
                if digits < 4 && value > 0x7f {
                    return Err(format!(
                        "invalid syntax: \\{escape} in a string takes ASCII only; use \\u00XX"
                    ));
                }
                char::from_u32(value).ok_or_else(wrong)?
            }
        };
        plain.push(simple);
    }
    plain.push_str(rest);
    Ok(plain)
}
