//! Tags: the parts of a statistic's name that become labels, by Envoy's rules.
//!
//! It has the rules of Envoy's own tags for the names that this proxy has, and those of the bootstrap document.

use regex::Regex;
use serde_json::Value;

/// Envoy's own tags, in its order: the first group is left out of the name, the second is the value.
const OWN: [(&str, &str); 5] = [
    (
        "envoy.listener_address",
        r"^listener\.(((?:\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[[a-fA-F_\d]+\])_\d+|[^.]+)\.)",
    ),
    ("envoy.cluster_name", r"^cluster\.(([^.]+)\.)."),
    ("envoy.tcp_prefix", r"^tcp\.(([^.]+)\.)."),
    (
        "envoy.connection_limit_prefix",
        r"^connection_limit\.(([^.]+)\.).",
    ),
    ("envoy.rbac_prefix", r"^(([^.]+)\.)rbac\.."),
];

/// The rules.
#[derive(Debug)]
pub(super) struct Tags {
    /// Tags of every statistic.
    fixed: Vec<(String, String)>,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    tag: String,
    regex: Regex,
}

/// A name without its tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tagged {
    /// What is left of the name.
    pub(super) name: String,
    /// Names and values of the tags. Values may be empty.
    pub(super) tags: Vec<(String, String)>,
}

impl Tags {
    /// The rules with those of a bootstrap document's `stats_config`.
    pub(super) fn new(config: &Value) -> Tags {
        let mut tags = Tags {
            fixed: Vec::new(),
            rules: Vec::new(),
        };
        if config["use_all_default_tags"] != false {
            for (tag, regex) in OWN {
                tags.add(tag, regex);
            }
        }
        for tag in config["stats_tags"].as_array().into_iter().flatten() {
            let Some(name) = tag["tag_name"].as_str() else {
                continue;
            };
            if let Some(value) = tag["fixed_value"].as_str() {
                tags.fixed.push((name.to_owned(), value.to_owned()));
            } else if let Some(regex) = tag["regex"].as_str() {
                tags.add(name, regex);
            }
        }
        tags
    }

    fn add(&mut self, tag: &str, regex: &str) {
        match Regex::new(regex) {
            Ok(regex) => self.rules.push(Rule {
                tag: tag.to_owned(),
                regex,
            }),
            Err(error) => tracing::warn!(tag, %error, "a tag of statistics cannot be used"),
        }
    }

    /// Takes the tags out of a name. Every rule sees the whole name.
    pub(super) fn extract(&self, name: &str) -> Tagged {
        let mut tags = self.fixed.clone();
        let mut removed = Vec::new();
        for rule in &self.rules {
            let Some(groups) = rule.regex.captures(name) else {
                continue;
            };
            let Some(part) = groups.get(1) else {
                continue;
            };
            // An optional group that takes no part is an empty value.
            let value = match groups.len() {
                2 => part.as_str(),
                _ => groups.get(2).map_or("", |value| value.as_str()),
            };
            tags.push((rule.tag.clone(), value.to_owned()));
            removed.push(part.range());
        }
        let kept = name.char_indices();
        let kept = kept.filter(|(at, _)| !removed.iter().any(|range| range.contains(at)));
        Tagged {
            name: kept.map(|(_, character)| character).collect(),
            tags,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn extracted(tags: &Tags, name: &str) -> String {
        let Tagged { name, tags } = tags.extract(name);
        let tags: Vec<String> = tags
            .into_iter()
            .map(|(tag, value)| format!("{tag}={value}"))
            .collect();
        format!("{name} {}", tags.join(" "))
    }

    #[test]
    fn own_tags_are_those_of_envoy() {
        let tags = Tags::new(&Value::Null);
        for (name, expected) in [
            ("cluster.a.b.x", "cluster.b.x envoy.cluster_name=a"),
            (
                "listener.[__1]_80.x",
                "listener.x envoy.listener_address=[__1]_80",
            ),
            (
                "listener.10.0.0.1_80.ssl.x",
                "listener.ssl.x envoy.listener_address=10.0.0.1_80",
            ),
            (
                "listener./a/b.sock.x",
                "listener.sock.x envoy.listener_address=/a/b",
            ),
            ("tcp.a.b.x", "tcp.b.x envoy.tcp_prefix=a"),
            (
                "connection_limit.a.x",
                "connection_limit.x envoy.connection_limit_prefix=a",
            ),
            ("a.rbac.x", "rbac.x envoy.rbac_prefix=a"),
            ("a.b.rbac.x", "a.b.rbac.x "),
            ("rbac.x", "rbac.x "),
        ] {
            assert_eq!(extracted(&tags, name), expected);
        }
    }

    #[test]
    fn tags_of_the_bootstrap_are_added() {
        let tags = Tags::new(&json!({ "use_all_default_tags": false, "stats_tags": [
            { "tag_name": "fixed", "fixed_value": "1" },
            { "tag_name": "whole", "regex": r"^cluster\.(a\.)" },
            { "tag_name": "optional", "regex": r"^cluster\.((z)?a\.b\.)" },
            { "tag_name": "broken", "regex": "(" },
        ] }));
        assert_eq!(
            extracted(&tags, "cluster.a.b.x"),
            "cluster.x fixed=1 whole=a. optional="
        );
        assert_eq!(extracted(&tags, "tcp.x"), "tcp.x fixed=1");
    }
}
