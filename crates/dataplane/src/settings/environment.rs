//! Reads settings from environment variables. An empty variable counts as unset.

use anyhow::{Context, anyhow};

use super::table::{Kind, SETTINGS, Setting};
use super::types::Environment;
use super::values::{Source, Values};

/// Reads every setting that has a variable.
pub(super) fn read(environment: &Environment, values: &mut Values) -> anyhow::Result<()> {
    for setting in SETTINGS {
        for name in variables(setting) {
            let value = environment.get_os(&name).filter(|value| !value.is_empty());
            let Some(value) = value else { continue };
            let text = value.to_str();
            let text =
                text.with_context(|| format!("environment variable {name} is not valid UTF-8"))?;
            let put = values.put(setting.key, Source::Environment, text);
            put.map_err(|reason| {
                let kind = match setting.kind {
                    Kind::Int => "int",
                    Kind::Duration => "main.Duration",
                    Kind::Bool => "bool",
                    _ => return anyhow!("error in environment variable {name}: {reason}"),
                };
                anyhow!("unable to parse environment variable {name}={text} as *{kind}")
            })?;
        }
    }
    Ok(())
}

/// The variables of a setting. `DP_..._META1` to `META9` hold one pair each.
fn variables(setting: &Setting) -> Vec<String> {
    match (setting.env, setting.kind) {
        (Some(name), Kind::Pairs) => (1..=9).map(|slot| format!("{name}{slot}")).collect(),
        (name, _) => name.into_iter().map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::super::table::Item;
    use super::*;

    fn parse(environment: &Environment) -> Result<Values, anyhow::Error> {
        let mut values = Values::default();
        read(environment, &mut values)?;
        Ok(values)
    }

    fn parsed(variables: &[(&str, &str)]) -> Result<Values, String> {
        let variables = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        parse(&Environment::new(variables)).map_err(|error| error.to_string())
    }

    #[test]
    fn variables_set_values_and_empty_ones_do_not() {
        let values = parsed(&[
            ("DP_ENVOY_DRAIN_TIME", "7"),
            ("DP_ADDRESSES", "x"),
            ("DP_CONSUL_ADDRESSES", ""),
        ])
        .unwrap();
        assert_eq!(values.int(Item::EnvoyDrainTime), 7);
        assert!(!values.given(Item::Addresses));
        assert!(parsed(&[("DP_CONSUL_GRPC_PORT", "")]).is_ok());
    }

    #[test]
    fn pairs_have_nine_slots() {
        let meta = |slot: &str, pair: &str| {
            let name = format!("DP_CREDENTIAL_LOGIN_META{slot}");
            parsed(&[(&name, pair)]).map(|values| values.pairs(Item::LoginMeta).len())
        };
        assert_eq!(meta("1", "a=b=c"), Ok(1));
        assert_eq!(meta("9", "a="), Ok(1));
        for slot in ["", "0", "10"] {
            assert_eq!(meta(slot, "no pair"), Ok(0));
        }
        assert_eq!(
            meta("3", "foo"),
            Err("error in environment variable DP_CREDENTIAL_LOGIN_META3: Missing \"=\" value in argument: foo".to_owned())
        );
    }

    #[test]
    fn unusable_values_are_named() {
        for (name, value, kind) in [
            ("DP_CONSUL_GRPC_PORT", "http", "*int"),
            ("DP_LOG_JSON", "yes", "*bool"),
            ("DP_TELEMETRY_PROM_RETENTION_TIME", "60", "*main.Duration"),
        ] {
            let expected = format!("unable to parse environment variable {name}={value} as {kind}");
            assert_eq!(parsed(&[(name, value)]).unwrap_err(), expected);
        }
        let bytes = OsString::from_vec(vec![0xff]);
        let error = parse(&Environment::new([("DP_PROXY_ID".into(), bytes)])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment variable DP_PROXY_ID is not valid UTF-8"
        );
    }
}
