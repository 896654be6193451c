//! Creation of the CA of a new mesh: cluster id, first root and configuration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use legate_identity::{CertificateInfo, IdentityError};
use legate_model::{CaConfiguration, CaRoot, CaRoots, TrustDomain};
use legate_runtime::Clock;
use legate_store::{CaState, Store, WriteTxn};

use crate::provider::{self, Established, Mesh};
use crate::rotation;
use crate::settings::{BUILT_IN, ProviderSettings, Settings};
use crate::{CaConfig, CaError};

/// Creates the CA unless the store has one. Concurrent servers agree on one.
pub(crate) async fn make(store: &Store, clock: &Clock, config: &CaConfig) -> Result<(), CaError> {
    if let Some(stored) = present(store) {
        log_difference(&stored, &config.configuration());
        return Ok(());
    }
    if store.state().read().ca().is_some() {
        // It was created before configurations were stored.
        let configuration = config.lifetimes().configuration();
        let written = store.write(move |txn: &mut WriteTxn| -> Result<(), CaError> {
            if txn.read().ca_configuration().is_none() {
                txn.put_ca_configuration(configuration.clone());
            }
            Ok(())
        });
        written.await?;
        return Ok(());
    }
    if config.primary.is_some() {
        // Created from what the primary answers.
        return Err(CaError::Missing);
    }
    if config.provider != BUILT_IN {
        // A remote provider must create it only once.
        tokio::select! {
            () = store.leadership().held() => {}
            () = wait_until_created(store) => return Ok(()),
        }
    }
    let configuration = config.configuration();
    let first = first(clock, config, &configuration).await?;
    let written = store.write(move |txn: &mut WriteTxn| -> Result<bool, CaError> {
        // Another server may have been first.
        let missing = txn.read().ca().is_none();
        if missing {
            txn.put_ca(first.clone());
            txn.put_ca_configuration(configuration.clone());
        }
        Ok(missing)
    });
    let (_, created) = written.await?;
    if created {
        tracing::info!("created the root of a new mesh");
    }
    Ok(())
}

fn present(store: &Store) -> Option<Arc<CaConfiguration>> {
    let state = store.state();
    let txn = state.read();
    txn.ca().and_then(|_| txn.ca_configuration())
}

/// Waits until another server has created the CA.
async fn wait_until_created(store: &Store) {
    loop {
        let mut watch = {
            let state = store.state();
            let txn = state.read();
            if txn.ca().is_some() {
                return;
            }
            store.reader().watch(&txn.into_reads())
        };
        watch.changed().await;
    }
}

/// Operators who change a setting expect an effect, so the log explains why there is none.
fn log_difference(stored: &CaConfiguration, settings: &CaConfiguration) {
    if stored.provider != settings.provider || stored.config != settings.config {
        tracing::info!(
            "the CA settings only apply to a new mesh: this one retains its stored configuration, \
             which PUT /v1/connect/ca/configuration changes"
        );
    }
}

async fn first(
    clock: &Clock,
    config: &CaConfig,
    configuration: &CaConfiguration,
) -> Result<CaState, CaError> {
    let settings = Settings::parse(configuration)?;
    let cluster_id = config.cluster_id.unwrap_or_else(uuid::Uuid::new_v4);
    let cluster_id = cluster_id.to_string();
    let mesh = Mesh {
        cluster_id: cluster_id.clone(),
        clock: clock.clone(),
    };
    let provider = provider::of_new(&settings, true, &mesh).await?;
    let established = provider.establish().await?;
    let root = root_entry(&established, &settings, &cluster_id, clock.now())?;
    let trust_domain = TrustDomain::of_cluster(&cluster_id);
    let mut ca = CaState {
        roots: Arc::new(CaRoots {
            active_root_id: root.id.clone(),
            trust_domain: trust_domain.as_str().to_owned(),
            roots: vec![root],
        }),
        signing_key: established.key,
        cluster_id,
        lives: BTreeMap::new(),
        secondary: None,
    };
    rotation::signs_leaves(&mut ca, settings.common.leaf_ttl);
    Ok(ca)
}

/// The entry of an active root, as the API returns it.
pub(crate) fn root_entry(
    established: &Established,
    settings: &Settings,
    cluster_id: &str,
    now: SystemTime,
) -> Result<CaRoot, CaError> {
    let info = CertificateInfo::from_pem(&established.root_pem)?;
    if !info.is_ca || now > info.not_after {
        let reason = "it has expired, or its basic constraints do not include CA";
        return Err(IdentityError::NotAnAuthority { reason }.into());
    }
    let signing = match &established.intermediate {
        Some(pem) => CertificateInfo::from_pem(pem)?.subject_key_id,
        None => info.subject_key_id.clone(),
    };
    let provider = match settings.provider {
        ProviderSettings::BuiltIn(_) => "Legate",
        ProviderSettings::Vault(_) => "Vault",
    };
    Ok(CaRoot {
        name: format!("{provider} CA Primary Cert"),
        serial_number: low_bits(&info.serial),
        signing_key_id: signing,
        external_trust_domain: cluster_id.to_owned(),
        not_before: info.not_before,
        not_after: info.not_after,
        root_cert: format!("{}\n", established.root_pem.trim_end()),
        intermediate_certs: established.intermediate.iter().cloned().collect(),
        active: true,
        private_key_type: info.key_type.to_owned(),
        private_key_bits: info.key_bits,
        create_index: 0,
        modify_index: 0,
        id: info.id,
    })
}

/// The lower 64 bits of a serial number, the most that the API can represent.
fn low_bits(serial: &str) -> u64 {
    let bytes = serial.rsplit(':').take(8).collect::<Vec<_>>();
    bytes.iter().rev().fold(0, |number, byte| {
        number << 8 | u64::from_str_radix(byte, 16).unwrap_or_default()
    })
}
