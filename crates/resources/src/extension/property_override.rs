//! `builtin/property-override`: sets or removes fields of resources by path.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use legate_envoy_json::{Change, Patch};
use legate_model::extension::{Extension, PatchedResource, PropertyOverride, PropertyPatch};
use legate_model::{EnvoyExtension, Invalid};
use prost::Message;

use super::fields;
use super::part_id::PartId;
use crate::resource_type::Type;

/// Validates the paths and values of a property-override against Envoy's messages and the fields that may be
/// changed, so that patches that can never apply are refused on write. Other extensions are not checked.
///
/// # Errors
///
/// [`Invalid`] names the first patch that cannot be applied.
pub fn check(extension: &EnvoyExtension) -> Result<(), Invalid> {
    let Extension::PropertyOverride(patches) = Extension::read(extension)? else {
        return Ok(());
    };
    for (i, patch) in patches.patches.iter().enumerate() {
        let Some(message) = patch.resource_filter.resource_type.message() else {
            continue;
        };
        let change = of(&patches, patch);
        let refused = |reason| Invalid::new(format!("Arguments.Patches[{i}].Path"), reason);
        change
            .check(message)
            .map_err(|error| refused(error.to_string()))?;
        fields::check(patch.resource_filter.resource_type, &change).map_err(refused)?;
    }
    Ok(())
}

/// Whether a patch applies to this resource.
pub(super) fn concerns(patches: &PropertyOverride, place: PartId<'_>) -> bool {
    let mut all = patches.patches.iter();
    all.any(|patch| is_for(patch, place) || is_for_assignment_within(patch, place))
}

/// Applies all matching patches to a message.
pub(super) fn change(
    patches: &PropertyOverride,
    place: PartId<'_>,
    message: &[u8],
) -> Result<Vec<u8>, String> {
    let mut message = message.to_vec();
    for patch in &patches.patches {
        let Some(name) = patch.resource_filter.resource_type.message() else {
            continue;
        };
        let change = of(patches, patch);
        let changed = match () {
            () if is_for(patch, place) => change.apply(name, &message),
            () if is_for_assignment_within(patch, place) => {
                let Some((mut cluster, assignment)) = with_assignment(&message) else {
                    continue;
                };
                let assignment = change.apply(name, &assignment);
                assignment.map(|assignment| {
                    cluster.load_assignment =
                        ClusterLoadAssignment::decode(assignment.as_slice()).ok();
                    cluster.encode_to_vec()
                })
            }
            () => continue,
        };
        // A patch that an older server accepted may be of a field that is refused now.
        let changed = changed
            .map_err(|error| error.to_string())
            .and_then(|changed| {
                fields::check(patch.resource_filter.resource_type, &change).map(|()| changed)
            });
        message = changed.map_err(|error| format!("patch of {:?}: {error}", patch.path))?;
    }
    Ok(message)
}

fn with_assignment(cluster: &[u8]) -> Option<(Cluster, Vec<u8>)> {
    let cluster = Cluster::decode(cluster).ok()?;
    let assignment = cluster.load_assignment.as_ref()?.encode_to_vec();
    Some((cluster, assignment))
}

fn of(patches: &PropertyOverride, patch: &PropertyPatch) -> Patch {
    Patch {
        path: patch.path.clone(),
        change: match patch.op.as_str() {
            "remove" => Change::Remove,
            _ => Change::Set(patch.value.clone()),
        },
        name_all_fields: patches.debug,
    }
}

fn is_for(patch: &PropertyPatch, place: PartId<'_>) -> bool {
    let kind = match patch.resource_filter.resource_type {
        PatchedResource::Cluster => Type::Cluster,
        PatchedResource::ClusterLoadAssignment => Type::Endpoints,
        PatchedResource::Listener => Type::Listener,
        PatchedResource::Route => Type::Routes,
        PatchedResource::Default => return false,
    };
    kind == place.kind && is_for_service(patch, place)
}

/// Static clusters contain their load assignment.
fn is_for_assignment_within(patch: &PropertyPatch, place: PartId<'_>) -> bool {
    let kind = patch.resource_filter.resource_type;
    kind == PatchedResource::ClusterLoadAssignment
        && place.kind == Type::Cluster
        && is_for_service(patch, place)
}

fn is_for_service(patch: &PropertyPatch, place: PartId<'_>) -> bool {
    let filter = &patch.resource_filter;
    let is = |name: &str| {
        let upstream = place.upstream;
        upstream.is_some_and(|upstream| upstream.eq_ignore_ascii_case(name))
    };
    filter.traffic_direction == place.direction()
        && (filter.services.is_empty() || filter.services.iter().any(|one| is(&one.name)))
}
