//! A fake of HashiCorp Vault's PKI engine and logins: the same paths, fields and status codes, with state in
//! memory and injectable faults.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, Uri};
use legate_identity::{Authority, CsrProfile, PrivateKey, RootRequest, split_certificates};
use legate_runtime::Scope;
use rcgen::{BasicConstraints, CertificateSigningRequestParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::grpc::csr;

/// Injected faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Vault is sealed.
    Sealed,
    /// Responses are HTML pages.
    Page,
    /// Responses never end.
    Endless,
    /// Certificates are for a different key.
    OtherKey,
    /// Certificates contain a different identity.
    OtherIdentity,
    /// Intermediates are signed by an unknown authority.
    ForeignIntermediate,
    /// Cross-signing returns the root unchanged.
    NoLink,
}

#[derive(Default)]
struct Mount {
    keys: BTreeMap<String, String>,
    /// Certificates with the id of their key.
    issuers: BTreeMap<String, (String, String)>,
    default: Option<String>,
    made: usize,
}

impl Mount {
    fn authority(&self) -> Option<Authority> {
        let (certificate, key) = self.issuers.get(self.default.as_ref()?)?;
        Some(Authority::from_pem(certificate, self.keys.get(key)?).unwrap())
    }

    fn add(&mut self, certificate: String, key: String) -> String {
        self.made += 1;
        let name = format!("issuer-{}", self.made);
        self.issuers.insert(name.clone(), (certificate, key));
        self.default.get_or_insert(name.clone());
        name
    }

    /// Adds a certificate with its key, and its issuers without keys. Returns the key id of each.
    fn add_bundle(&mut self, bundle: &str, key: &str) -> BTreeMap<String, String> {
        let bundle = split_certificates(bundle).unwrap();
        let mut keys = std::iter::once(key.to_owned()).chain(std::iter::repeat(String::new()));
        let mut added = BTreeMap::new();
        for certificate in bundle {
            let key = keys.next().unwrap_or_default();
            added.insert(self.add(certificate, key.clone()), key);
        }
        added
    }
}

#[derive(Default)]
pub(crate) struct Kept {
    mounts: BTreeMap<String, Mount>,
    pub(crate) tokens: HashSet<String>,
    pub(crate) wrong: Option<Wrong>,
    /// Methods and paths of all requests, in order.
    pub(crate) asked: Vec<String>,
    pub(crate) namespaces: HashSet<String>,
    made: usize,
}

/// A running fake.
pub(crate) struct FakeVault {
    pub(crate) address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
    _scope: Scope,
}

impl FakeVault {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::new(Mutex::new(Kept::default()));
        kept.lock().unwrap().tokens.insert("root".to_owned());
        let api = Router::new().fallback(answer).with_state(kept.clone());
        let scope = Scope::new("vault");
        scope.spawn("vault", async move { axum::serve(listener, api).await });
        Self {
            address,
            kept,
            _scope: scope,
        }
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap()
    }

    pub(crate) fn has_mount(&self, path: &str) -> bool {
        self.kept().mounts.contains_key(path)
    }
}

async fn answer(
    State(kept): State<Arc<Mutex<Kept>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut kept = kept.lock().unwrap();
    let path = uri.path().trim_start_matches("/v1/").to_owned();
    kept.asked.push(format!("{method} {path}"));
    let header = |name: &str| {
        let value = headers.get(name).map(|value| value.to_str().unwrap());
        value.unwrap_or_default().to_owned()
    };
    kept.namespaces.insert(header("x-vault-namespace"));
    match kept.wrong {
        Some(Wrong::Sealed) => return refuse(503, "Vault is sealed"),
        Some(Wrong::Page) => return "<html>not a Vault</html>".into_response(),
        Some(Wrong::Endless) => return "x".repeat(8 * 1024 * 1024).into_response(),
        _ => {}
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if path.starts_with("auth/") && path.ends_with("/login") {
        return log_in(&mut kept, &body);
    }
    if !kept.tokens.contains(&header("x-vault-token")) {
        return refuse(403, "permission denied");
    }
    if let Some(mount) = path.strip_prefix("sys/mounts/") {
        return mounts(&mut kept, &method, mount);
    }
    match path.as_str() {
        "auth/token/lookup-self" => {
            return axum::Json(json!({"data": {"ttl": 3600, "renewable": true}})).into_response();
        }
        "auth/token/renew-self" => {
            return axum::Json(json!({"auth": {"lease_duration": 3600}})).into_response();
        }
        _ => {}
    }
    let Some((mount, rest)) = ["root", "inter"]
        .iter()
        .find_map(|mount| Some((*mount, path.strip_prefix(mount)?.strip_prefix('/')?)))
        .filter(|(mount, _)| kept.mounts.contains_key(*mount))
    else {
        return refuse(404, "no handler for route \"x\". route entry not found.");
    };
    let rest = rest.to_owned();
    pki(&mut kept, mount, &method, &rest, &body)
}

fn log_in(kept: &mut Kept, body: &Value) -> Response {
    if body["role_id"] != "role" || body["secret_id"] != "sesame" {
        return refuse(400, "invalid role or secret ID");
    }
    kept.made += 1;
    let token = format!("login-{}", kept.made);
    kept.tokens.insert(token.clone());
    let auth = json!({"client_token": token, "lease_duration": 3600, "renewable": true});
    axum::Json(json!({ "auth": auth })).into_response()
}

fn mounts(kept: &mut Kept, method: &Method, path: &str) -> Response {
    let known = kept.mounts.contains_key(path.trim_end_matches("/tune"));
    match (method.as_str(), known) {
        ("POST", true) if path.ends_with("/tune") => {}
        ("POST", true) => return refuse(400, "path is already in use at x"),
        ("POST", false) => {
            kept.mounts.insert(path.to_owned(), Mount::default());
        }
        _ => {
            kept.mounts.remove(path);
        }
    }
    StatusCode::NO_CONTENT.into_response()
}

fn pki(kept: &mut Kept, name: &str, method: &Method, path: &str, body: &Value) -> Response {
    let wrong = kept.wrong;
    kept.made += 1;
    // Zero-padded, so that ids sort in order of creation.
    let key = format!("key-{:06}", kept.made);
    let mount = kept.mounts.get_mut(name).unwrap();
    let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    let authority = mount.authority();
    let data = match path {
        "ca/pem" | "ca_chain" => {
            return match authority {
                Some(authority) => authority.cert_pem().to_owned().into_response(),
                None => StatusCode::NO_CONTENT.into_response(),
            };
        }
        "root/generate/internal" => {
            let root = root(&text("common_name"), &text("uri_sans"));
            mount.keys.insert(key.clone(), root.key_pem());
            let certificate = root.cert_pem().to_owned();
            mount.add(certificate.clone(), key);
            json!({ "certificate": certificate })
        }
        "intermediate/generate/internal" => {
            let pair = KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::default();
            let uri = text("uri_sans").as_str().try_into().unwrap();
            params.subject_alt_names = vec![rcgen::SanType::URI(uri)];
            let csr = params.serialize_request(&pair).unwrap().pem().unwrap();
            mount.keys.insert(key.clone(), pair.serialize_pem());
            json!({ "csr": csr, "key_id": key })
        }
        "root/sign-intermediate" => {
            let signer = match wrong {
                Some(Wrong::ForeignIntermediate) => root("foreign", "spiffe://foreign"),
                _ => authority.unwrap(),
            };
            let bundle = intermediate(&signer, &text("csr")) + signer.cert_pem();
            json!({ "certificate": bundle })
        }
        "intermediate/set-signed" => {
            let key = mount.keys.keys().last().unwrap().clone();
            json!({ "mapping": mount.add_bundle(&text("certificate"), &key) })
        }
        "config/issuers" if method == Method::GET => json!({ "default": mount.default }),
        "config/issuers" => {
            mount.default = Some(text("default"));
            json!({})
        }
        "sign/leaf-cert" => {
            let asked = match wrong {
                Some(Wrong::OtherKey) => csr(&legate_identity::csr_names(&text("csr"))
                    .unwrap()
                    .uris
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>()),
                Some(Wrong::OtherIdentity) => csr(&["spiffe://x.consul/ns/default/dc/dc1/svc/y"]),
                _ => text("csr"),
            };
            let authority = authority.unwrap();
            let signed = authority.sign_csr(&asked, profile(3600)).unwrap();
            json!({ "certificate": signed, "issuing_ca": authority.cert_pem() })
        }
        "root/sign-self-issued" => {
            let given = text("certificate");
            let linked = |root: Authority| root.cross_sign(&given, profile(3600)).unwrap();
            let link = match wrong {
                Some(Wrong::NoLink) => given,
                _ => linked(authority.unwrap()),
            };
            json!({ "certificate": link })
        }
        _ => match (path.strip_prefix("issuer/"), method == Method::DELETE) {
            (Some(issuer), false) => json!({ "key_id": mount.issuers[issuer].1 }),
            (Some(issuer), true) => {
                mount.issuers.remove(issuer);
                json!({})
            }
            (None, _) => json!({}),
        },
    };
    axum::Json(json!({ "data": data })).into_response()
}

fn root(name: &str, uri: &str) -> Authority {
    let request = RootRequest {
        common_name: name.to_owned(),
        uri: uri.to_owned(),
        serial: u128::from(rand::random::<u64>() >> 1),
        now: SystemTime::now(),
        ttl: Duration::from_secs(10 * 365 * 24 * 3600),
    };
    Authority::root_of(request, PrivateKey::generate().unwrap()).unwrap()
}

fn profile(seconds: u64) -> CsrProfile {
    CsrProfile {
        serial: u128::from(rand::random::<u64>() >> 1),
        now: SystemTime::now(),
        ttl: Duration::from_secs(seconds),
    }
}

fn intermediate(signer: &Authority, csr: &str) -> String {
    let mut csr = CertificateSigningRequestParams::from_pem(csr).unwrap();
    csr.params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    csr.params.use_authority_key_identifier_extension = true;
    csr.params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    csr.params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    csr.params.not_after = rcgen::date_time_ymd(2100, 1, 1);
    let key = KeyPair::from_pem(&signer.key_pem()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(signer.cert_pem(), key).unwrap();
    csr.signed_by(&issuer).unwrap().pem()
}

fn refuse(status: u16, reason: &str) -> Response {
    let body = axum::Json(json!({ "errors": [reason] }));
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}
