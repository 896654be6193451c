//! The fields of Envoy's messages that `builtin/property-override` may change, listed by path in `fields/*.txt`. A field
//! that is not listed is refused, so one that a new version of Envoy adds is refused until it has been judged; a test
//! compares the lists with Envoy's messages.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use legate_envoy_json::Patch;
use legate_model::extension::PatchedResource;

type Paths = BTreeSet<&'static str>;

static CLUSTER: LazyLock<Paths> = LazyLock::new(|| allowed(include_str!("fields/cluster.txt")));
static ASSIGNMENT: LazyLock<Paths> =
    LazyLock::new(|| allowed(include_str!("fields/cluster_load_assignment.txt")));
static LISTENER: LazyLock<Paths> = LazyLock::new(|| allowed(include_str!("fields/listener.txt")));
static ROUTE: LazyLock<Paths> = LazyLock::new(|| allowed(include_str!("fields/route.txt")));

fn allowed(list: &'static str) -> Paths {
    list.lines()
        .filter_map(|line| line.strip_prefix("+ "))
        .collect()
}

/// Checks that all fields that a patch names may be changed.
///
/// # Errors
/// The first field that may not, and those next to it that may.
pub(super) fn check(resource: PatchedResource, patch: &Patch) -> Result<(), String> {
    let allowed = match resource {
        PatchedResource::Default => return Ok(()),
        PatchedResource::Cluster => &*CLUSTER,
        PatchedResource::ClusterLoadAssignment => &*ASSIGNMENT,
        PatchedResource::Listener => &*LISTENER,
        PatchedResource::Route => &*ROUTE,
    };
    match patch
        .paths()
        .into_iter()
        .find(|path| !covers(allowed, path))
    {
        None => Ok(()),
        Some(path) => Err(refusal(allowed, &path)),
    }
}

/// Whether a field is listed, or is within a listed one without listed fields of its own: a duration, a wrapper of a
/// number, or metadata.
fn covers(allowed: &Paths, path: &str) -> bool {
    if allowed.contains(path) {
        return true;
    }
    let mut parents = path.match_indices('/').map(|(at, _)| &path[..at]);
    let parent = parents.rfind(|parent| allowed.contains(parent));
    parent.is_some_and(|parent| fields_of(allowed, parent).next().is_none())
}

/// The listed fields of a message, by name.
fn fields_of<'a>(allowed: &'a Paths, parent: &'a str) -> impl Iterator<Item = &'a str> {
    let within = allowed
        .iter()
        .filter_map(move |path| path.strip_prefix(parent)?.strip_prefix('/'));
    within.filter(|name| !name.contains('/'))
}

fn refusal(allowed: &Paths, path: &str) -> String {
    let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
    let nearest = parents.rev().find_map(|parent| {
        let names: Vec<&str> = fields_of(allowed, parent).collect();
        (!names.is_empty()).then(|| (parent, names.join(", ")))
    });
    let (parent, names) = nearest.unwrap_or_default();
    let place = match parent {
        "" => "of these resources".to_owned(),
        parent => format!("in {parent}"),
    };
    format!(
        "{path} cannot be changed: it determines names, TLS, access rules or destinations, or contains configuration \
         that is not checked; fields {place} that can be changed: {names}"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use legate_envoy_json::{Change, message};
    use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
    use serde_json::{Value, json};

    use super::*;

    const LISTS: [(PatchedResource, &str); 4] = [
        (PatchedResource::Cluster, include_str!("fields/cluster.txt")),
        (
            PatchedResource::ClusterLoadAssignment,
            include_str!("fields/cluster_load_assignment.txt"),
        ),
        (
            PatchedResource::Listener,
            include_str!("fields/listener.txt"),
        ),
        (PatchedResource::Route, include_str!("fields/route.txt")),
    ];

    /// The lines of a list, by path.
    fn lines(list: &str) -> BTreeMap<&str, &str> {
        let lines = list.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                let (verdict, path) = line.split_once(' ').unwrap();
                (path, verdict)
            })
            .collect()
    }

    /// The message of a field with fields to judge. Those of protobuf itself and maps are judged as a whole.
    fn within(field: &FieldDescriptor) -> Option<MessageDescriptor> {
        match field.kind() {
            Kind::Message(message)
                if !field.is_map() && !message.full_name().starts_with("google.protobuf.") =>
            {
                Some(message)
            }
            _ => None,
        }
    }

    fn is_any(field: &FieldDescriptor) -> bool {
        let value = match field.kind() {
            Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
            kind => kind,
        };
        matches!(value, Kind::Message(message) if message.full_name() == "google.protobuf.Any")
    }

    /// Compares a list with a message. Removes the lines that have been found.
    fn compare<'l>(
        message: &MessageDescriptor,
        path: &str,
        lines: &mut BTreeMap<&'l str, &'l str>,
        wrong: &mut Vec<String>,
    ) {
        for field in message.fields() {
            let path = format!("{path}/{}", field.name());
            let verdict = lines.remove(&*path);
            match (verdict, within(&field)) {
                (Some("+"), None) if is_any(&field) => wrong.push(format!("{path} holds an Any")),
                (Some("+" | "."), Some(message)) => compare(&message, &path, lines, wrong),
                (Some("+" | "-"), _) => {}
                _ => wrong.push(format!("{path} is not judged")),
            }
        }
    }

    #[test]
    fn every_field_of_envoys_messages_is_judged() {
        for (resource, list) in LISTS {
            let mut lines = lines(list);
            let mut wrong = Vec::new();
            compare(
                &message(resource.message().unwrap()).unwrap(),
                "",
                &mut lines,
                &mut wrong,
            );
            assert!(wrong.is_empty(), "{resource:?}: {wrong:#?}");
            assert!(
                lines.is_empty(),
                "{resource:?} has no such fields: {lines:#?}"
            );
        }
    }

    fn judged(resource: PatchedResource, path: &str, change: Change) -> Result<(), String> {
        let patch = Patch {
            path: path.to_owned(),
            change,
            name_all_fields: false,
        };
        patch.check(resource.message().unwrap()).unwrap();
        check(resource, &patch)
    }

    #[test]
    fn tls_access_rules_names_and_destinations_cannot_be_changed() {
        use PatchedResource::{Cluster, ClusterLoadAssignment, Listener, Route};
        for (resource, path) in [
            (Cluster, "/name"),
            (Cluster, "/transport_socket"),
            (Cluster, "transport_socket/name"),
            (Cluster, "//transport_socket_matches"),
            (Cluster, "/transport_socket_matcher"),
            (Cluster, "/type"),
            (Cluster, "/load_assignment"),
            (Cluster, "/load_assignment/policy/overprovisioning_factor"),
            (Cluster, "/typed_extension_protocol_options"),
            (Cluster, "/outlier_detection/monitors"),
            (Cluster, "/metadata"),
            (Cluster, "/upstream_bind_config"),
            (ClusterLoadAssignment, "/cluster_name"),
            (ClusterLoadAssignment, "/endpoints"),
            (Listener, "/name"),
            (Listener, "/address/socket_address/port_value"),
            (Listener, "/filter_chains"),
            (Listener, "/default_filter_chain/filters"),
            (Listener, "/fcds_config"),
            (Listener, "/use_original_dst"),
            (Listener, "/listener_filters"),
            (Route, "/name"),
            (Route, "/virtual_hosts"),
            (Route, "/vhds"),
            (Route, "/vhost_header"),
            (Route, "/typed_per_filter_config"),
            (Route, "/request_mirror_policies"),
        ] {
            let error = judged(resource, path, Change::Remove).unwrap_err();
            assert!(error.contains("cannot be changed"), "{error}");
        }
    }

    #[test]
    fn values_are_judged_field_by_field() {
        let cluster =
            |path: &str, value: Value| judged(PatchedResource::Cluster, path, Change::Set(value));
        let any = json!({"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s"});
        let monitor = json!({"name": "x", "typed_config": any});
        for (path, value) in [
            (
                "/outlier_detection",
                json!({"interval": "1s", "max_ejection_percent": 10}),
            ),
            ("/outlier_detection/max_ejection_time/seconds", json!(120)),
            ("/outlier_detection", json!({"interval": {"seconds": 1}})),
            (
                "/circuit_breakers",
                json!({"thresholds": [{"max_requests": 1}]}),
            ),
            ("/metadata/filter_metadata", json!({"a": {"b": [1]}})),
            (
                "/common_lb_config",
                json!({"override_host_status": {"statuses": ["HEALTHY"]}}),
            ),
        ] {
            assert_eq!(cluster(path, value.clone()), Ok(()), "{path} {value}");
        }
        for (path, value) in [
            ("/outlier_detection", json!({"monitors": [monitor]})),
            ("/outlier_detection/monitors", json!([monitor])),
            (
                "/preconnect_policy",
                json!({"preconnect_enabled_metadata": {}}),
            ),
            ("/metadata", json!({"filter_metadata": {}})),
            ("/health_checks", json!([{"timeout": "1s"}])),
            ("/transport_socket", json!({"name": "raw"})),
        ] {
            assert!(cluster(path, value.clone()).is_err(), "{path} {value}");
        }
        let error = cluster("/outlier_detection", json!({"monitors": []})).unwrap_err();
        assert!(
            error.starts_with("/outlier_detection/monitors cannot"),
            "{error}"
        );
        assert!(
            error.contains("in /outlier_detection that can be changed: always_eject"),
            "{error}"
        );
    }
}
