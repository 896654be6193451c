//! Validates resources with a real Envoy, in a bootstrap document, which Envoy validates like
//! dynamic resources.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use legate_testkit::envoy;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::cases;

/// The folder in documents that is replaced by a test's folder.
const FOLDER: &str = "/golden/";
/// The number of concurrent Envoys.
const AT_A_TIME: usize = 2;
/// The timeout of one Envoy, in seconds.
const SECONDS: &str = "60";

/// A real Envoy, with the files that documents refer to.
pub(crate) struct Envoy {
    folder: TempDir,
    certificate: String,
    key: String,
}

impl Envoy {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = vec!["web.example".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let certificate = made.cert.pem();
        let write = |name: &str, contents: &[u8]| fs::write(folder.path().join(name), contents);
        write("ca.pem", certificate.as_bytes()).unwrap();
        write("keys.json", KEYS.as_bytes()).unwrap();
        write("filter.wasm", &wat::parse_str(MODULE).unwrap()).unwrap();
        Self {
            key: made.signing_key.serialize_pem(),
            certificate,
            folder,
        }
    }

    /// Validates the resources of each case. Returns the errors.
    pub(crate) fn refusals(&self, all: &[(String, Value)]) -> Vec<String> {
        let next = AtomicUsize::new(0);
        let refused = Mutex::new(Vec::new());
        let work = || {
            while let Some((name, resources)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(reason) = self.validate(name, resources) {
                    refused.lock().unwrap().push(format!("{name}: {reason}"));
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(work);
            }
        });
        let mut refused = refused.into_inner().unwrap();
        refused.sort();
        refused
    }

    fn validate(&self, name: &str, resources: &Value) -> Result<(), String> {
        let file = self.folder.path().join(format!("{name}.json"));
        let folder = format!("{}/", self.folder.path().display());
        let bootstrap = self.bootstrap(resources)?;
        let text = bootstrap.to_string().replace(FOLDER, &folder);
        fs::write(&file, text).unwrap();
        validate(&file)
    }

    /// All resources in a bootstrap document, the only input that Envoy validates.
    fn bootstrap(&self, resources: &Value) -> Result<Value, String> {
        let of = |kind: &str| resources[kind].as_object().unwrap().clone();
        let (mut clusters, endpoints) = (of("Clusters"), of("Endpoints"));
        for (name, cluster) in &mut clusters {
            if let Some(assignment) = endpoints.get(name) {
                cluster["type"] = json!("STATIC");
                cluster["loadAssignment"] = assignment.clone();
                cluster.as_object_mut().unwrap().remove("edsClusterConfig");
            }
        }
        let mut inlined = Inlined {
            routes: of("Routes"),
            used: BTreeSet::new(),
            servers: BTreeSet::new(),
        };
        let mut listeners = of("Listeners");
        let documents = clusters.values_mut().chain(listeners.values_mut());
        documents.for_each(|document| inlined.walk(document));
        let whole = resources["Failures"] == json!([]);
        let mut routes = inlined.routes.keys();
        let unused = routes.find(|name| !inlined.used.contains(*name));
        if let Some(unused) = unused.filter(|_| whole) {
            return Err(format!("no listener has the routes {unused}"));
        }
        let values = |map: Map<String, Value>| map.into_iter().map(|(_, value)| value);
        let mut clusters: Vec<Value> = values(clusters).collect();
        clusters.push(server(CONTROL_PLANE));
        clusters.extend(inlined.servers.iter().map(|name| server(name)));
        let (pem, key) = (&self.certificate, &self.key);
        // With a real certificate, whatever the source of the secret is.
        let secret = |secret: Value| match secret.get("tlsCertificate") {
            Some(_) => json!({"name": secret["name"], "tlsCertificate": {
                "certificateChain": {"inlineString": pem}, "privateKey": {"inlineString": key},
            }}),
            None => match &secret["validationContext"]["customValidatorConfig"] {
                Value::Null => json!({"name": secret["name"],
                    "validationContext": {"trustedCa": {"inlineString": pem}}}),
                custom => {
                    let mut custom = custom.clone();
                    let domains = custom["typedConfig"]["trustDomains"].as_array_mut();
                    for domain in domains.into_iter().flatten() {
                        domain["trustBundle"] = json!({"inlineString": pem});
                    }
                    json!({"name": secret["name"],
                        "validationContext": {"customValidatorConfig": custom}})
                }
            },
        };
        Ok(json!({
            "node": {"id": "web", "cluster": "web"},
            // As in the bootstrap documents of sidecars.
            "layeredRuntime": {"layers": [{"name": "static", "staticLayer": {
                "re2.max_program_size.error_level": 1_048_576,
            }}]},
            "dynamicResources": {"adsConfig": {
                "apiType": "DELTA_GRPC", "transportApiVersion": "V3",
                "grpcServices": [{"envoyGrpc": {"clusterName": CONTROL_PLANE}}],
            }},
            "staticResources": {
                "clusters": clusters,
                "listeners": values(listeners).collect::<Vec<_>>(),
                "secrets": values(of("Secrets")).map(secret).collect::<Vec<_>>(),
            },
        }))
    }
}

const CONTROL_PLANE: &str = "control_plane";

/// The cluster of a gRPC server.
fn server(name: &str) -> Value {
    json!({
        "name": name, "type": "STATIC",
        "typedExtensionProtocolOptions": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicitHttpConfig": {"http2ProtocolOptions": {}},
        }},
        "loadAssignment": {"clusterName": name, "endpoints": []},
    })
}

const KEYS: &str = r#"{"keys": [{"kty": "oct", "alg": "HS256", "kid": "one", "k": "c2VjcmV0"}]}"#;
/// A no-op filter. The VM requires memory and an ABI version of the module.
const MODULE: &str = r#"(module
  (memory (export "memory") 2)
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "malloc") (param i32) (result i32) (i32.const 4096))
  (func (export "proxy_on_context_create") (param i32 i32))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 1)))"#;

/// Inlines routes and secrets where a listener or a cluster refers to them.
struct Inlined {
    routes: Map<String, Value>,
    used: BTreeSet<String>,
    /// The clusters of SDS servers, which a user writes into the bootstrap document.
    servers: BTreeSet<String>,
}

impl Inlined {
    fn walk(&mut self, document: &mut Value) {
        match document {
            Value::Array(items) => items.iter_mut().for_each(|item| self.walk(item)),
            Value::Object(fields) => {
                if let Some(rds) = fields.remove("rds") {
                    let name = rds["routeConfigName"].as_str().unwrap();
                    self.used.insert(name.to_owned());
                    fields.insert("routeConfig".to_owned(), self.routes[name].clone());
                }
                // A secret without a source is one of the document itself.
                if let Some(source) = fields.remove("sdsConfig") {
                    let server = "/apiConfigSource/grpcServices/0/envoyGrpc/clusterName";
                    if let Some(server) = source.pointer(server).and_then(Value::as_str) {
                        self.servers.insert(server.to_owned());
                        fields.insert("sdsConfig".to_owned(), source);
                    }
                }
                fields.values_mut().for_each(|field| self.walk(field));
            }
            _ => {}
        }
    }
}

fn validate(file: &Path) -> Result<(), String> {
    let output = Command::new("timeout")
        .arg(SECONDS)
        .arg(envoy::binary())
        .args([
            "--mode",
            "validate",
            "--log-level",
            "error",
            "--concurrency",
            "1",
            "-c",
        ])
        .arg(file)
        .output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

#[test]
fn envoy_takes_the_resources_of_every_case() {
    let all = cases().into_iter().map(|case| {
        let resources = case.resources().unwrap();
        (case.name, resources)
    });
    let refused = Envoy::new().refusals(&all.collect::<Vec<_>>());
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
