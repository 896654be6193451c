//! The normalization of requests before access rules are evaluated, from the `mesh` entry.

use envoy_types::pb::envoy::config::core::v3::{HttpProtocolOptions, http_protocol_options};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager,
};
use envoy_types::pb::google::protobuf::BoolValue;
use legate_model::Mesh;

use crate::error::GenerateError;

/// The normalization of requests before access rules are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Normalization {
    normalize_path: bool,
    merge_slashes: bool,
    escaped_slashes: i32,
    underscores: i32,
}

impl Normalization {
    pub(crate) fn read(mesh: Option<&Mesh>) -> Result<Self, GenerateError> {
        use http_connection_manager::PathWithEscapedSlashesAction as Slashes;
        use http_protocol_options::HeadersWithUnderscoresAction as Underscores;
        let wanted = mesh.map(Mesh::request_normalization).unwrap_or_default();
        let unknown = |setting, value: &str| GenerateError::Normalization {
            setting,
            value: value.to_owned(),
        };
        let escaped_slashes = match wanted.path_with_escaped_slashes_action.as_str() {
            "" => Slashes::ImplementationSpecificDefault,
            name => Slashes::from_str_name(name)
                .ok_or_else(|| unknown("PathWithEscapedSlashesAction", name))?,
        };
        let underscores = match wanted.headers_with_underscores_action.as_str() {
            "" => Underscores::Allow,
            name => Underscores::from_str_name(name)
                .ok_or_else(|| unknown("HeadersWithUnderscoresAction", name))?,
        };
        Ok(Self {
            normalize_path: !wanted.insecure_disable_path_normalization,
            merge_slashes: wanted.merge_slashes,
            escaped_slashes: escaped_slashes.into(),
            underscores: underscores.into(),
        })
    }

    pub(crate) fn apply(&self, manager: &mut HttpConnectionManager) {
        manager.normalize_path = Some(BoolValue {
            value: self.normalize_path,
        });
        manager.merge_slashes = self.merge_slashes;
        manager.path_with_escaped_slashes_action = self.escaped_slashes;
        if self.underscores != i32::default() {
            manager.common_http_protocol_options = Some(HttpProtocolOptions {
                headers_with_underscores_action: self.underscores,
                ..HttpProtocolOptions::default()
            });
        }
    }

    /// Sets the options that a user-written listener leaves unset, so that paths cannot be crafted
    /// to bypass the rules of the mesh.
    pub(crate) fn fill(&self, manager: &mut HttpConnectionManager) {
        manager.normalize_path.get_or_insert(BoolValue {
            value: self.normalize_path,
        });
        manager.merge_slashes |= self.merge_slashes;
        if manager.path_with_escaped_slashes_action == i32::default() {
            manager.path_with_escaped_slashes_action = self.escaped_slashes;
        }
        let options = &mut manager.common_http_protocol_options;
        let own = options
            .as_ref()
            .map(|own| own.headers_with_underscores_action);
        if self.underscores != i32::default() && own.unwrap_or_default() == i32::default() {
            let options = options.get_or_insert_default();
            options.headers_with_underscores_action = self.underscores;
        }
    }
}
