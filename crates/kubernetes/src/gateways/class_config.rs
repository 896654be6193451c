//! GatewayClassConfig: settings of what is made for gateways, with the names that consul-k8s has for
//! them. A field that is not served makes the whole object one that is not understood. The definition
//! is `charts/legate/crds/gatewayclassconfigs.yaml`.

use std::collections::BTreeMap;

use legate_gateway_api::types::{CONSUL_GROUP, ParametersReference};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::kinds::Kind;

/// The spec of a GatewayClassConfig.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct ClassConfig {
    /// The type of the Service in front of a gateway. Default `LoadBalancer`.
    pub(super) service_type: Option<ServiceType>,
    /// Labels of nodes that run gateways.
    pub(super) node_selector: BTreeMap<String, String>,
    /// Taints of nodes that may run gateways.
    pub(super) tolerations: Vec<Map<String, Value>>,
    /// The pods.
    pub(super) deployment: Deployment,
    /// Annotations of a Gateway that what is made for it gets, too.
    pub(super) copy_annotations: CopyAnnotations,
}

/// The type of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum ServiceType {
    /// Reachable within the cluster.
    ClusterIP,
    /// Reachable at a port of every node.
    NodePort,
    /// Reachable at an address of its own.
    LoadBalancer,
}

impl ServiceType {
    /// As in a Service.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// The pods of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Deployment {
    /// How many there are. Unset: one, unless an autoscaler says otherwise.
    pub(super) default_instances: Option<u32>,
    /// Requests and limits of each.
    pub(super) resources: Map<String, Value>,
}

/// Which annotations are copied.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct CopyAnnotations {
    /// To the Service.
    pub(super) service: Vec<String>,
}

impl ClassConfig {
    /// Reads a spec.
    pub(super) fn decode(spec: &Value) -> Result<Self, serde_json::Error> {
        match spec {
            Value::Null => Ok(Self::default()),
            spec => Self::deserialize(spec),
        }
    }

    /// How classes and gateways refer to the object with this name.
    pub(super) fn reference(name: &str) -> ParametersReference {
        ParametersReference {
            group: CONSUL_GROUP.to_owned(),
            kind: Kind::GatewayClassConfig.as_str().to_owned(),
            name: name.to_owned(),
            namespace: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// The names of all fields of a schema.
    fn fields(schema: &Value, path: &str, all: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}{name}");
            match field["properties"].is_object() {
                true => fields(field, &format!("{path}."), all),
                false => all.push(path),
            }
        }
    }

    #[test]
    fn the_definition_has_exactly_what_is_served() {
        let spec = json!({
            "serviceType": "ClusterIP",
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "edge", "operator": "Exists"}],
            "deployment": {"defaultInstances": 3, "resources": {"limits": {"memory": "1Gi"}}},
            "copyAnnotations": {"service": ["example.com/subnet"]},
        });
        ClassConfig::decode(&spec).unwrap();
        let file = "../../charts/legate/crds/gatewayclassconfigs.yaml";
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let definition: Value = serde_saphyr::from_str(&text).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut defined = Vec::new();
        fields(&schema["properties"]["spec"], "", &mut defined);
        defined.sort();
        let served = [
            "copyAnnotations.service",
            "deployment.defaultInstances",
            "deployment.resources",
            "nodeSelector",
            "serviceType",
            "tolerations",
        ];
        assert_eq!(defined, served);
    }

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        let spec = json!({"mapPrivilegedContainerPorts": 2000});
        let error = ClassConfig::decode(&spec).unwrap_err().to_string();
        assert!(error.contains("mapPrivilegedContainerPorts"), "{error}");
    }
}
