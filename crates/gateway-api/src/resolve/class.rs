//! Classes.

use std::collections::BTreeMap;

use super::features;
use crate::condition::{ACCEPTED, Condition, Problem};
use crate::object::Object;
use crate::outcome::ClassVerdict;
use crate::types::{GatewayClass, ParametersReference};
use crate::world::World;

/// The versions of the API whose objects are understood: the first and the last, both included.
const VERSIONS: ((u64, u64), (u64, u64)) = ((1, 5), (1, 7));

/// A class of this controller.
pub(super) struct Class<'a> {
    pub(super) object: &'a Object<GatewayClass>,
    /// Why its gateways are not served.
    pub(super) refused: Option<Problem>,
}

/// The classes of this controller, by name.
pub(super) fn classes(world: &World) -> BTreeMap<&str, Class<'_>> {
    let own = world
        .classes
        .iter()
        .filter(|class| class.spec.controller_name == world.controller);
    own.map(|object| {
        let refused = refused(world, object);
        (object.meta.name.as_str(), Class { object, refused })
    })
    .collect()
}

fn refused(world: &World, class: &Object<GatewayClass>) -> Option<Problem> {
    if let Some(path) = class.unserved.first() {
        let message = format!("spec.{path} is not served");
        return Some(Problem::new("Unsupported", message));
    }
    missing_parameters(world, class.spec.parameters_ref.as_ref())
}

/// Why settings cannot be used that something refers to.
pub(super) fn missing_parameters(
    world: &World,
    reference: Option<&ParametersReference>,
) -> Option<Problem> {
    let reference = reference.filter(|one| !world.parameters.contains(*one))?;
    let message = format!(
        "spec.parametersRef: there is no {} {:?} of group {:?} that is understood",
        reference.kind, reference.name, reference.group
    );
    Some(Problem::new("InvalidParameters", message))
}

impl Class<'_> {
    pub(super) fn verdict(&self, world: &World) -> ClassVerdict {
        let bundle = world.bundle.as_deref();
        let accepted = Condition::unless(ACCEPTED, ACCEPTED, self.refused.as_ref());
        let unknown = (!is_known(bundle)).then(|| {
            let ((major, first), (_, last)) = VERSIONS;
            let message = format!(
                "the cluster's kinds have version {}; those of {major}.{first} to {major}.{last} \
                 are understood, and fields without a meaning are refused",
                bundle.unwrap_or("unknown")
            );
            Problem::new("UnsupportedVersion", message)
        });
        let version = "SupportedVersion";
        ClassVerdict {
            generation: self.object.meta.generation,
            conditions: vec![
                accepted,
                Condition::unless(version, version, unknown.as_ref()),
            ],
            supported_features: features::supported(world.servers, world.experimental),
        }
    }
}

fn is_known(bundle: Option<&str>) -> bool {
    let mut numbers = bundle
        .unwrap_or_default()
        .trim_start_matches('v')
        .split(['.', '-']);
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let version = next().zip(next());
    version.is_some_and(|version| (VERSIONS.0..=VERSIONS.1).contains(&version))
}

#[cfg(test)]
mod tests {
    use super::is_known;

    #[test]
    fn versions() {
        for bundle in ["v1.5.0", "v1.6.3", "v1.7.0-rc.1"] {
            assert!(is_known(Some(bundle)), "{bundle}");
        }
        for bundle in ["v1.4.1", "v1.8.0", "v2.6.0", "main", ""] {
            assert!(!is_known(Some(bundle)), "{bundle}");
        }
        assert!(!is_known(None));
    }
}
