//! Where the decoder is in a document, and what it has met there.

use std::cell::RefCell;
use std::fmt;

use serde::de;

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
    path: RefCell<String>,
    unknown: RefCell<Vec<String>>,
    unserved: RefCell<Vec<String>>,
}

impl Place {
    /// The top of a document that was HCL.
    pub(super) fn of_hcl() -> Self {
        Self {
            is_hcl: true,
            ..Self::default()
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

    /// Notes a field that is kept and has no effect.
    pub(super) fn note_unserved(&self, key: &str) {
        self.unserved.borrow_mut().push(self.below(key));
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
