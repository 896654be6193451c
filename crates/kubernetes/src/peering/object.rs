//! What is known of a PeeringAcceptor or PeeringDialer. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::core::DynamicObject;
use legate_model::GeneratePeeringToken;
use serde::Deserialize;
use serde_json::Value;

use super::VERSION_ANNOTATION;
use super::kinds::{Kind, SecretSpec, Spec};
use super::status::{Record, Status};
use crate::config::FINALIZER;

pub(super) use crate::sync::facts::Key;

/// An object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object {
    pub(super) kind: Kind,
    pub(super) key: Key,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) generation: i64,
    pub(super) created: Option<Time>,
    /// Whether it is being deleted.
    pub(super) leaving: bool,
    /// All finalizers.
    pub(super) finalizers: Vec<String>,
    /// What it asks for, or why that cannot be used.
    pub(super) wanted: Result<Wanted, String>,
    pub(super) status: Status,
    /// The token that was made or used last, from the status.
    pub(super) recorded: Option<Record>,
    /// All conditions, with fields that this version does not have.
    pub(super) conditions: Vec<Value>,
}

/// What an object asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) secret: SecretSpec,
    /// [`VERSION_ANNOTATION`].
    pub(super) version: Option<i64>,
}

impl Object {
    pub(super) fn of(kind: Kind, object: &DynamicObject) -> Object {
        let status = &object.data["status"];
        let metadata = &object.metadata;
        let known: Status = serde_json::from_value(status.clone()).unwrap_or_default();
        Object {
            kind,
            key: Key::new(&object.namespace().unwrap_or_default(), &object.name_any()),
            uid: object.uid().unwrap_or_default(),
            resource_version: object.resource_version().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.clone(),
            leaving: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            wanted: wanted(object),
            conditions: match &status["conditions"] {
                Value::Array(all) => all.clone(),
                _ => Vec::new(),
            },
            recorded: known.record(),
            status: known,
        }
    }

    /// Whether its deletion waits for this operator.
    pub(super) fn is_held(&self) -> bool {
        self.finalizers.iter().any(|name| name == FINALIZER)
    }
}

fn wanted(object: &DynamicObject) -> Result<Wanted, String> {
    let name = GeneratePeeringToken {
        peer_name: object.name_any(),
        ..GeneratePeeringToken::default()
    };
    name.validate()
        .map_err(|error| format!("metadata.name: {error}"))?;
    let spec = Spec::deserialize(&object.data["spec"]).map_err(|error| format!("spec: {error}"))?;
    spec.peer.secret.validate()?;
    let version = match object.annotations().get(VERSION_ANNOTATION) {
        None => None,
        Some(text) => Some(version(text)?),
    };
    Ok(Wanted {
        secret: spec.peer.secret,
        version,
    })
}

fn version(text: &str) -> Result<i64, String> {
    let version = text.parse::<u64>().ok();
    let version = version.and_then(|version| i64::try_from(version).ok());
    version.ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        format!(
            "the annotation {VERSION_ANNOTATION} is {shown:?}: it must be a whole number up to {}",
            i64::MAX
        )
    })
}
