//! Where the decoder is in a document, and what it has met there.

use std::cell::RefCell;
use std::fmt;

use serde::de;
use serde_json::Value;

/// What of a field has no effect, as paths from its object: by the name of its type, its own, and its
/// value.
pub(super) type Unserved = fn(&str, &str, &Value) -> Vec<String>;

/// What a document has that its target does not make use of, as paths.
pub(super) struct Met {
    /// Fields that the target does not have.
    pub(super) unknown: Vec<String>,
    /// Fields that are kept and have no effect.
    pub(super) unserved: Vec<String>,
}

/// Where the decoder is, and what it has met.
#[derive(Default)]
pub(super) struct Place {
    /// Whether one value stands for a list of it, and a list of one object for the object.
    pub(super) is_hcl: bool,
    /// What is noted as without effect; nothing where it is not asked for.
    unserved_of: Option<Unserved>,
    path: RefCell<String>,
    unknown: RefCell<Vec<String>>,
    unserved: RefCell<Vec<String>>,
}

impl Place {
    /// The top of a request's body.
    pub(super) fn of_request(unserved_of: Unserved) -> Self {
        Self {
            unserved_of: Some(unserved_of),
            ..Self::default()
        }
    }

    /// The top of a document that was HCL.
    pub(super) fn of_hcl(unserved_of: Unserved) -> Self {
        Self {
            is_hcl: true,
            ..Self::of_request(unserved_of)
        }
    }

    /// What was met, once everything is decoded.
    pub(super) fn into_met(self) -> Met {
        Met {
            unknown: self.unknown.into_inner(),
            unserved: self.unserved.into_inner(),
        }
    }

    /// Runs `step` one level deeper; an error without a place gets this one.
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

    /// Notes a field that the target does not have.
    pub(super) fn note_unknown(&self, key: &str) {
        self.unknown.borrow_mut().push(self.below(key));
    }

    /// Notes what of a field is kept and has no effect.
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

/// One step down in a document.
pub(super) enum Segment<'a> {
    Key(&'a str),
    Index(usize),
}

/// An error on its way up to the place that knows where it happened.
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
