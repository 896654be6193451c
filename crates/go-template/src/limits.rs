//! How much a template may be, and may use.

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
