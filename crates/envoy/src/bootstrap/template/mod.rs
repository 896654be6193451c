//! Go's `text/template`, as far as bootstrap templates use it: fields, variables, pipelines, `if`,
//! `range`, `with`, comparisons and printing. What is left out (`define`, `template`, `block`,
//! `break`, `continue` and the functions for web pages) is refused by name. Nothing here performs
//! IO or knows what a bootstrap document is, and no template can use more than a fixed amount of
//! time and memory.

mod error;
mod evaluate;
mod format;
mod functions;
mod lexer;
mod literal;
mod output;
mod parser;
mod syntax;
#[cfg(test)]
mod tests;
mod value;

pub use error::TemplateError;
pub(super) use output::Output;
pub(super) use value::{Structure, Value};

/// A template's largest size in bytes. Consul's configuration entries are smaller.
const MAX_TEMPLATE: usize = 1024 * 1024;

/// How deep actions and parentheses nest.
const MAX_DEPTH: usize = 64;

/// How many nodes, operands and iterations one execution evaluates.
const MAX_STEPS: u32 = 100_000;

/// How many bytes of text one execution makes, written or kept in variables. Bootstrap documents
/// are much smaller, and what is made is read as JSON, which in memory takes up to eighty times as
/// much.
const MAX_TEXT: usize = 1024 * 1024;

/// How many variables are in scope at one place. All of them are looked at to find one.
const MAX_VARIABLES: usize = 256;

/// Executes `source` with `data` as its dot.
///
/// # Errors
/// When the template cannot be parsed, uses what is not supported, or fails while it is executed;
/// the error says where.
pub(super) fn render(source: &str, data: Value) -> Result<Output, TemplateError> {
    if source.len() > MAX_TEMPLATE {
        let message = format!("the template is larger than {MAX_TEMPLATE} bytes");
        return Err(TemplateError::new(source, 0, &message));
    }
    let nodes = parser::parse(source)?;
    evaluate::run(source, &nodes, data)
}
