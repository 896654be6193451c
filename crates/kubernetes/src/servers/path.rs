//! Paths of the API, with encoded segments and parameters.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that are not encoded in a segment or parameter (RFC 3986, unreserved).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A path below `/v1`. Segments are encoded, so that a name cannot add a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    text: String,
    parameters: bool,
    /// The path concerns the mesh as a whole.
    of_mesh: bool,
}

impl Path {
    /// `/v1/<first>/<second>…`
    pub fn of<'a>(segments: impl IntoIterator<Item = &'a str>) -> Path {
        let mut text = "/v1".to_owned();
        for segment in segments {
            text.push('/');
            text.extend(utf8_percent_encode(segment, ENCODED));
        }
        Path {
            text,
            parameters: false,
            of_mesh: false,
        }
    }

    /// Marks the path as one for the whole mesh: a client's partition is not added.
    #[must_use]
    pub fn of_mesh(mut self) -> Path {
        self.of_mesh = true;
        self
    }

    /// Adds the namespace of the mesh, if given.
    #[must_use]
    pub fn in_namespace(self, namespace: Option<&str>) -> Path {
        match namespace {
            Some(namespace) => self.with("ns", namespace),
            None => self,
        }
    }

    /// Adds the client's partition, if it has one.
    pub(super) fn in_partition(&self, partition: Option<&str>) -> Path {
        match partition.filter(|_| !self.of_mesh) {
            Some(partition) => self.clone().with("partition", partition),
            None => self.clone(),
        }
    }

    /// Adds a query parameter.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Path {
        self.text.push(if self.parameters { '&' } else { '?' });
        self.parameters = true;
        self.text.extend(utf8_percent_encode(name, ENCODED));
        self.text.push('=');
        self.text.extend(utf8_percent_encode(value, ENCODED));
        self
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
