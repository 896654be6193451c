//! The Lease object at the API server.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

use super::machine::Record;
use super::settings::Settings;

pub(super) struct LeaseApi {
    api: Api<Lease>,
    name: String,
    duration: Duration,
    /// When this process acquired the lease.
    acquired: Option<MicroTime>,
}

impl LeaseApi {
    pub(super) fn new(client: Client, settings: &Settings) -> LeaseApi {
        LeaseApi {
            api: Api::namespaced(client, &settings.namespace),
            name: settings.name.clone(),
            duration: settings.times.duration,
            acquired: None,
        }
    }

    pub(super) async fn read(&self) -> Result<Record, kube::Error> {
        Ok(match self.api.get_opt(&self.name).await? {
            None => Record::default(),
            Some(lease) => record(lease),
        })
    }

    /// Writes the record if the Lease still has its version; returns `None` if it has another.
    pub(super) async fn write(
        &mut self,
        record: Record,
        now: SystemTime,
    ) -> Result<Option<Record>, kube::Error> {
        let (lease, create) = self.lease(&record, now);
        let params = PostParams::default();
        let written = match create {
            true => self.api.create(&params, &lease).await,
            false => self.api.replace(&self.name, &params, &lease).await,
        };
        match written {
            Ok(lease) => Ok(Some(self::record(lease))),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn lease(&mut self, record: &Record, now: SystemTime) -> (Lease, bool) {
        let now = MicroTime(Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH));
        let held = !record.holder.is_empty();
        if !held {
            self.acquired = None;
        }
        let acquired = held.then(|| self.acquired.get_or_insert_with(|| now.clone()).clone());
        // A released lease expires at once.
        let duration = if held { self.duration.as_secs() } else { 1 };
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                resource_version: record.version.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                acquire_time: acquired,
                holder_identity: Some(record.holder.clone()),
                lease_duration_seconds: i32::try_from(duration.max(1)).ok(),
                lease_transitions: Some(record.transitions),
                renew_time: Some(now),
                ..LeaseSpec::default()
            }),
        };
        (lease, record.version.is_none())
    }
}

fn record(lease: Lease) -> Record {
    let spec = lease.spec.unwrap_or_default();
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: lease.metadata.resource_version,
    }
}
