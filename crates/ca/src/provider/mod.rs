//! Providers: they own the root and sign with it. A provider is stateless: its results are returned
//! to the caller, and an equivalent provider can be created from the same configuration at any time.

mod built_in;
mod interface;
mod mesh;
mod vault;

use legate_model::Secret;

use self::built_in::BuiltIn;
pub(crate) use self::built_in::generate;
pub(crate) use self::interface::{Established, Provider};
pub(crate) use self::mesh::Mesh;
use self::vault::Vault;
use crate::CaError;
use crate::settings::{ProviderSettings, Settings};

/// The provider that signs leaves: with its root, or in a secondary datacenter with an intermediate. Sends no requests
/// yet.
pub(crate) fn of_active(
    settings: &Settings,
    certificate: &str,
    key: &Secret,
    mesh: &Mesh,
) -> Result<Box<dyn Provider>, CaError> {
    Ok(match &settings.provider {
        ProviderSettings::BuiltIn(own) => Box::new(BuiltIn::stored(certificate, key, own)?),
        ProviderSettings::Vault(vault) => {
            let common = settings.common.clone();
            let root = Some(certificate.to_owned());
            Box::new(Vault::new((**vault).clone(), common, mesh.clone(), root)?)
        }
    })
}

/// The provider of a new configuration. Creates a root, or looks up that of a Vault.
pub(crate) async fn of_new(
    settings: &Settings,
    first: bool,
    mesh: &Mesh,
) -> Result<Box<dyn Provider>, CaError> {
    Ok(match &settings.provider {
        ProviderSettings::BuiltIn(own) => {
            Box::new(BuiltIn::create(own.clone(), &settings.common, first, mesh).await?)
        }
        ProviderSettings::Vault(vault) => {
            let common = settings.common.clone();
            Box::new(Vault::new((**vault).clone(), common, mesh.clone(), None)?)
        }
    })
}
