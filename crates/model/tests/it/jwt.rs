//! Settings of the `jwt` auth method, and validation of claims.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use legate_model::Opaque;
use legate_model::acl::{AuthMethod, JwtAlgorithm, JwtConfig, KeySource, MethodConfig, Variables};
use legate_model::json::{UnknownFields, from_value};
use serde_json::{Value, json};

const KEY: &str = "-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----\n";

fn map(value: Value) -> Opaque {
    match value {
        Value::Object(map) => map,
        other => panic!("{other}"),
    }
}

fn method(config: Value) -> AuthMethod {
    let mut all = map(json!({"JWTValidationPubKeys": [KEY]}));
    all.extend(map(config));
    from_value(
        json!({"Name": "m", "Type": "jwt", "Config": all}),
        UnknownFields::Refuse,
    )
    .unwrap_or_else(|error| panic!("{error}"))
}

fn config(value: Value) -> JwtConfig {
    match method(value).settings() {
        Ok(MethodConfig::Jwt(config)) => config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn settings_are_parsed() {
    let config = config(json!({
        "JWTSupportedAlgs": ["ES256", "PS512"],
        "BoundIssuer": "i", "BoundAudiences": ["a"],
        "ClaimMappings": {"sub": "name"}, "ListClaimMappings": {"groups": "groups"},
        "ExpirationLeeway": "10s", "NotBeforeLeeway": -1, "ClockSkewLeeway": "",
        "JWKSURL": "", "OIDCDiscoveryURL": null,
    }));
    assert_eq!(config.keys, [KEY]);
    assert_eq!(
        config.algorithms(),
        [JwtAlgorithm::Es256, JwtAlgorithm::Ps512]
    );
    assert_eq!(
        config.expiration_leeway.to_duration(),
        Duration::from_secs(10)
    );
    assert!(config.not_before_leeway.is_negative());
    assert_eq!(
        config.known_variables(),
        Variables {
            values: [("value.name".to_owned(), String::new())].into(),
            lists: [("list.groups".to_owned(), vec![])].into(),
            missing: ["list.groups".to_owned(), "value.name".to_owned()].into(),
        }
    );
    assert_eq!(JwtConfig::default().algorithms(), [JwtAlgorithm::Rs256]);
}

#[test]
fn refusals_name_the_setting() {
    for (settings, field, part) in [
        (
            json!({"JWTValidationPubKeys": []}),
            "Config.JWTValidationPubKeys",
            "exactly one",
        ),
        (
            json!({"JWTValidationPubKeys": ["x"]}),
            "Config.JWTValidationPubKeys[0]",
            "PEM",
        ),
        (
            json!({"JWTValidationPubKeys": ["-----BEGIN PRIVATE KEY-----"]}),
            "Config.JWTValidationPubKeys[0]",
            "public key",
        ),
        (json!({"Bound": 1}), "Config.Bound", "no such setting"),
        (
            json!({"JWTSupportedAlgs": ["HS256"]}),
            "Config.JWTSupportedAlgs[0]",
            "HS256",
        ),
        (
            json!({"ClockSkewLeeway": "x"}),
            "Config.ClockSkewLeeway",
            "duration",
        ),
        (
            json!({"ClaimMappings": {"a": "x-y"}}),
            "Config.ClaimMappings",
            "letters",
        ),
        (
            json!({"ClaimMappings": {"a": "x", "b": "x"}}),
            "Config.ClaimMappings",
            "two claims",
        ),
    ] {
        let error = method(settings).validate().unwrap_err();
        assert_eq!(error.path(), field, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    for (changed, field) in [
        (
            AuthMethod {
                name: "a b".into(),
                ..method(json!({}))
            },
            "Name",
        ),
        (
            AuthMethod {
                r#type: "oidc".into(),
                ..method(json!({}))
            },
            "Type",
        ),
        (
            AuthMethod {
                max_token_ttl: Duration::from_secs(59),
                ..method(json!({}))
            },
            "MaxTokenTTL",
        ),
    ] {
        assert_eq!(changed.validate().unwrap_err().path(), field);
    }
}

#[test]
fn claims_become_variables() {
    let config = config(json!({
        "ClaimMappings": {
            "sub": "name", "/k8s/ns": "ns", "/a~1b": "slash", "admin": "admin", "n": "n",
            "fraction": "fraction", "gone": "gone",
        },
        "ListClaimMappings": {"groups": "groups", "sub": "single", "/k8s/list": "nested"},
    }));
    let claims = map(json!({
        "sub": "web", "k8s": {"ns": "team", "list": ["x", 1, ""]}, "a/b": "s", "admin": true,
        "n": 7, "fraction": -7.9, "groups": ["ops", "dev"],
    }));
    let variables = config.project(&claims).unwrap();
    let values: Vec<_> = variables
        .values
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        values,
        [
            ("value.admin", "true"),
            ("value.fraction", "-7"),
            ("value.gone", ""),
            ("value.n", "7"),
            ("value.name", "web"),
            ("value.ns", "team"),
            ("value.slash", "s"),
        ]
    );
    assert_eq!(variables.lists["list.groups"], ["ops", "dev"]);
    assert_eq!(variables.lists["list.single"], ["web"]);
    assert_eq!(variables.lists["list.nested"], ["x", "1"]);
    assert_eq!(Vec::from_iter(&variables.missing), ["value.gone"]);
    for claims in [
        json!({"sub": {}}),
        json!({"groups": [{}]}),
        json!({"groups": {}}),
    ] {
        let error = config.project(&map(claims)).unwrap_err();
        assert!(error.to_string().contains("the claim"), "{error}");
    }
}

#[test]
fn exactly_one_source_of_keys_is_required() {
    let with = |settings: Value| {
        let method = AuthMethod {
            config: map(settings),
            ..method(json!({}))
        };
        method.settings()
    };
    let ca = "-----BEGIN CERTIFICATE-----\n";
    let jwks = with(json!({"JWKSURL": "https://idp/keys?a=b", "JWKSCACert": ca}));
    match jwks.unwrap() {
        MethodConfig::Jwt(config) => match config.key_source() {
            KeySource::Jwks(at) => assert_eq!((at.url, at.ca), ("https://idp/keys?a=b", ca)),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    let url = "https://idp";
    for (settings, field) in [
        (json!({}), "JWTValidationPubKeys"),
        (
            json!({"JWKSURL": url, "OIDCDiscoveryURL": url}),
            "JWTValidationPubKeys",
        ),
        (
            json!({"JWKSURL": url, "JWTValidationPubKeys": [KEY]}),
            "JWTValidationPubKeys",
        ),
        (json!({"JWKSURL": "idp/keys"}), "JWKSURL"),
        (json!({"JWKSURL": "https:///keys"}), "JWKSURL"),
        (json!({"JWKSURL": "https://user@idp/"}), "JWKSURL"),
        (json!({"JWKSURL": url, "JWKSCACert": "x"}), "JWKSCACert"),
        (
            json!({"JWKSURL": url, "OIDCDiscoveryCACert": ca}),
            "OIDCDiscoveryCACert",
        ),
        (json!({"OIDCDiscoveryURL": "file:///x"}), "OIDCDiscoveryURL"),
        (
            json!({"JWKSURL": url, "JWTSupportedAlgs": ["ES512"]}),
            "JWTSupportedAlgs",
        ),
        (json!({"JWKSURL": url, "OIDCClientID": "x"}), "OIDCClientID"),
    ] {
        let error = with(settings).unwrap_err();
        assert_eq!(error.path(), format!("Config.{field}"), "{error}");
    }
}

#[test]
fn discovered_tokens_require_issuer_and_expiry() {
    let discovery = |settings: Value, claims: Value| {
        let mut all = map(json!({"OIDCDiscoveryURL": "https://idp"}));
        all.extend(map(settings));
        let config = JwtConfig::from_map(&all).unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let verdict = config.verify_claims(&map(claims), now);
        verdict.map_err(|error| error.to_string())
    };
    // Without BoundAudiences any audience is accepted, unlike with the other sources of keys.
    let good = json!({"iss": "https://idp", "aud": "x", "exp": NOW + 1});
    assert_eq!(discovery(json!({}), good.clone()), Ok(()));
    let bound = discovery(json!({"BoundAudiences": ["y"]}), good);
    assert!(bound.unwrap_err().contains("BoundAudiences"));
    for (claims, part) in [
        (json!({"iss": "https://other", "exp": NOW + 1}), "issuer"),
        (json!({"exp": NOW + 1}), "issuer"),
        (json!({"iss": "https://idp", "iat": NOW}), "never ends"),
    ] {
        let error = discovery(json!({}), claims).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

const NOW: u64 = 1_000_000;

fn verdict(settings: Value, claims: Value) -> Result<(), String> {
    let now: SystemTime = UNIX_EPOCH + Duration::from_secs(NOW);
    config(settings)
        .verify_claims(&map(claims), now)
        .map_err(|error| error.to_string())
}

#[test]
fn issuer_and_audience_are_verified() {
    let bound = json!({"BoundIssuer": "i", "BoundAudiences": ["a", "b"]});
    let good = json!({"iss": "i", "aud": ["x", "b"], "exp": NOW + 1});
    assert_eq!(verdict(bound.clone(), good), Ok(()));
    let text = json!({"iss": "i", "aud": "a", "exp": NOW + 1});
    assert_eq!(verdict(bound.clone(), text), Ok(()));
    for (settings, claims, part) in [
        (
            &bound,
            json!({"iss": "j", "aud": "a", "exp": NOW}),
            "BoundIssuer",
        ),
        (&bound, json!({"aud": "a", "exp": NOW}), "BoundIssuer"),
        (
            &bound,
            json!({"iss": "i", "aud": "c", "exp": NOW}),
            "BoundAudiences",
        ),
        (&bound, json!({"iss": "i", "exp": NOW}), "BoundAudiences"),
        (&bound, json!({"iss": "i", "aud": 1, "exp": NOW}), "neither"),
        (
            &json!({}),
            json!({"aud": "a", "exp": NOW}),
            "BoundAudiences is empty",
        ),
    ] {
        let error = verdict(settings.clone(), claims).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn times_are_verified_with_leeways() {
    let exact =
        json!({"ClockSkewLeeway": -1, "ExpirationLeeway": "100s", "NotBeforeLeeway": "100s"});
    for (settings, claims, part) in [
        (json!({}), json!({}), Some("none of iat")),
        (json!({}), json!({"exp": 0, "nbf": 0}), Some("none of iat")),
        (json!({}), json!({"exp": "soon"}), Some("exp is not a time")),
        (json!({}), json!({"exp": -5}), Some("exp is not a time")),
        (json!({}), json!({"exp": 1e300}), Some("exp is not a time")),
        // The default skew is 60 s.
        (json!({}), json!({"exp": NOW - 60}), None),
        (
            json!({}),
            json!({"exp": NOW - 61}),
            Some("expired 61 s ago"),
        ),
        (json!({}), json!({"exp": NOW + 500, "nbf": NOW + 60}), None),
        (
            json!({}),
            json!({"exp": NOW + 500, "nbf": NOW + 61}),
            Some("valid in 61 s"),
        ),
        (
            json!({}),
            json!({"exp": NOW + 500, "nbf": 1, "iat": NOW + 61}),
            Some("future"),
        ),
        // Without exp, it is derived from the later of iat and nbf, by default plus 150 s.
        (json!({}), json!({"iat": NOW - 210}), None),
        (json!({}), json!({"iat": NOW - 211}), Some("expired")),
        (exact.clone(), json!({"iat": NOW - 100}), None),
        (
            exact.clone(),
            json!({"iat": NOW - 101}),
            Some("expired 1 s ago"),
        ),
        (
            exact.clone(),
            json!({"iat": NOW - 500, "nbf": NOW - 100}),
            None,
        ),
        // Without nbf and iat, the start is derived from exp.
        (exact.clone(), json!({"exp": NOW + 100}), None),
        (
            exact.clone(),
            json!({"exp": NOW + 101}),
            Some("valid in 1 s"),
        ),
        (exact, json!({"exp": NOW as f64 + 0.5, "iat": NOW}), None),
    ] {
        let result = verdict(settings, claims.clone());
        match part {
            None => assert_eq!(result, Ok(()), "{claims}"),
            Some(part) => {
                let error = result.expect_err(&claims.to_string());
                assert!(error.contains(part), "{claims}: {error}");
            }
        }
    }
}
