//! What the rows of a type say: what becomes of each of its fields.

/// The fields of one type, by what becomes of them: names with spaces between them.
pub(crate) type Rows = (&'static str, &'static [(Served, &'static str)]);

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// It has the effect that Consul gives it, or is data that is kept and shown.
    Yes,
    /// An object, or several: its fields have rows of their own.
    Inside,
    /// Any value but these and an empty one is refused when it is written. What protects, and what
    /// has no way to be reported, is here.
    RefusedExcept(&'static [&'static str]),
    /// Any value but these and an empty one is kept, has no effect, and is reported: Consul takes
    /// it, and to refuse it would break registrations that work without it.
    ReportedExcept(&'static [&'static str]),
    /// Free keys. These are served, others are reported.
    Keys(&'static [&'static str]),
}

/// Any value is refused.
pub(crate) const REFUSED: Served = Served::RefusedExcept(&[]);
/// Any value is kept, has no effect, and is reported.
pub(crate) const REPORTED: Served = Served::ReportedExcept(&[]);
