//! Rows of the field table: how each field of a type is served.

/// The fields of one type, grouped by how they are served; names are separated by spaces.
pub(crate) type Rows = (&'static str, &'static [(Served, &'static str)]);

/// How a field is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// As in Consul, or data that is stored and returned.
    Yes,
    /// An object or a list of objects, whose fields have their own rows.
    Inside,
    /// Writes with any value but these and an empty one are refused. For fields that restrict access,
    /// and those that cannot be reported.
    RefusedExcept(&'static [&'static str]),
    /// Any value but these and an empty one is stored, has no effect, and is reported. Consul accepts
    /// it, and refusing it would break registrations that work without it.
    ReportedExcept(&'static [&'static str]),
    /// Free-form keys. These are served; others are reported.
    Keys(&'static [&'static str]),
}

/// Any value is refused.
pub(crate) const REFUSED: Served = Served::RefusedExcept(&[]);
/// Any value is stored, has no effect, and is reported.
pub(crate) const REPORTED: Served = Served::ReportedExcept(&[]);
