//! Warnings about entries of gateways that nobody runs. They are advice: what cannot be found out is left out.

use serde_json::Value;

use crate::output::{text, warn};
use crate::server_api::{Api, encoded};

/// A gateway that an entry configures.
#[derive(Debug, PartialEq, Eq)]
struct Gateway<'a> {
    kind: &'a str,
    name: &'a str,
    /// Namespace and partition; empty: those of the request.
    tenancy: [&'a str; 2],
}

impl<'a> Gateway<'a> {
    /// The gateways that the entry configures.
    fn of(entry: &'a Value) -> Vec<Self> {
        let tenancy = ["Namespace", "Partition"].map(|field| text(entry, field));
        let named = |kind, reference: &'a Value| Self {
            kind,
            name: text(reference, "Name"),
            tenancy,
        };
        match text(entry, "Kind") {
            kind @ ("api-gateway" | "ingress-gateway" | "terminating-gateway") => {
                vec![named(kind, entry)]
            }
            "http-route" | "tcp-route" => {
                let parents = entry["Parents"].as_array().into_iter().flatten();
                let mut all: Vec<_> = parents.map(|one| named("api-gateway", one)).collect();
                all.dedup();
                all
            }
            _ => Vec::new(),
        }
    }

    /// Whether an instance is registered.
    async fn is_run(&self, api: &Api) -> anyhow::Result<bool> {
        let [namespace, partition] = self.tenancy;
        let path = format!("/v1/catalog/service/{}", encoded(self.name));
        let ask = api.get(path).maybe("ns", namespace);
        let instances = ask.maybe("partition", partition).value().await?;
        let mut instances = instances.as_array().into_iter().flatten();
        Ok(instances.any(|one| one["ServiceKind"] == self.kind))
    }
}

/// Warns about gateways that the entry configures and that have no instance.
pub(super) async fn warn_of_missing(api: &Api, entry: &Value) {
    for gateway in Gateway::of(entry) {
        if matches!(gateway.is_run(api).await, Ok(false)) {
            let (kind, name) = (gateway.kind, gateway.name);
            warn(&format!(
                "WARNING: no instance of the {kind} {name:?} is registered, so the entry has no effect yet: start one \
                 with `legate connect envoy -gateway={} -register -service={name}`",
                kind.trim_end_matches("-gateway")
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_and_gateways_configure_gateways() {
        let of = |entry: Value| {
            let all = Gateway::of(&entry).into_iter();
            let all = all.map(|one| format!("{} {} {:?}", one.kind, one.name, one.tenancy));
            all.collect::<Vec<_>>()
        };
        assert_eq!(
            of(json!({"Kind": "ingress-gateway", "Name": "in", "Namespace": "a"})),
            ["ingress-gateway in [\"a\", \"\"]"]
        );
        let parents = json!([{"Name": "a", "SectionName": "x"}, {"Name": "a"}, {"Name": "b"}]);
        assert_eq!(
            of(json!({"Kind": "http-route", "Name": "r", "Parents": parents})),
            ["api-gateway a [\"\", \"\"]", "api-gateway b [\"\", \"\"]"]
        );
        assert!(of(json!({"Kind": "service-defaults", "Name": "a"})).is_empty());
    }
}
