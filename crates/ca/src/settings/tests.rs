use serde_json::{Value, json};

use super::*;

fn parse(provider: &str, config: Value) -> Result<Settings, String> {
    let configuration = CaConfiguration {
        provider: provider.to_owned(),
        config: config.as_object().cloned().unwrap_or_default(),
        ..CaConfiguration::default()
    };
    Settings::parse(&configuration).map_err(|error| error.to_string())
}

fn vault_with(more: Value) -> Result<Settings, String> {
    let mut config = json!({
        "Address": "https://vault:8200",
        "RootPKIPath": "connect-root",
        "IntermediatePKIPath": "/connect/inter/",
    });
    let more = more.as_object().cloned().unwrap_or_default();
    config.as_object_mut().unwrap().extend(more);
    parse("vault", config)
}

#[test]
fn defaults_are_consuls() {
    let common = parse("consul", json!({})).unwrap().common;
    assert_eq!(
        (common.leaf_ttl, common.root_ttl),
        (72 * HOUR, 87_600 * HOUR)
    );
    assert_eq!(common.intermediate_ttl, 8_760 * HOUR);
    assert_eq!((common.csr_per_second, common.csr_concurrent), (50.0, 0));
    assert_eq!(common.key, KeyKind::EcP256);
}

#[test]
fn values_are_parsed_leniently() {
    let config = json!({
        "leaf_cert_ttl": "1h30m", "RootCertTTL": 400.0 * 24.0 * 3.6e12, "INTERMEDIATECERTTTL": "8760h",
        "csr_max_per_second": "0", "CSRMaxConcurrent": 3, "private_key_type": "rsa",
        "PrivateKeyBits": "4096", "PrivateKey": null, "RotationPeriod": "2160h",
        "test_state": {"foo": "bar"},
    });
    let settings = parse("consul", config).unwrap();
    let common = settings.common;
    assert_eq!(common.leaf_ttl, Duration::from_secs(5400));
    assert_eq!(common.root_ttl, 400 * 24 * HOUR);
    assert_eq!((common.csr_per_second, common.csr_concurrent), (0.0, 3));
    assert_eq!(common.key, KeyKind::Rsa4096);
}

#[test]
fn invalid_settings_are_refused_with_consuls_texts() {
    for (config, expected) in [
        (
            json!({"LeafCertTTL": "30m"}),
            "leaf cert TTL must be greater or equal than 1h0m0s",
        ),
        (
            json!({"LeafCertTTL": "9000h", "IntermediateCertTTL": "30000h"}),
            "leaf cert TTL must be less than 8760h0m0s",
        ),
        (
            json!({"RootCertTTL": "100h"}),
            "root cert ttl: 100h0m0s, intermediate cert ttl: 8760h0m0s",
        ),
        (
            json!({"LeafCertTTL": "1h", "IntermediateCertTTL": "2h"}),
            "Intermediate Cert TTL must be greater or equal than 3h",
        ),
        (
            json!({"IntermediateCertTTL": "100h"}),
            "Intermediate Cert TTL must be greater or equal than 3 * LeafCertTTL (>=216h0m0s).",
        ),
        (
            json!({"PrivateKeyType": "ed25519"}),
            "private key type must be either 'ec' or 'rsa'",
        ),
        (
            json!({"PrivateKeyType": "rsa", "PrivateKeyBits": 1024}),
            "RSA key length must be 2048 or 4096 bits",
        ),
        (
            json!({"PrivateKeyType": "rsa"}),
            "RSA key length must be 2048 or 4096 bits",
        ),
        (
            json!({"PrivateKeyBits": 200}),
            "EC key length must be one of (224, 256, 384, 521) bits",
        ),
        (json!({"PrivateKeyBits": 224}), "224 is not served"),
        (
            json!({"RootCert": "x"}),
            "must provide a private key when providing a root cert",
        ),
        (json!({"Colour": "red"}), "invalid config key \"Colour\""),
        (json!({"LeafCertTTL": "soon"}), "LeafCertTTL: "),
        (json!({"CSRMaxPerSecond": -1}), "CSRMaxPerSecond must be"),
    ] {
        let error = parse("consul", config).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert!(
        parse("aws-pca", json!({}))
            .unwrap_err()
            .contains("not served")
    );
    let error = parse("other", json!({})).unwrap_err();
    assert!(error.contains("unknown CA provider \"other\""), "{error}");
    // Tests of clients use certificates that are valid for seconds.
    parse(
        "consul",
        json!({"LeafCertTTL": "10s", "SkipValidate": true}),
    )
    .unwrap();
}

#[test]
fn a_vault_requires_either_a_token_or_a_login() {
    let settings = vault_with(json!({"Token": "s.1"})).unwrap();
    let ProviderSettings::Vault(vault) = settings.provider else {
        panic!("a Vault");
    };
    assert_eq!(vault.intermediate_path, "connect/inter");
    assert_eq!(vault.access, VaultAccess::Token("s.1".into()));
    let login = |method: &str, parameters: Value| {
        let login = json!({"Type": method, "Params": parameters});
        let settings = vault_with(json!({"auth_method": [login]}))?;
        let ProviderSettings::Vault(vault) = settings.provider else {
            return Err("not a Vault".to_owned());
        };
        match vault.access {
            VaultAccess::Login(login) => Ok(login),
            VaultAccess::Token(_) => Err("a token".to_owned()),
        }
    };
    let kubernetes = login("kubernetes", json!({"role": "consul"})).unwrap();
    assert_eq!(kubernetes.mount, "kubernetes");
    let expected = VaultProof::Jwt {
        role: "consul".to_owned(),
        jwt: Given::File(SERVICE_ACCOUNT.into()),
    };
    assert_eq!(kubernetes.proof, expected);
    for (method, parameters, expected) in [
        ("approle", json!({}), "missing 'role_id_file_path' value"),
        ("jwt", json!({}), "missing 'role' value"),
        ("jwt", json!({"role": "x"}), "missing 'path' value"),
        ("aws", json!({}), "auth method \"aws\" is not supported"),
        ("token", json!({}), "'token' auth method is not supported"),
        ("jwt", json!({"role": "x", "jwt": "y", "z": 1}), "\"z\""),
    ] {
        let error = login(method, parameters).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    for (more, expected) in [
        (json!({}), "must provide a Vault token"),
        (
            json!({"Token": "s.1", "RootPKIPath": ""}),
            "root PKI backend",
        ),
        (json!({"Token": "s.1", "Address": ""}), "Address"),
        (json!({"Token": "s.1", "CertFile": "x"}), "KeyFile"),
        (
            json!({"Token": "s.1", "AuthMethod": {"Type": "jwt"}}),
            "only one of Vault token or Vault auth method",
        ),
    ] {
        let error = vault_with(more).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
