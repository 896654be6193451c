//! Where instances run, and callers' preference for near ones.
//!
//! In Consul only the paid edition acts on it; it means the same here.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// Region and zone of a node or an instance, by any names.
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
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        if self.region.is_empty() && !self.zone.is_empty() {
            return Err(Invalid::new("Zone", "zone cannot be set without region"));
        }
        Ok(())
    }

    /// How far another place is from here, the nearest first.
    pub fn distance(&self, other: Option<&Self>) -> Distance {
        let other = other.filter(|other| !self.region.is_empty() && self.region == other.region);
        match other {
            None => Distance::Elsewhere,
            Some(other) if !self.zone.is_empty() && self.zone == other.zone => Distance::SameZone,
            Some(_) => Distance::SameRegion,
        }
    }
}

/// How far one place is from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// In the same zone.
    SameZone,
    /// In another zone of the same region.
    SameRegion,
    /// In another region, or nobody knows where.
    Elsewhere,
}

/// Whether callers prefer near instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PrioritizeByLocality {
    /// How they do.
    #[serde(skip_serializing_if = "LocalityMode::is_default")]
    pub mode: LocalityMode,
}

/// How near instances are preferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalityMode {
    /// Not said: they are not.
    #[default]
    #[serde(rename = "")]
    Default,
    /// They are not.
    None,
    /// Instances in the caller's zone first, then those in its region, then the others.
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
    fn the_same_zone_is_near_in_the_same_region_only() {
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
