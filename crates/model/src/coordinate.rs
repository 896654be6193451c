//! Network coordinates: a node's position in a space in which distances are round-trip times.
//!
//! Consul agents compute them from gossip and write them here; nothing here measures.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::name;
use crate::tenancy::TenancyName;

/// The number of dimensions. Coordinates with another number cannot be compared.
const DIMENSIONS: usize = 8;

/// A position in the space. All values but `error` are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Coordinate {
    /// The Euclidean part of the position.
    pub vec: Vec<f64>,
    /// Confidence in the position; without a unit.
    pub error: f64,
    /// Correction from recent measurements.
    pub adjustment: f64,
    /// Distance from the Euclidean part: latency of every connection of the node.
    pub height: f64,
}

impl Default for Coordinate {
    /// The initial position of a node without measurements.
    fn default() -> Self {
        Coordinate {
            vec: vec![0.0; DIMENSIONS],
            error: 1.5,
            adjustment: 0.0,
            height: 1e-5,
        }
    }
}

impl Coordinate {
    /// The round-trip time between two positions, in seconds.
    pub fn distance(&self, other: &Coordinate) -> f64 {
        let pairs = self.vec.iter().zip(&other.vec);
        let squares: f64 = pairs.map(|(a, b)| (a - b) * (a - b)).sum();
        let raw = squares.sqrt() + self.height + other.height;
        let adjusted = raw + self.adjustment + other.adjustment;
        if adjusted > 0.0 { adjusted } else { raw }
    }

    fn validate(&self) -> Result<(), Invalid> {
        let numbers = [self.error, self.adjustment, self.height];
        if !self.vec.iter().chain(&numbers).all(|n| n.is_finite()) {
            return Err(Invalid::new(
                "Coord",
                "invalid coordinate: it must be numbers",
            ));
        }
        if self.vec.len() != DIMENSIONS {
            let found = self.vec.len();
            return Err(Invalid::new(
                "Coord",
                format!("incompatible coordinate: Vec must have {DIMENSIONS} numbers, not {found}"),
            ));
        }
        Ok(())
    }
}

/// The coordinate of a node, and the body of `PUT /v1/coordinate/update`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeCoordinate {
    /// The node's name.
    pub node: String,
    /// Always empty, since network segments are not supported.
    pub segment: String,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The node's position.
    pub coord: Coordinate,
}

impl NodeCoordinate {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        name::validate_node_name(&self.node)
            .map_err(|error| Invalid::new("Node", error.to_string()))?;
        if !self.segment.is_empty() {
            return Err(Invalid::new(
                "Segment",
                "Network segments are not supported: leave it out",
            ));
        }
        self.coord.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(x: f64) -> Coordinate {
        let mut place = Coordinate::default();
        place.vec[0] = x;
        place.height = 0.0;
        place
    }

    #[test]
    fn distances_include_heights_and_adjustments() {
        assert_eq!(at(1.0).distance(&at(4.0)), 3.0);
        let mut high = at(1.0);
        high.height = 0.5;
        high.adjustment = -0.25;
        assert_eq!(high.distance(&at(4.0)), 3.25);
        // Adjustments never make a distance negative.
        high.adjustment = -10.0;
        assert_eq!(high.distance(&at(4.0)), 3.5);
    }

    #[test]
    fn incomparable_coordinates_are_refused() {
        let of = |coord| NodeCoordinate {
            node: "n".to_owned(),
            coord,
            ..NodeCoordinate::default()
        };
        assert!(of(Coordinate::default()).validate().is_ok());
        let short = of(Coordinate {
            vec: vec![0.0],
            ..Coordinate::default()
        });
        let error = short.validate().unwrap_err().to_string();
        assert!(error.contains("incompatible coordinate"), "{error}");
        assert!(of(at(f64::NAN)).validate().is_err());
    }
}
