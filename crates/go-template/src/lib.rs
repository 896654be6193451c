//! Go's `text/template`, for templates that people write into configuration.
//!
//! What Go makes of a template, this makes of it too, byte by byte, as far as it goes:
//!
//! - text, comments, and white space trimmed by `{{-` and `-}}`;
//! - `.`, fields (`.A.B`), variables (`$`, `$x := …`, `$x = …`), pipelines, parentheses;
//! - `if`, `with` and `range`, each with `else`; `else if` and `else with`; `range` over lists and
//!   counts;
//! - the functions `and`, `or`, `not`, `eq`, `ne`, `lt`, `le`, `gt`, `ge`, `len`, `index`, `print`,
//!   `printf` (`%v %s %q %d %t %%`) and `println`;
//! - texts in double quotes and backquotes, whole and decimal numbers, `true`, `false`, `nil`.
//!
//! Refused by name: `define`, `template`, `block`, `break`, `continue`; the functions `call`,
//! `html`, `js`, `slice` and `urlquery`; character constants, imaginary numbers, and flags and widths
//! in formats. Where Go writes its complaint into the output (`%!d(string=x)`), this is an error.
//!
//! Errors have the form of Go's: `template: NAME:LINE:COLUMN: …`. Nothing here performs IO, and no
//! template uses more than a fixed amount of time and memory: see the constants below.

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

/// Executes the template `text` with `data` as its dot. Errors call the template `name`.
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
/// When the template cannot be parsed, uses what is not supported, exceeds a limit, or fails while
/// it is executed; the error says where.
pub fn render<'a>(name: &'a str, text: &'a str, data: &Value) -> Result<Output<'a>, TemplateError> {
    let source = Source { name, text };
    if text.len() > MAX_TEMPLATE {
        let message = format!("the template is larger than {MAX_TEMPLATE} bytes");
        return Err(source.error(0, &message));
    }
    let nodes = parser::parse(source)?;
    evaluate::run(source, &nodes, data)
}
