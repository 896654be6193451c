//! Status of alias checks: the health of another service or a node.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use legate_model::{CheckStatus, CheckType, HealthCheck};
use legate_store::ReadTxn;

use crate::probe::output::{cut, size};
use crate::settings::Settings;

/// Names in the form in which the store compares them.
type Folded = String;

/// The nodes of alias checks, each read once, since many aliases may refer to the same node.
pub(crate) struct Nodes<'a, 's> {
    state: &'a ReadTxn<'s>,
    settings: &'a Settings,
    read: HashMap<Folded, Option<Node>>,
}

struct Node {
    instances: HashSet<Folded>,
    /// The worst checks by instance id; those of the node itself under the empty id.
    worst: HashMap<Folded, Worst>,
}

/// The two worst checks of a set, the first among equals. Two, because an alias ignores itself.
#[derive(Default)]
struct Worst(Vec<Arc<HealthCheck>>);

impl<'a, 's> Nodes<'a, 's> {
    pub(crate) fn new(state: &'a ReadTxn<'s>, settings: &'a Settings) -> Self {
        Self {
            state,
            settings,
            read: HashMap::new(),
        }
    }

    /// Status and output of an alias check. `own_node` and `check_id` are those of the alias itself.
    pub(crate) fn status(
        &mut self,
        own_node: &str,
        check_id: &str,
        of: &CheckType,
    ) -> (CheckStatus, String) {
        let name = match of.alias_node.as_str() {
            "" => own_node,
            other => other,
        };
        let state = self.state;
        let node = self.read.entry(name.to_lowercase());
        let node = node.or_insert_with(|| Node::read(state, name)).as_ref();
        let service = of.alias_service.as_str();
        let folded = service.to_lowercase();
        let known = node.filter(|node| service.is_empty() || node.instances.contains(&folded));
        let Some(node) = known else {
            let what = match service {
                "" => format!("Node {name} could not be found"),
                service => format!("Service {service} could not be found on node {name}"),
            };
            return (CheckStatus::Critical, what);
        };
        let on_node = node.worst.get("").into_iter();
        let of_service = node.worst.get(&folded).filter(|_| !service.is_empty());
        let all = on_node.chain(of_service).flat_map(|worst| &worst.0);
        let is_own = name.eq_ignore_ascii_case(own_node);
        let others = all.filter(|check| !is_own || !check.check_id.eq_ignore_ascii_case(check_id));
        let order =
            |check: &&Arc<HealthCheck>| (Reverse(check.status), check.check_id.to_lowercase());
        let (status, mut output) = shown(others.min_by_key(order));
        // Two aliases of each other include each other's output.
        cut(&mut output, size(of, self.settings));
        (status, output)
    }
}

impl Node {
    /// Reads a node's checks; `None` if the node does not exist.
    fn read(state: &ReadTxn<'_>, name: &str) -> Option<Self> {
        state.node(name)?;
        let instances = state.instances_on(name);
        let mut worst: HashMap<Folded, Worst> = HashMap::new();
        for check in state.checks_on(name) {
            let of = worst.entry(check.service_id.to_lowercase());
            of.or_default().add(check);
        }
        Some(Self {
            instances: instances.iter().map(|one| one.id.to_lowercase()).collect(),
            worst,
        })
    }
}

impl Worst {
    fn add(&mut self, check: Arc<HealthCheck>) {
        let place = self.0.partition_point(|known| known.status >= check.status);
        self.0.insert(place, check);
        self.0.truncate(2);
    }
}

fn shown(worst: Option<&Arc<HealthCheck>>) -> (CheckStatus, String) {
    match worst {
        None => (CheckStatus::Passing, "No checks found.".to_owned()),
        Some(worst) if worst.status == CheckStatus::Passing => {
            (CheckStatus::Passing, "All checks passing.".to_owned())
        }
        Some(worst) => {
            let (name, output) = (&worst.name, &worst.output);
            let output = format!("Aliased check {name:?} failing: {output}");
            (worst.status, output)
        }
    }
}

#[cfg(test)]
mod tests {
    use CheckStatus::{Critical, Passing, Warning};
    use legate_model::ServiceInstance;
    use legate_store::{Command, Registration, Store};

    use super::*;

    /// A node with the instance `web`, and checks: id, instance, status.
    async fn register(store: &Store, node: &str, checks: &[(&str, &str, CheckStatus)]) {
        let checks = checks.iter().map(|(id, service, status)| HealthCheck {
            check_id: (*id).to_owned(),
            name: (*id).to_owned(),
            service_id: (*service).to_owned(),
            status: *status,
            output: "out".to_owned(),
            ..HealthCheck::default()
        });
        let registration = Registration {
            node: legate_model::Node {
                node: node.to_owned(),
                address: "127.0.0.1".to_owned(),
                ..legate_model::Node::default()
            },
            service: Some(ServiceInstance {
                id: "web".to_owned(),
                service: "web".to_owned(),
                ..ServiceInstance::default()
            }),
            checks: checks.collect(),
            skip_node_update: false,
        };
        let command = Command::Register(Box::new(registration));
        store.apply(command).await.unwrap();
    }

    /// Status of the alias `own` on the node `n1`.
    fn status(store: &Store, node: &str, service: &str) -> (CheckStatus, String) {
        let of = CheckType {
            alias_node: node.to_owned(),
            alias_service: service.to_owned(),
            ..CheckType::default()
        };
        let state = store.state();
        Nodes::new(&state.read(), &Settings::default()).status("n1", "own", &of)
    }

    fn failing(status: CheckStatus, name: &str) -> (CheckStatus, String) {
        (status, format!("Aliased check {name:?} failing: out"))
    }

    #[tokio::test]
    async fn outputs_are_truncated() {
        let store = Store::new();
        register(&store, "n1", &[(&"x".repeat(5000), "web", Critical)]).await;
        assert_eq!(status(&store, "", "web").1.len(), 4096);
    }

    #[tokio::test]
    async fn an_alias_has_the_worst_status_of_the_instance_and_its_node() {
        let store = Store::new();
        register(&store, "n1", &[]).await;
        let none = (Passing, "No checks found.".to_owned());
        assert_eq!(status(&store, "", "web"), none);
        register(&store, "n1", &[("a", "web", Passing), ("b", "", Passing)]).await;
        let all = (Passing, "All checks passing.".to_owned());
        assert_eq!(status(&store, "N1", "WEB"), all);
        let bad = [
            ("a", "web", Warning),
            ("b", "", Warning),
            ("d", "web", Critical),
        ];
        register(&store, "n1", &bad).await;
        assert_eq!(status(&store, "", "web"), failing(Critical, "d"));
        assert_eq!(status(&store, "", ""), failing(Warning, "b"));
        register(&store, "n1", &[("d", "web", Passing)]).await;
        assert_eq!(status(&store, "", "web"), failing(Warning, "a"));
        let gone = |store| status(store, "", "db").1;
        assert_eq!(gone(&store), "Service db could not be found on node n1");
        assert_eq!(status(&store, "n9", "").1, "Node n9 could not be found");
    }

    #[tokio::test]
    async fn an_alias_ignores_itself() {
        let store = Store::new();
        let own = [("own", "", Critical), ("z", "", Warning)];
        register(&store, "n1", &own).await;
        assert_eq!(status(&store, "", ""), failing(Warning, "z"));
        assert_eq!(status(&store, "", "web"), failing(Warning, "z"));
        // Another node may have a check with the same id.
        register(&store, "n2", &own).await;
        assert_eq!(status(&store, "n2", ""), failing(Critical, "own"));
    }
}
