//! The hash of a caller's overrides. It is part of the names of clusters and metrics, so it must equal Consul's, which
//! hashes a Go struct with the fields below.

use legate_model::MeshGatewayMode;

use crate::compile::Overrides;

impl Overrides {
    /// The first eight hexadecimal digits of Consul's hash; `None` where nothing is overridden.
    #[must_use]
    pub fn hash(&self) -> Option<String> {
        if *self == Overrides::default() {
            return None;
        }
        let gateway = structure(
            "MeshGatewayConfig",
            &[("Mode", text(name(self.mesh_gateway)))],
        );
        let protocol = self.protocol.map_or("", |protocol| protocol.as_str());
        // A Go duration: nanoseconds in 64 bits.
        let timeout = i64::try_from(self.connect_timeout.as_nanos()).unwrap_or(i64::MAX);
        let all = structure(
            "",
            &[
                ("OverrideMeshGateway", gateway),
                ("OverrideProtocol", text(protocol)),
                ("OverrideConnectTimeout", fnv(&timeout.to_le_bytes())),
            ],
        );
        let mut digits = format!("{all:x}");
        digits.truncate(8);
        Some(digits)
    }
}

fn name(mode: MeshGatewayMode) -> &'static str {
    match mode {
        MeshGatewayMode::Default => "",
        MeshGatewayMode::None => "none",
        MeshGatewayMode::Local => "local",
        MeshGatewayMode::Remote => "remote",
    }
}

/// The hash of a struct: its name and its fields, independent of their order.
fn structure(name: &str, fields: &[(&str, u64)]) -> u64 {
    let fields = fields.iter().map(|(name, value)| {
        let pair = [text(name).to_le_bytes(), value.to_le_bytes()];
        fnv(pair.as_flattened())
    });
    fields.fold(text(name), |all, field| all ^ field)
}

fn text(text: &str) -> u64 {
    fnv(text.as_bytes())
}

/// FNV-1, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    let offset = 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(offset, |hash: u64, byte| {
        hash.wrapping_mul(0x0000_0100_0000_01b3) ^ u64::from(*byte)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use legate_model::Protocol;

    use super::*;

    #[test]
    fn hashes_equal_those_of_consul() {
        let ms = Duration::from_millis;
        let cases = [
            (
                MeshGatewayMode::Default,
                Some(Protocol::Tcp),
                ms(0),
                "96f2c150",
            ),
            (MeshGatewayMode::Local, None, ms(0), "c225dc1c"),
            (MeshGatewayMode::Default, None, ms(4_000), "80b25de3"),
            (
                MeshGatewayMode::Remote,
                Some(Protocol::Grpc),
                ms(33_000),
                "8559080e",
            ),
            // Consul drops leading zeros before it takes the first eight digits.
            (
                MeshGatewayMode::None,
                Some(Protocol::Http2),
                ms(1),
                "96e20d5e",
            ),
        ];
        for (mesh_gateway, protocol, connect_timeout, hash) in cases {
            let overrides = Overrides {
                mesh_gateway,
                protocol,
                connect_timeout,
            };
            assert_eq!(overrides.hash().as_deref(), Some(hash));
        }
        assert_eq!(Overrides::default().hash(), None);
    }
}
