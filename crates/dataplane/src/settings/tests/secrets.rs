//! No secret is ever shown, even in errors.

use std::os::unix::ffi::OsStringExt;

use super::super::table::{Kind, SETTINGS};
use super::*;

const HUSH: &str = "hush-4711";

fn secrets() -> impl Iterator<Item = &'static super::super::table::Setting> {
    SETTINGS
        .iter()
        .filter(|setting| setting.kind == Kind::Secret)
}

#[test]
fn tokens_are_declared_as_secrets() {
    let flags: Vec<&str> = secrets().map(|setting| setting.flag).collect();
    assert_eq!(flags, ["static-token", "login-bearer-token"]);
}

#[test]
fn settings_show_no_secret() {
    for (kind, flag) in [
        ("static", "-static-token"),
        ("login", "-login-bearer-token"),
    ] {
        let credentials = [
            "-credential-type",
            kind,
            "-login-auth-method",
            "m",
            flag,
            HUSH,
        ];
        let invocation = invoke(&[&MINIMAL[..], &credentials].concat(), &[]).unwrap();
        let shown = format!("{invocation:?} {invocation:#?}");
        assert!(shown.contains("***") && !shown.contains(HUSH), "{shown}");
    }
}

#[test]
fn a_secret_without_effect_is_not_in_the_warning() {
    let (_, warnings) = run(&[&MINIMAL[..], &["-static-token", HUSH]].concat(), &[]).unwrap();
    assert!(!warnings.is_empty() && !warnings.concat().contains(HUSH));
}

#[test]
fn errors_show_no_secret() {
    for setting in secrets() {
        let key = setting.file.unwrap();
        for leaf in [json!([HUSH]), json!({ HUSH: HUSH }), json!(4711)] {
            let document = key
                .rsplit('.')
                .fold(leaf, |inner, name| json!({ name: inner }));
            let (_folder, path) = config_file(&document);
            let error = run(&["-config-file", &path], &[]).unwrap_err();
            let error = error.replace(&path, "");
            assert!(error.contains(key), "{error}");
            assert!(!error.contains("4711"), "{error}");
        }
        // Invalid JSON with the secret at the position of the error.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, format!("{{\"consul\": {HUSH}")).unwrap();
        let path = path.to_str().unwrap();
        let error = run(&["-config-file", path], &[]).unwrap_err();
        assert!(!error.replace(path, "").contains(HUSH), "{error}");

        let mut odd = HUSH.as_bytes().to_vec();
        odd.push(0xff);
        let odd = OsString::from_vec(odd);
        let flag = format!("-{}", setting.flag);
        let mut attached = OsString::from(format!("{flag}="));
        attached.push(&odd);
        for arguments in [vec![flag.clone().into(), odd.clone()], vec![attached]] {
            let error = load(arguments, Environment::default()).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(&flag) && !shown.contains(HUSH), "{shown}");
        }
        let variable = (setting.env.unwrap().into(), odd);
        let error = load([], Environment::new([variable])).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(HUSH), "{shown}");
    }
}
