//! Settings from environment variables. A variable that is set and empty counts as not set.

use super::table::{Kind, SETTINGS};
use super::types::Environment;
use super::values::{Source, Value, Values};
use super::{SettingsError, invalid};

/// `DP_..._META1` to `META9` carry one pair each.
const PAIR_SLOTS: std::ops::RangeInclusive<u8> = 1..=9;

/// Reads every setting that has a variable.
pub(super) fn parse(environment: &Environment) -> Result<Values, SettingsError> {
    let mut values = Values::default();
    for setting in SETTINGS {
        let Some(name) = setting.env else { continue };
        if setting.kind == Kind::Pairs {
            for slot in PAIR_SLOTS {
                let name = format!("{name}{slot}");
                if let Some(text) = read(environment, &name)? {
                    let pair = Value::parse(setting.kind, text).map_err(|reason| {
                        invalid(format!("error in environment variable {name}: {reason}"))
                    })?;
                    values.put(setting.key, Source::Environment, pair);
                }
            }
        } else if let Some(text) = read(environment, name)? {
            let value = Value::parse(setting.kind, text).map_err(|_| {
                let kind = original_type(setting.kind);
                invalid(format!(
                    "unable to parse environment variable {name}={text} as *{kind}"
                ))
            })?;
            values.put(setting.key, Source::Environment, value);
        }
    }
    Ok(values)
}

fn read<'a>(environment: &'a Environment, name: &str) -> Result<Option<&'a str>, SettingsError> {
    match environment.get_os(name) {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) => match value.to_str() {
            Some(text) => Ok(Some(text)),
            None => Err(invalid(format!(
                "environment variable {name} is not valid UTF-8"
            ))),
        },
    }
}

fn original_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Int => "int",
        Kind::Bool => "bool",
        Kind::Duration => "main.Duration",
        Kind::Text | Kind::Secret | Kind::Pairs => "string",
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::super::table::Item;
    use super::*;

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
