//! What is shown in a cluster.

mod image;

use crate::run::Group;

/// Each group after the other: what needs no mesh, then the mesh, then what changes all of it.
pub(crate) const GROUPS: [Group; 1] = [image::SCENARIOS];
