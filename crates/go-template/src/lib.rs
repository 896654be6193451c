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
mod literal;
mod output;
mod parser;
mod syntax;
mod value;

pub use error::TemplateError;
pub use output::Output;
pub use value::{Structure, Value};

use error::Source;

/// A template's largest size in bytes.
pub const MAX_TEMPLATE: usize = 1024 * 1024;

/// How deep actions and parentheses nest.
pub const MAX_DEPTH: usize = 64;

/// How many nodes, operands and iterations one execution evaluates.
pub const MAX_STEPS: u32 = 100_000;

/// How many bytes of text one execution makes, written or kept in variables. Documents are much
/// smaller, and one that is read as JSON takes up to eighty times as much memory.
pub const MAX_TEXT: usize = 1024 * 1024;

/// How many variables are in scope at one place. All of them are looked at to find one.
pub const MAX_VARIABLES: usize = 256;

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
