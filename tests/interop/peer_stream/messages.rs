//! The messages of a stream as JSON, with their resources, and with placeholders for what differs in every run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use legate_api::internal::peerstream::ReplicationMessage;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use regex::Regex;
use serde_json::{Value, json};

/// The placeholders of what a replay has to fill in: the secret of the stream, and the id of the peering in the cluster
/// that accepts it.
pub(super) const SECRET: &str = "{secret}";
pub(super) const PEERING: &str = "{peering}";
/// The address that stands for those of servers. Nothing is there.
const SERVER: &str = "192.0.2.1";

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/api/proto");
    let files = [
        "hashicorp/consul/internal/peerstream/peerstream.proto",
        "google/protobuf/any.proto",
    ];
    let files = protox::compile(files, [folder]).expect("the files of the crate compile");
    DescriptorPool::from_file_descriptor_set(files).expect("they are complete")
});

static CHANGING: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let all = [
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "{id}"),
        (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z", "{time}"),
        (
            r"(?s)-----BEGIN [A-Z ]+-----.*-----END [A-Z ]+-----\n?",
            "{pem}",
        ),
        (r"\b127\.\d+\.\d+\.\d+\b", SERVER),
    ];
    let compiled = all.map(|(text, with)| (Regex::new(text).expect("it is one"), with));
    compiled.into()
});

fn decoded(kind: &str, bytes: &[u8]) -> Value {
    let kind = POOL
        .get_message_by_name(kind)
        .expect("a message of the files");
    let message = DynamicMessage::decode(kind, bytes).expect("a message of this kind");
    serde_json::to_value(message).expect("every message has JSON")
}

fn encoded(kind: &str, json: &Value) -> Vec<u8> {
    let kind = POOL
        .get_message_by_name(kind)
        .expect("a message of the files");
    let message = DynamicMessage::deserialize(kind, json).expect("JSON of this kind");
    message.encode_to_vec()
}

const KIND: &str = "hashicorp.consul.internal.peerstream.ReplicationMessage";
const RESOURCE: &str = "/response/resource";

/// A message with its resource.
pub(super) fn to_json(message: &ReplicationMessage) -> Value {
    let mut json = decoded(KIND, &message.encode_to_vec());
    if let Some(resource) = json.pointer_mut(RESOURCE) {
        let bytes = STANDARD.decode(resource.as_str().unwrap_or_default());
        *resource = decoded("google.protobuf.Any", &bytes.expect("bytes in JSON"));
    }
    json
}

/// A recorded message.
pub(super) fn from_json(json: &Value) -> ReplicationMessage {
    let mut json = json.clone();
    if let Some(resource) = json.pointer_mut(RESOURCE) {
        *resource = json!(STANDARD.encode(encoded("google.protobuf.Any", resource)));
    }
    ReplicationMessage::decode(&*encoded(KIND, &json)).expect("it was just encoded")
}

/// Changes each text in JSON.
pub(super) fn change(json: &mut Value, with: &dyn Fn(&str) -> String) {
    match json {
        Value::String(text) => *text = with(text),
        Value::Array(all) => all.iter_mut().for_each(|one| change(one, with)),
        Value::Object(fields) => fields.values_mut().for_each(|one| change(one, with)),
        _ => {}
    }
}

/// A message as it is recorded: a replay sends it, so what is not secret stays.
pub(super) fn recorded(mut message: Value) -> Value {
    if let Some(secret) = message.pointer_mut("/open/streamSecretId") {
        *secret = json!(SECRET);
    }
    for field in ["/open/peerId", "/request/peerId"] {
        if let Some(id) = message.pointer_mut(field) {
            *id = json!(PEERING);
        }
    }
    let (local, with) = &CHANGING[3];
    change(&mut message, &|text| {
        local.replace_all(text, *with).into_owned()
    });
    message
}

/// Without what differs in every run.
pub(super) fn comparable(json: &Value) -> Value {
    let mut json = json.clone();
    change(&mut json, &|text| {
        CHANGING
            .iter()
            .fold(text.to_owned(), |text, (changing, with)| {
                changing.replace_all(&text, *with).into_owned()
            })
    });
    without_indexes(&mut json);
    json
}

fn without_indexes(json: &mut Value) {
    match json {
        Value::Array(all) => all.iter_mut().for_each(without_indexes),
        Value::Object(fields) => {
            for index in [
                "CreateIndex",
                "ModifyIndex",
                "createIndex",
                "modifyIndex",
                "raftIndex",
            ] {
                fields.remove(index);
            }
            fields.values_mut().for_each(without_indexes);
        }
        _ => {}
    }
}

/// What a side has sent in a part of a recording, however its changes were combined: its subscriptions, its answers to
/// each message of the other side, and the last state of each resource.
pub(super) fn summary(messages: &[Value]) -> Value {
    let mut subscriptions = Vec::new();
    let mut answers = Vec::new();
    let mut resources = BTreeMap::new();
    let mut others = Vec::new();
    for message in messages.iter().map(comparable) {
        if let Some(request) = message.get("request") {
            match request["responseNonce"].is_string() {
                true => answers.push(request.to_string()),
                false => subscriptions.push(request.to_string()),
            }
        } else if let Some(response) = message.get("response") {
            let (url, id) = (&response["resourceUrl"], &response["resourceId"]);
            let operation = &response["operation"];
            let state = json!({"operation": operation, "resource": response["resource"]});
            resources.insert(format!("{url} {id}"), state);
        } else if message.get("heartbeat").is_none() {
            others.push(message);
        }
    }
    subscriptions.sort();
    answers.sort();
    json!({
        "subscriptions": subscriptions, "answers": answers, "resources": resources, "others": others,
    })
}

/// A summary without what depends on the order in which the other side has sent: nonces, and how often a type was
/// answered.
pub(super) fn unordered(mut summary: Value) -> Value {
    let answers = summary["answers"].as_array().into_iter().flatten();
    let answers = answers.map(|answer| {
        let mut answer: Value = serde_json::from_str(answer.as_str().unwrap_or_default())
            .expect("a summary has JSON in it");
        if let Value::Object(fields) = &mut answer {
            fields.remove("responseNonce");
        }
        answer.to_string()
    });
    let answers: BTreeSet<String> = answers.collect();
    summary["answers"] = json!(answers);
    summary
}
