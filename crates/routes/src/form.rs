//! The JSON of types that have none, and of types whose own JSON lets unknown fields pass.

/// Whether a value can be left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Values of config entries, in which a field that nobody knows is an error.
pub(crate) mod strict {
    use legate_model::json::{UnknownFields, from_value};
    use serde::de::{DeserializeOwned, Error};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let value = Value::deserialize(from)?;
        from_value(value, UnknownFields::Refuse).map_err(D::Error::custom)
    }
}

/// Durations that may be missing.
pub(crate) mod some_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    struct Given(#[serde(with = "legate_model::duration::text")] Duration);

    #[expect(clippy::ref_option, reason = "serde calls it with the field")]
    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let value = value.map(legate_model::duration::GoDuration::from);
        value.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let given = Option::<Given>::deserialize(from)?;
        Ok(given.map(|Given(duration)| duration))
    }
}

/// Names of services that may be missing.
pub(crate) mod some_service {
    use legate_model::ServiceName;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Named(#[serde(with = "super::service")] ServiceName);

    #[expect(clippy::ref_option, reason = "serde calls it with the field")]
    pub(crate) fn serialize<S: Serializer>(
        value: &Option<ServiceName>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.clone().map(Named).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<ServiceName>, D::Error> {
        let named = Option::<Named>::deserialize(from)?;
        Ok(named.map(|Named(service)| service))
    }
}

/// Names of services and routes.
pub(crate) mod service {
    use legate_model::{ServiceName, Tenancy, TenancyName};
    use serde::ser::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "PascalCase", deny_unknown_fields)]
    struct Named {
        name: String,
        #[serde(default, skip_serializing_if = "TenancyName::is_empty")]
        namespace: TenancyName,
        #[serde(default, skip_serializing_if = "TenancyName::is_empty")]
        partition: TenancyName,
    }

    pub(crate) fn serialize<S: Serializer>(value: &ServiceName, to: S) -> Result<S::Ok, S::Error> {
        if !value.tenancy.peer.is_empty() {
            return Err(S::Error::custom("services of peers have no stored form"));
        }
        let named = Named {
            name: value.name.to_string(),
            namespace: value.tenancy.shown_namespace(),
            partition: value.tenancy.shown_partition(),
        };
        named.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ServiceName, D::Error> {
        let named = Named::deserialize(from)?;
        let tenancy = Tenancy::new(&named.partition, &named.namespace);
        Ok(ServiceName::new(&tenancy, &named.name))
    }
}
