//! Limits on templates and their execution.

/// The maximum size of a template in bytes.
pub const MAX_TEMPLATE: usize = 1024 * 1024;

/// The maximum nesting of actions and parentheses.
pub const MAX_DEPTH: usize = 64;

/// The maximum number of nodes, operands and iterations evaluated in one execution.
pub const MAX_STEPS: u32 = 100_000;

/// The maximum number of bytes of text that one execution creates, in the output or in variables.
/// Real documents are much smaller, and parsing one as JSON takes up to eighty times its size in
/// memory.
pub const MAX_TEXT: usize = 1024 * 1024;

/// The maximum number of variables in scope, because a lookup searches all of them.
pub const MAX_VARIABLES: usize = 256;
