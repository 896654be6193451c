//! Localities of instances, and the preference of callers for nearby ones.
//!
//! The preference has an effect only in Consul Enterprise; the semantics here are the same.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// Region and zone of a node or instance; the names are free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Locality {
    /// The region.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// The zone within the region.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub zone: String,
}

impl Locality {
    /// # Errors
    ///
    /// [`Invalid`] if there is a zone without a region.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.region.is_empty() && !self.zone.is_empty() {
            return Err(Invalid::new("Zone", "zone cannot be set without region"));
        }
        Ok(())
    }

    /// The distance to another locality; closer ones order first.
    pub fn distance(&self, other: Option<&Self>) -> Distance {
        let other = other.filter(|other| !self.region.is_empty() && self.region == other.region);
        match other {
            None => Distance::Elsewhere,
            Some(other) if !self.zone.is_empty() && self.zone == other.zone => Distance::SameZone,
            Some(_) => Distance::SameRegion,
        }
    }
}

/// Distance between two localities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// In the same zone.
    SameZone,
    /// In another zone of the same region.
    SameRegion,
    /// In another region, or at least one of the localities is unknown.
    Elsewhere,
}

/// Whether callers prefer nearby instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct PrioritizeByLocality {
    /// The preference mode.
    #[serde(skip_serializing_if = "LocalityMode::is_default")]
    pub mode: LocalityMode,
}

/// Preference for nearby instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LocalityMode {
    /// Unset, which means no preference.
    #[default]
    #[serde(rename = "")]
    Default,
    /// No preference.
    None,
    /// Instances in the caller's zone first, then those in its region, then all others.
    Failover,
}

impl LocalityMode {
    fn is_default(&self) -> bool {
        *self == LocalityMode::Default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(region: &str, zone: &str) -> Locality {
        Locality {
            region: region.to_owned(),
            zone: zone.to_owned(),
        }
    }

    #[test]
    fn zones_are_compared_within_a_region() {
        let here = at("r1", "a");
        assert_eq!(here.distance(Some(&at("r1", "a"))), Distance::SameZone);
        assert_eq!(here.distance(Some(&at("r1", "b"))), Distance::SameRegion);
        assert_eq!(here.distance(Some(&at("r1", ""))), Distance::SameRegion);
        assert_eq!(here.distance(Some(&at("r2", "a"))), Distance::Elsewhere);
        assert_eq!(here.distance(None), Distance::Elsewhere);
        assert_eq!(at("", "").distance(Some(&at("", ""))), Distance::Elsewhere);
        assert_eq!(
            at("r1", "").distance(Some(&at("r1", ""))),
            Distance::SameRegion
        );
    }
}
