//! Classes, gateways and their listeners.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A GatewayClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClass {
    /// Who serves its gateways.
    pub controller_name: String,
    /// For people.
    pub description: Option<String>,
    /// Settings of the infrastructure.
    pub parameters_ref: Option<ParametersReference>,
}

/// A reference to settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParametersReference {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The namespace, only in classes.
    pub namespace: Option<String>,
}

/// A Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gateway {
    /// The class.
    pub gateway_class_name: String,
    /// The listeners.
    pub listeners: Vec<Listener>,
    /// The addresses that it asks for.
    pub addresses: Vec<GatewayAddress>,
    /// Which ListenerSets may add listeners.
    pub allowed_listeners: Option<AllowedListeners>,
    /// About what is made for it.
    pub infrastructure: Option<Infrastructure>,
    /// TLS with clients and with backends.
    pub tls: Option<GatewayTls>,
}

/// An address of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayAddress {
    /// `IPAddress` or `Hostname`.
    pub r#type: Option<String>,
    /// The address; empty for any of its type.
    pub value: String,
}

/// Which ListenerSets may add listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedListeners {
    /// By namespace; none if unset.
    pub namespaces: Option<AllowedNamespaces>,
}

/// Namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedNamespaces {
    /// `All`, `Same`, `Selector` or `None`.
    pub from: Option<String>,
    /// For `Selector`.
    pub selector: Option<LabelSelector>,
}

/// A selection by labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels with their values.
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on labels.
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// A condition on a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorRequirement {
    /// The label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// Its values.
    pub values: Vec<String>,
}

/// About what is made for a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infrastructure {
    /// Labels of everything that is made.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Settings.
    pub parameters_ref: Option<ParametersReference>,
}

/// TLS of a Gateway, apart from its listeners' certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayTls {
    /// With backends.
    pub backend: Option<BackendTlsOfGateway>,
    /// With clients.
    pub frontend: Option<Frontend>,
}

/// TLS of a Gateway with backends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsOfGateway {
    /// What it presents.
    pub client_certificate_ref: Option<ObjectReference>,
}

/// TLS of a Gateway with clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Frontend {
    /// For ports without settings of their own.
    pub default: FrontendTls,
    /// For some ports.
    pub per_port: Vec<PerPort>,
}

/// TLS with clients of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PerPort {
    /// The port.
    pub port: u16,
    /// The settings.
    pub tls: FrontendTls,
}

/// TLS with clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FrontendTls {
    /// How their certificates are verified; not at all if unset.
    pub validation: Option<Validation>,
}

/// How certificates of clients are verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Validation {
    /// The authorities.
    pub ca_certificate_refs: Vec<ObjectReference>,
    /// `AllowValidOnly` or `AllowInsecureFallback`.
    pub mode: Option<String>,
}

/// A reference to an object, perhaps of another namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// The group; unset for that of core objects.
    pub group: Option<String>,
    /// The kind; the usual one of the field if unset.
    pub kind: Option<String>,
    /// The name.
    pub name: String,
    /// The namespace; that of the reference if unset.
    pub namespace: Option<String>,
}

/// A listener of a Gateway or of a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// The hosts that it serves; unset for all.
    pub hostname: Option<String>,
    /// The port.
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`.
    pub protocol: String,
    /// TLS with clients.
    pub tls: Option<ListenerTls>,
    /// Which routes may be attached.
    pub allowed_routes: Option<AllowedRoutes>,
}

/// TLS of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerTls {
    /// `Terminate` or `Passthrough`.
    pub mode: Option<String>,
    /// What is presented to clients.
    pub certificate_refs: Vec<ObjectReference>,
}

/// Which routes may be attached to a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedRoutes {
    /// By kind; all that its protocol can have if empty.
    pub kinds: Vec<KindReference>,
    /// By namespace; the listener's own if unset.
    pub namespaces: Option<AllowedNamespaces>,
}

/// A kind of routes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KindReference {
    /// The group; unset for that of the Gateway API.
    pub group: Option<String>,
    /// The kind.
    pub kind: String,
}

/// A ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerSet {
    /// The Gateway to which it adds listeners.
    pub parent_ref: ObjectReference,
    /// The listeners.
    pub listeners: Vec<Listener>,
}
