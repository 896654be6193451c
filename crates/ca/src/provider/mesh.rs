//! The mesh of a provider's roots, and the names of those roots.

use legate_model::{SpiffeId, TrustDomain};
use legate_runtime::Clock;

/// Data that providers are created from.
#[derive(Debug, Clone)]
pub(crate) struct Mesh {
    pub(crate) cluster_id: String,
    pub(crate) clock: Clock,
}

impl Mesh {
    /// The URI in root certificates.
    pub(crate) fn uri(&self) -> String {
        let trust_domain = TrustDomain::of_cluster(&self.cluster_id);
        SpiffeId::Signing { trust_domain }.to_string()
    }

    /// `pri-<eight base-36 digits>.<who>.ca.<start of the cluster id>.consul`: distinguishes the
    /// roots of a mesh and is short enough for a common name.
    pub(crate) fn common_name(&self, who: &str, random: u64) -> String {
        self.name_of("pri", who, random)
    }

    /// The same for the intermediate of a secondary datacenter, which begins with `sec`.
    pub(crate) fn secondary_name(&self, who: &str, random: u64) -> String {
        self.name_of("sec", who, random)
    }

    fn name_of(&self, kind: &str, who: &str, mut random: u64) -> String {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut unique = String::new();
        for _ in 0..8 {
            // The remainder is below 36.
            let digit = usize::try_from(random % 36).unwrap_or_default();
            unique.push(char::from(DIGITS[digit]));
            random /= 36;
        }
        let cluster: String = self.cluster_id.chars().take(8).collect();
        format!("{kind}-{unique}.{who}.ca.{cluster}.consul")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(cluster_id: &str) -> Mesh {
        Mesh {
            cluster_id: cluster_id.to_owned(),
            clock: Clock::system(),
        }
    }

    #[test]
    fn the_common_name_has_the_documented_shape() {
        let mesh_id = "01234567-89ab-cdef-0123-456789abcdef";
        let name = mesh(mesh_id).common_name("legate", u64::MAX);
        let (unique, rest) = name
            .strip_prefix("pri-")
            .and_then(|name| name.split_once('.'))
            .unwrap();
        assert_eq!(unique.len(), 8);
        assert_eq!(rest, "legate.ca.01234567.consul");
        assert_eq!(
            mesh("0123").common_name("vault", 35),
            "pri-z0000000.vault.ca.0123.consul"
        );
    }
}
