//! All scenarios, in groups.

mod away;
mod changes;
mod check;
mod contract;
mod datacenters;
mod external;
mod gateway_api;
mod gateways;
mod image;
mod manifests;
mod peering;
mod pods;
mod several;
mod tenants;
mod traffic;
mod tutorial;
mod whole;

pub(crate) use gateway_api::{
    VALUES as GATEWAY_API_VALUES, define as define_gateway_api, delete_class,
};

use crate::run::{Group, Needs};

/// In order: the tutorial with its own mesh; scenarios without a mesh; the way to a Gateway; scenarios for single
/// applications; changes of the whole mesh; other meshes.
pub(crate) const GROUPS: [Group; 12] = [
    Group {
        mesh: None,
        needs: Needs::Nothing,
        at_a_time: 1,
        scenarios: &[tutorial::SCENARIOS],
    },
    Group {
        mesh: None,
        needs: Needs::Nothing,
        at_a_time: 3,
        scenarios: &[
            image::SCENARIOS,
            contract::WITHOUT_MESH,
            manifests::SCENARIOS,
        ],
    },
    // It leaves its mesh, which the next group replaces.
    Group {
        mesh: None,
        needs: Needs::GatewayApi,
        at_a_time: 1,
        scenarios: &[tutorial::WITH_GATEWAY_API],
    },
    Group {
        mesh: Some(&[]),
        needs: Needs::Nothing,
        at_a_time: 3,
        scenarios: &[
            traffic::SCENARIOS,
            pods::SCENARIOS,
            contract::SCENARIOS,
            changes::SCENARIOS,
        ],
    },
    Group {
        mesh: Some(&[]),
        needs: Needs::OwnNode,
        at_a_time: 1,
        scenarios: &[away::SCENARIOS],
    },
    Group {
        mesh: Some(gateway_api::VALUES),
        needs: Needs::GatewayApi,
        at_a_time: 1,
        scenarios: &[gateway_api::SCENARIOS],
    },
    Group {
        mesh: Some(&[]),
        needs: Needs::Nothing,
        at_a_time: 1,
        scenarios: &[check::SCENARIOS, gateways::SCENARIOS, whole::SCENARIOS],
    },
    Group {
        mesh: None,
        needs: Needs::Nothing,
        at_a_time: 1,
        scenarios: &[tenants::SCENARIOS],
    },
    Group {
        mesh: None,
        needs: Needs::Nothing,
        at_a_time: 1,
        scenarios: &[datacenters::SCENARIOS],
    },
    Group {
        mesh: None,
        needs: Needs::Nothing,
        at_a_time: 1,
        scenarios: &[peering::SCENARIOS],
    },
    Group {
        mesh: None,
        needs: Needs::OwnNode,
        at_a_time: 1,
        scenarios: &[several::SCENARIOS],
    },
    Group {
        mesh: None,
        needs: Needs::Consul,
        at_a_time: 1,
        scenarios: &[external::SCENARIOS],
    },
];
