//! The resources that were received: `/config_dump`.

use http::StatusCode;
use legate_l4::config::Kind;
use regex::Regex;
use serde_json::{Value, json};

use super::query::Query;
use super::{Admin, Page};

/// Where the messages of the dump are defined.
const MESSAGES: &str = "type.googleapis.com/envoy.admin.v3.";

/// The lists of a kind in the dump.
struct Lists {
    kind: Kind,
    /// The message of the kind.
    message: &'static str,
    /// The list of resources in use, and the type of its entries.
    active: (&'static str, &'static str),
    /// Lists of Envoy's that stay empty here.
    empty: &'static [&'static str],
}

/// In Envoy's order.
const ALL: [Lists; 4] = [
    Lists {
        kind: Kind::Cluster,
        message: "ClustersConfigDump",
        active: ("dynamic_active_clusters", "DynamicCluster"),
        empty: &["static_clusters", "dynamic_warming_clusters"],
    },
    Lists {
        kind: Kind::Endpoints,
        message: "EndpointsConfigDump",
        active: ("dynamic_endpoint_configs", "DynamicEndpointConfig"),
        empty: &["static_endpoint_configs"],
    },
    Lists {
        kind: Kind::Listener,
        message: "ListenersConfigDump",
        active: ("dynamic_listeners", "DynamicListener"),
        empty: &["static_listeners"],
    },
    Lists {
        kind: Kind::Secret,
        message: "SecretsConfigDump",
        active: ("dynamic_active_secrets", "DynamicSecret"),
        empty: &["static_secrets", "dynamic_warming_secrets"],
    },
];

impl Admin {
    pub(super) fn config_dump(&self, query: &Query) -> Result<Page, Page> {
        query.refuse(&["mask"])?;
        let names = query.regex("name_regex")?;
        if let Some(resource) = query.get("resource") {
            return self.one_list(resource, names.as_ref());
        }
        let mut configs = vec![json!({
            "@type": format!("{MESSAGES}BootstrapConfigDump"),
            "bootstrap": { "node": self.node },
        })];
        for lists in &ALL {
            if lists.kind == Kind::Endpoints && !query.has("include_eds") {
                continue;
            }
            let mut message = json!({ "@type": format!("{MESSAGES}{}", lists.message) });
            let entries = self.entries(lists.kind, names.as_ref());
            if !entries.is_empty() {
                message[lists.active.0] = entries.into();
            }
            configs.push(message);
        }
        Ok(Page::json(&json!({ "configs": configs })))
    }

    /// The entries of a list, each with its type.
    fn one_list(&self, resource: &str, names: Option<&Regex>) -> Result<Page, Page> {
        if ALL.iter().any(|lists| lists.empty.contains(&resource)) {
            return Ok(Page::json(&json!({})));
        }
        let lists = ALL.iter().find(|lists| lists.active.0 == resource);
        let lists = lists.ok_or_else(|| {
            let text = format!(
                "{resource} not found in config dump: the built-in proxy has clusters, endpoints, \
                 listeners and secrets\n"
            );
            Page::text(StatusCode::NOT_FOUND, text)
        })?;
        let mut entries = self.entries(lists.kind, names);
        if entries.is_empty() {
            return Ok(Page::json(&json!({})));
        }
        let url = format!("{MESSAGES}{}.{}", lists.message, lists.active.1);
        for entry in &mut entries {
            entry["@type"] = url.as_str().into();
        }
        Ok(Page::json(&json!({ "configs": entries })))
    }

    fn entries(&self, kind: Kind, names: Option<&Regex>) -> Vec<Value> {
        let resources = {
            let config = self.built_in.config.read();
            config
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .dump(kind)
        };
        let serving = self.built_in.shared.serving();
        let matching = resources
            .into_iter()
            .filter(|(name, ..)| names.is_none_or(|names| names.is_match(name)));
        let entries = matching.map(|(name, version, resource)| match kind {
            Kind::Cluster => json!({ "version_info": version, "cluster": resource }),
            Kind::Endpoints => json!({ "version_info": version, "endpoint_config": resource }),
            Kind::Secret => {
                json!({ "name": &*name, "version_info": version, "secret": resource })
            }
            Kind::Listener => {
                let state = match serving.listeners.contains_key(&name) {
                    true => "active_state",
                    false => "warming_state",
                };
                let held = json!({ "version_info": version, "listener": resource });
                json!({ "name": &*name, state: held })
            }
        });
        entries.collect()
    }
}
