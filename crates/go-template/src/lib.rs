//! Go's `text/template`, for templates in configuration.
//!
//! For the supported features, the output is identical to Go's:
//!
//! - text, comments, and white space trimmed by `{{-` and `-}}`;
//! - `.`, fields (`.A.B`), variables (`$`, `$x := …`, `$x = …`), pipelines, parentheses;
//! - `if`, `with` and `range`, each with `else`; `else if` and `else with`; `range` over lists and
//!   counts;
//! - the functions `and`, `or`, `not`, `eq`, `ne`, `lt`, `le`, `gt`, `ge`, `len`, `index`, `print`,
//!   `printf` (`%v %s %q %d %t %%`) and `println`;
//! - texts in double quotes and backquotes, whole and decimal numbers, `true`, `false`, `nil`.
//!
//! Refused by name: `define`, `template`, `block`, `break`, `continue`; the functions `call`, `html`,
//! `js`, `slice` and `urlquery`; character constants, imaginary numbers, and flags and widths in
//! formats. Where Go writes an error text into the output (`%!d(string=x)`), this is an error.
//!
//! Errors have Go's format: `template: NAME:LINE:COLUMN: …`. The crate performs no IO, and execution
//! is bounded in time and memory by the constants below.

mod error;
mod evaluate;
mod format;
mod functions;
mod lexer;
mod limits;
mod literal;
mod output;
mod parser;
mod syntax;
mod value;

pub use error::TemplateError;
pub use limits::{MAX_DEPTH, MAX_STEPS, MAX_TEMPLATE, MAX_TEXT, MAX_VARIABLES};
pub use output::Output;
pub use value::{Structure, Value};

use error::Source;

/// Executes the template `text` with `data` as its dot. Errors refer to the template as `name`.
///
/// ```
/// use legate_go_template::{Value, render};
///
/// let data = Value::structure("Proxy", [("Id", Value::from("web-1"))]);
/// let output = render("greeting", "I am {{ printf \"%q\" .Id }}.", &data)?;
/// assert_eq!(output.text(), "I am \"web-1\".");
/// # Ok::<(), legate_go_template::TemplateError>(())
/// ```
///
/// # Errors
/// If the template cannot be parsed, uses an unsupported feature, exceeds a limit, or fails during
/// execution; the error has the position.
pub fn render<'a>(name: &'a str, text: &'a str, data: &Value) -> Result<Output<'a>, TemplateError> {
    let source = Source { name, text };
    if text.len() > MAX_TEMPLATE {
        let message = format!("the template is larger than {MAX_TEMPLATE} bytes");
        return Err(source.error(0, &message));
    }
    let nodes = parser::parse(source)?;
    evaluate::run(source, &nodes, data)
}
