//! What is shown in a cluster.

mod changes;
mod image;
mod pods;
mod traffic;
mod whole;

use crate::run::Group;

/// What needs no mesh, then what the mesh does for one application, then what changes all of it.
pub(crate) const GROUPS: [Group; 3] = [
    Group {
        mesh: false,
        at_a_time: 3,
        scenarios: &[image::SCENARIOS],
    },
    Group {
        mesh: true,
        at_a_time: 3,
        scenarios: &[traffic::SCENARIOS, pods::SCENARIOS, changes::SCENARIOS],
    },
    Group {
        mesh: true,
        at_a_time: 1,
        scenarios: &[whole::SCENARIOS],
    },
];
