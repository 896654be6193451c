//! `jwt-provider` entries, and required tokens of intentions: refusals with Consul's error texts, and
//! JSON form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use legate_model::json::{self, UnknownFields};
use legate_model::{ConfigEntry, JwtProvider, KeyServer, RemoteJwks};
use serde_json::{Value, json};

fn entry(value: &Value) -> Result<ConfigEntry, String> {
    let text = value.to_string();
    json::from_slice(text.as_bytes(), UnknownFields::Refuse).map_err(|error| error.to_string())
}

fn key_set() -> String {
    STANDARD.encode(json!({"keys": [{"kty": "EC"}]}).to_string())
}

fn provider(keys: Value) -> Value {
    json!({"Kind": "jwt-provider", "Name": "okta", "JSONWebKeySet": keys})
}

fn with(field: &str, value: Value) -> Value {
    let mut entry = provider(json!({"Local": {"JWKS": key_set()}}));
    entry[field] = value;
    entry
}

fn remote(changes: Value) -> Value {
    let mut remote = json!({"URI": "https://keys.example/jwks"});
    if let (Value::Object(remote), Value::Object(changes)) = (&mut remote, changes) {
        remote.extend(changes);
    }
    provider(json!({"Remote": remote}))
}

fn cluster(cluster: Value) -> Value {
    remote(json!({"JWKSCluster": cluster}))
}

fn refused(value: &Value) -> String {
    match entry(value) {
        Err(error) => error,
        Ok(entry) => match entry.validate() {
            Err(error) => error.to_string(),
            Ok(()) => panic!("{value} is accepted"),
        },
    }
}

/// Asserts that each is refused, with an error that contains the text.
fn refuses(cases: &[(Value, &str)]) {
    for (value, text) in cases {
        let error = refused(value);
        assert!(error.contains(text), "{value}: {error}");
    }
}

#[test]
fn refusals_have_consuls_texts() {
    refuses(&[
        (
            json!({"Kind": "jwt-provider", "JSONWebKeySet": {}}),
            "Name: ",
        ),
        (
            json!({"Kind": "jwt-provider", "Name": "okta"}),
            "JSONWebKeySet is required",
        ),
        (
            provider(json!({})),
            "must specify exactly one of Local or Remote JSON Web key set",
        ),
        (
            provider(json!({"Local": {"Filename": "/a"}, "Remote": {"URI": "http://a"}})),
            "must specify exactly one of Local or Remote JSON Web key set",
        ),
        (
            provider(json!({"Local": {}})),
            "must specify exactly one of String or filename for local keyset",
        ),
        (
            provider(json!({"Local": {"JWKS": "%"}})),
            "JWKS must be valid base64 encoded string",
        ),
        (
            provider(json!({"Local": {"JWKS": STANDARD.encode("{}")}})),
            "JSON Web Key Set",
        ),
        (
            provider(json!({"Remote": {}})),
            "Remote JWKS URI is required",
        ),
        (
            remote(json!({"URI": "keys.example"})),
            "Remote JWKS URI is invalid",
        ),
        (
            remote(json!({"RetryPolicy": {"RetryPolicyBackOff": {
                "BaseInterval": "2s", "MaxInterval": "1s",
            }}})),
            "retry policy backoff's MaxInterval should be greater or equal to BaseInterval",
        ),
    ]);
}

/// Envoy would refuse the listener.
#[test]
fn keys_are_cached_within_the_limits_of_envoy() {
    for (duration, text) in [("1us", "at least 1ms"), ("2500000h", "less than 2500000h")] {
        let error = refused(&remote(json!({"CacheDuration": duration})));
        assert!(
            error.contains("CacheDuration") && error.contains(text),
            "{error}"
        );
    }
    let kept = entry(&remote(json!({"CacheDuration": "2499999h"}))).unwrap();
    assert_eq!(kept.validate(), Ok(()));
}

#[test]
fn refusals_of_key_servers_have_consuls_texts() {
    refuses(&[
        (
            cluster(json!({"DiscoveryType": "DNS"})),
            "unsupported jwks cluster discovery type: \"DNS\"",
        ),
        (
            cluster(json!({"DiscoveryType": "EDS"})),
            "EDS is not served",
        ),
        (
            cluster(json!({"TLSCertificates": {}})),
            "must specify exactly one of: CaCertificateProviderInstance or TrustedCA",
        ),
        (
            cluster(
                json!({"TLSCertificates": {"CaCertificateProviderInstance": {
                    "InstanceName": "default",
                }}}),
            ),
            "CaCertificateProviderInstance: the field is not served",
        ),
        (
            cluster(json!({"TLSCertificates": {"TrustedCA": {}}})),
            "must specify exactly one of: Filename, EnvironmentVariable, InlineString or",
        ),
        (
            cluster(json!({"TLSCertificates": {"TrustedCA": {"InlineBytes": "YQ=="}}})),
            "no certificate in PEM",
        ),
    ]);
}

#[test]
fn refusals_of_locations_have_consuls_texts() {
    refuses(&[
        (
            with("Locations", json!([{}])),
            "must set exactly one of: JWT location header, query param or cookie",
        ),
        (
            with("Locations", json!([{"Header": {}}])),
            "JWT location header name must be specified",
        ),
        (
            with("Locations", json!([{"Cookie": {}}])),
            "JWT location cookie name must be specified",
        ),
        (
            with("Locations", json!([{"QueryParam": {}}])),
            "JWT location query param name must be specified",
        ),
        (
            with(
                "Locations",
                json!([
                    {"Header": {"Name": "a", "Forward": true}}, {"Header": {"Name": "b"}},
                ]),
            ),
            "Locations[1].Header.Forward",
        ),
        (
            with("Locations", json!([{"Header": {"Name": "a b"}}])),
            "not the name of a header",
        ),
        (
            with("Forwarding", json!({"PadForwardPayloadHeader": true})),
            "Header name required for forwarding config",
        ),
        (with("ClockSkewSeconds", json!(-1)), "ClockSkewSeconds"),
    ]);
}

#[test]
fn refusals_of_requirements_have_consuls_texts() {
    let top = |jwt: Value| {
        json!({
            "Kind": "service-intentions", "Name": "api", "JWT": jwt,
            "Sources": [{"Name": "web", "Action": "allow"}],
        })
    };
    let within = |jwt: Value| {
        json!({
            "Kind": "service-intentions", "Name": "api", "Sources": [{
                "Name": "web", "Permissions": [
                    {"Action": "allow", "HTTP": {"PathPrefix": "/"}, "JWT": jwt},
                ],
            }],
        })
    };
    let path = "Sources[0].Permissions[0].JWT.";
    let nameless = json!({"Providers": [{"Name": "okta"}, {}]});
    let reason = "Providers[1].Name: JWT provider name is required";
    assert_eq!(refused(&top(nameless.clone())), format!("JWT.{reason}"));
    assert_eq!(refused(&within(nameless)), format!("{path}{reason}"));
    // No token would satisfy it, or every token would: certainly a mistake.
    let none = json!({"Providers": []});
    assert!(refused(&top(none.clone())).starts_with("JWT.Providers: at least one"));
    assert!(refused(&within(none)).starts_with(&format!("{path}Providers: at least one")));
    let pathless = json!({"Providers": [{"Name": "okta", "VerifyClaims": [{"Value": "x"}]}]});
    assert!(refused(&top(pathless)).starts_with("JWT.Providers[0].VerifyClaims[0].Path"));
}

#[test]
fn entries_serialize_as_in_consul() {
    let shown = json!({
        "Kind": "jwt-provider", "Name": "okta",
        "JSONWebKeySet": {"Remote": {
            "URI": "https://keys.example/jwks", "RequestTimeoutMs": 1500,
            "CacheDuration": 60_000_000_000_u64, "FetchAsynchronously": true,
            "RetryPolicy": {"NumRetries": 2, "RetryPolicyBackOff": {
                "BaseInterval": 1_000_000_000, "MaxInterval": 5_000_000_000_u64,
            }},
            "JWKSCluster": {
                "DiscoveryType": "LOGICAL_DNS", "ConnectTimeout": 2_000_000_000,
                "TLSCertificates": {"TrustedCA": {"Filename": "/ca.pem"}},
            },
        }},
        "Issuer": "https://okta.example/", "Audiences": ["mesh"],
        "Locations": [
            {"Header": {"Name": "X-Token", "ValuePrefix": "JWT ", "Forward": true}},
            {"QueryParam": {"Name": "token"}}, {"Cookie": {"Name": "session"}},
        ],
        "Forwarding": {"HeaderName": "x-claims", "PadForwardPayloadHeader": false},
        "ClockSkewSeconds": 30, "CacheConfig": {"Size": 100},
        "CreateIndex": 1, "ModifyIndex": 2,
    });
    let mut written = shown.clone();
    written["JSONWebKeySet"]["Remote"]["CacheDuration"] = json!("1m");
    written["ClockSkewSeconds"] = json!(0);
    let mut read = entry(&written).unwrap();
    assert_eq!(read.validate(), Ok(()));
    read.normalise();
    assert_eq!(serde_json::to_value(&read).unwrap(), shown);
    let again: ConfigEntry = serde_json::from_value(shown).unwrap();
    assert_eq!(again, read);
}

#[test]
fn requirements_are_part_of_every_intention() {
    let jwt = json!({"Providers": [{"Name": "okta", "VerifyClaims": [
        {"Path": ["perms", "role"], "Value": "admin"},
    ]}]});
    let value = json!({
        "kind": "service-intentions", "name": "api", "jwt": {"providers": [{
            "name": "okta", "verify_claims": [{"path": ["perms", "role"], "value": "admin"}],
        }]},
        "sources": [{"name": "web", "action": "allow"}],
    });
    let ConfigEntry::ServiceIntentions(entry) = entry(&value).unwrap() else {
        panic!()
    };
    let intention = entry.intentions().next().unwrap();
    assert_eq!(serde_json::to_value(&intention).unwrap()["JWT"], jwt);
}

#[test]
fn key_servers_are_parsed_from_their_uri() {
    let at = |uri: &str| {
        let remote = RemoteJwks {
            uri: uri.to_owned(),
            ..RemoteJwks::default()
        };
        remote.server()
    };
    let server = |tls, host: &str, port| {
        Some(KeyServer {
            tls,
            host: host.to_owned(),
            port,
        })
    };
    assert_eq!(at("http://keys"), server(false, "keys", 80));
    assert_eq!(
        at("https://keys.example/a?b"),
        server(true, "keys.example", 443)
    );
    assert_eq!(at("HTTPS://[::1]:8443/a"), server(true, "::1", 8443));
    assert_eq!(
        at("http://127.0.0.1:9091?x"),
        server(false, "127.0.0.1", 9091)
    );
    for bad in [
        "",
        "/jwks",
        "keys.example/jwks",
        "ftp://keys/",
        "http://",
        "http://:80/",
        "http://a:0/",
        "http://a:x/",
        "http://a:70000/",
        "http://user@a/",
        "http://[::1/",
        "http://[x]/",
        "http://a b/",
        "http://a/\n",
    ] {
        assert_eq!(at(bad), None, "{bad}");
    }
}

#[test]
fn key_sets_are_decoded_as_in_go() {
    let mut encoded = key_set();
    encoded.insert(4, '\n');
    let value = provider(json!({"Local": {"JWKS": encoded}}));
    let ConfigEntry::JwtProvider(entry) = entry(&value).unwrap() else {
        panic!()
    };
    let JwtProvider {
        json_web_key_set, ..
    } = entry;
    let local = json_web_key_set.unwrap().local.unwrap();
    assert_eq!(
        local.key_set().as_deref(),
        Some("{\"keys\":[{\"kty\":\"EC\"}]}")
    );
}
