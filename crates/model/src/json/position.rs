//! The decoder's position in a document, and notes about fields there.

use std::cell::RefCell;
use std::fmt;

use serde::de;
use serde_json::Value;

/// Finds the parts of a field that have no effect, as paths relative to its object. The arguments are
/// the type's name, the field's name and the value.
pub(super) type Unserved = fn(&str, &str, &Value) -> Vec<String>;

/// Fields of a document that the target does not use, as paths.
pub(super) struct Notes {
    /// Fields that the target type does not have.
    pub(super) unknown: Vec<String>,
    /// Fields that are stored but have no effect.
    pub(super) unserved: Vec<String>,
}

/// The current position, and the notes so far.
#[derive(Default)]
pub(super) struct Position {
    /// Whether single values are accepted for lists, and lists with one object for objects.
    pub(super) is_hcl: bool,
    /// Finds fields without effect; `None` disables this.
    unserved_of: Option<Unserved>,
    path: RefCell<String>,
    unknown: RefCell<Vec<String>>,
    unserved: RefCell<Vec<String>>,
}

impl Position {
    /// The root of a request's body.
    pub(super) fn of_request(unserved_of: Unserved) -> Self {
        Self {
            unserved_of: Some(unserved_of),
            ..Self::default()
        }
    }

    /// The root of a document that was HCL.
    pub(super) fn of_hcl(unserved_of: Unserved) -> Self {
        Self {
            is_hcl: true,
            ..Self::of_request(unserved_of)
        }
    }

    /// The collected notes, for use after decoding.
    pub(super) fn into_notes(self) -> Notes {
        Notes {
            unknown: self.unknown.into_inner(),
            unserved: self.unserved.into_inner(),
        }
    }

    /// Runs `step` one level deeper. An error without a position gets this one.
    pub(super) fn at<T>(
        &self,
        segment: Segment<'_>,
        step: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let length = self.path.borrow().len();
        self.push(segment);
        let result = step().map_err(|mut fault| {
            fault.path.get_or_insert_with(|| self.path.borrow().clone());
            fault
        });
        self.path.borrow_mut().truncate(length);
        result
    }

    fn push(&self, segment: Segment<'_>) {
        let mut path = self.path.borrow_mut();
        match segment {
            Segment::Key(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            Segment::Index(index) => path.push_str(&format!("[{index}]")),
        }
    }

    /// Records a field that the target does not have.
    pub(super) fn note_unknown(&self, key: &str) {
        self.unknown.borrow_mut().push(self.below(key));
    }

    /// Records the parts of a field that are stored but have no effect.
    pub(super) fn note_unserved(&self, target: &str, field: &str, value: &Value) {
        let Some(unserved_of) = self.unserved_of else {
            return;
        };
        let unserved = unserved_of(target, field, value);
        let paths = unserved.iter().map(|key| self.below(key));
        self.unserved.borrow_mut().extend(paths);
    }

    fn below(&self, key: &str) -> String {
        let path = self.path.borrow();
        let separator = if path.is_empty() { "" } else { "." };
        format!("{path}{separator}{key}")
    }
}

/// One step of a path in a document.
pub(super) enum Segment<'a> {
    Key(&'a str),
    Index(usize),
}

/// An error that is returned to the level that adds its position.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) path: Option<String>,
    pub(super) message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Fault {
            path: None,
            message: message.to_string(),
        }
    }
}
