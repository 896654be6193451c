//! `inline-certificate` and `file-system-certificate`: certificates that API gateways present to
//! clients outside the mesh, in the entry itself or in files on the gateway.
//!
//! The server, which can parse keys, checks that a certificate matches its key.

use super::entry::{Entry, EntryRights, entry};
use crate::invalid::Invalid;
use crate::secret::Secret;
use crate::{meta, name};

entry! {
    /// A certificate with its key.
    pub struct InlineCertificate {
        /// Its name.
        pub name: String,
        /// Certificate chain in PEM, the leaf first.
        pub certificate: String,
        /// Private key in PEM.
        pub private_key: Secret,
    }
}

entry! {
    /// Files with a certificate and its key on a gateway.
    pub struct FileSystemCertificate {
        /// Its name.
        pub name: String,
        /// Path of the certificate.
        pub certificate: String,
        /// Path of the key.
        pub private_key: String,
    }
}

impl Entry for InlineCertificate {
    const RIGHTS: EntryRights = EntryRights::MeshOnly;

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_entry_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)
    }
}

impl Entry for FileSystemCertificate {
    const RIGHTS: EntryRights = EntryRights::MeshOnly;

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_entry_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)
    }
}
