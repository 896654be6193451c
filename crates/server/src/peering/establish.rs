//! The tokens of peerings: a cluster generates one, and another one exchanges its secret for that of the stream.

use std::time::Duration;

use http::StatusCode;
use legate_api::internal::peerstream::ExchangeSecretRequest;
use legate_api::internal::peerstream::peer_stream_service_client::PeerStreamServiceClient;
use legate_identity::CertificateInfo;
use legate_model::{
    CaRoots, EstablishPeering, GeneratePeeringToken, Peering, PeeringRemote, PeeringState,
    PeeringToken, Secret, Tenancy, TokenRemote,
};
use legate_peering::AddressRing;
use legate_store::{ReadTxn, WriteTxn};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Code;
use uuid::Uuid;

use super::{Peerings, addresses, dial};
use crate::api_error::ApiError;

/// The maximum number of peerings of this cluster, of all partitions.
const MOST: usize = 1_000;
/// The time for the exchange of a secret, over all addresses. Consul's.
const EXCHANGE: Duration = Duration::from_secs(3);
/// The pause between two attempts, a quarter longer at most. Consul's.
const PAUSE: Duration = Duration::from_millis(150);
/// The time that mesh gateways get to learn the name of the other cluster's servers. Consul's.
const GATEWAYS_LEARN: Duration = Duration::from_secs(1);
/// The largest number of failures that an error names.
const NAMED: usize = 8;

impl Peerings {
    /// Generates a token for a peering, which it creates if there is none. The secret of an earlier token that was not
    /// used is void afterwards; a stream goes on.
    pub(crate) async fn generate_token(
        &self,
        request: GeneratePeeringToken,
        tenancy: &Tenancy,
    ) -> Result<Secret, ApiError> {
        let state = self.store.state();
        let txn = state.read().within(tenancy.clone());
        let roots = self.roots(&txn)?;
        if self.config.grpc_tls.is_none() {
            return Err(ApiError::internal(
                "TLS for gRPC must be enabled when generating peering tokens",
            ));
        }
        let server_addresses = addresses::advertised(&txn, &self.config)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        let server_name = self.server_name(&roots);
        drop(txn);
        let new = Peering {
            id: Uuid::new_v4().to_string(),
            name: request.peer_name,
            meta: request.meta,
            ..Peering::default()
        };
        let secret = Secret::new(Uuid::new_v4().to_string());
        let stored = secret.clone();
        let written = self.write(tenancy, move |txn| {
            let existing = txn.read().peering(&new.name);
            // As in Consul, an existing peering keeps its metadata.
            let mut peering = match existing {
                Some(existing) => {
                    refuse_token(&existing)?;
                    Peering::clone(&existing)
                }
                None => new.clone(),
            };
            peering.establishment_secret = stored.clone();
            put(txn, peering)
        });
        let token = PeeringToken {
            ca: pems(&roots),
            manual_server_addresses: request.server_external_addresses,
            server_addresses,
            server_name,
            peer_id: written.await?,
            establishment_secret: secret,
            remote: TokenRemote {
                partition: match tenancy.is_default_partition() {
                    true => String::new(),
                    false => tenancy.partition.to_string(),
                },
                datacenter: self.config.datacenter.clone(),
                locality: self.config.agent.locality.clone(),
            },
        };
        Ok(token.encode())
    }

    /// Establishes a peering with a token of another cluster.
    pub(crate) async fn establish(
        &self,
        request: EstablishPeering,
        tenancy: &Tenancy,
    ) -> Result<(), ApiError> {
        let token = PeeringToken::decode(&request.peering_token)?;
        for pem in &token.ca {
            CertificateInfo::from_pem(pem).map_err(|error| {
                ApiError::bad_request(format!("peering token invalid CA: {error}"))
            })?;
        }
        let state = self.store.state();
        let txn = state.read().within(tenancy.clone());
        let own = self.server_name(&*self.roots(&txn)?);
        if own == token.server_name {
            return Err(ApiError::internal(format!(
                "cannot create a peering within the same cluster {own:?}. Refer to the \
                 `exported-services` documentation if you want to export between partitions without \
                 peering"
            )));
        }
        drop(txn);
        let (secret, wanted) = (token.establishment_secret.clone(), of_token(request, token));
        let now = self.clock.now();
        // First without the secret of the stream, so that mesh gateways learn where the other cluster is.
        let written = self.write(tenancy, move |txn| {
            let mut peering = wanted.clone();
            if let Some(existing) = txn.read().peering(&peering.name) {
                refuse_establishing(&existing)?;
                peering.id.clone_from(&existing.id);
                peering.state = existing.state;
                if existing.state == PeeringState::Terminated {
                    peering.state = PeeringState::Pending;
                }
                // The stream knows better than a token where the servers are.
                let stream = txn.read().peering_stream(&peering.name);
                let is_same = existing.peer_id == peering.peer_id;
                if is_same && stream.is_some_and(|stream| stream.is_connected_at(now)) {
                    let known = existing.peer_server_addresses.clone();
                    peering.peer_server_addresses = known;
                }
                if is_same {
                    peering.active_secret = existing.active_secret.clone();
                } else {
                    // What is known of the other cluster is of another one, and so is a stream that is open.
                    txn.remove_peering_roots(&peering.name);
                }
            }
            put(txn, peering.clone())?;
            Ok(peering)
        });
        let peering = written.await?;
        let active = self.exchange(&peering, &secret).await?;
        self.write(tenancy, move |txn| {
            let changed = txn.change_peering(&peering.id, |peering| {
                peering.state = PeeringState::Establishing;
                peering.active_secret = active.clone();
            });
            match changed {
                true => Ok(()),
                false => Err(ApiError::internal(
                    "the peering was deleted while it was established",
                )),
            }
        })
        .await
    }

    /// Asks a server of the other cluster for the secret of the stream.
    async fn exchange(&self, peering: &Peering, secret: &Secret) -> Result<Secret, ApiError> {
        let (through_gateways, gateways) = {
            let state = self.store.state();
            let txn = state.read();
            (
                addresses::through_gateways(&txn),
                addresses::own_gateways(&txn),
            )
        };
        let direct = AddressRing::new(&[], peering.addresses(), &[]);
        let mut failures = Vec::new();
        if through_gateways && !gateways.is_empty() {
            sleep(GATEWAYS_LEARN).await;
            let by_gateways = AddressRing::new(&[], &gateways, &[]);
            if let Some(secret) = self
                .exchange_at(peering, secret, by_gateways, &mut failures)
                .await?
            {
                return Ok(secret);
            }
        }
        if let Some(secret) = self
            .exchange_at(peering, secret, direct, &mut failures)
            .await?
        {
            return Ok(secret);
        }
        Err(ApiError::internal(failures.join("; ")))
    }

    /// Tries the addresses of a ring for [`EXCHANGE`]. `None`: none has answered.
    async fn exchange_at(
        &self,
        peering: &Peering,
        secret: &Secret,
        mut ring: AddressRing,
        failures: &mut Vec<String>,
    ) -> Result<Option<Secret>, ApiError> {
        let deadline = Instant::now() + EXCHANGE;
        let tasks = self.spawner.child("exchange of a peering's secret");
        let mut exchanged = None;
        while Instant::now() < deadline {
            let Some(address) = ring.next_address().map(str::to_owned) else {
                break;
            };
            let spawner = tasks.spawner();
            let asked = ask(peering, &address, secret, &spawner);
            let reason = match timeout_at(deadline, asked).await {
                Ok(Ok(secret)) => {
                    exchanged = Some(Ok(secret));
                    break;
                }
                Ok(Err(Refused::Finally(reason))) => {
                    let text = format!("a new peering token must be generated: {reason}");
                    exchanged = Some(Err(ApiError::new(StatusCode::FORBIDDEN, text)));
                    break;
                }
                Ok(Err(Refused::Here(reason))) => reason,
                Err(_) => "no answer in time".to_owned(),
            };
            let failure =
                format!("failed to exchange peering secret through address {address:?}: {reason}");
            if !failures.contains(&failure) && failures.len() < NAMED {
                failures.push(failure);
            }
            let jitter = 1.0 + rand::random::<f64>() / 4.0;
            sleep(PAUSE.mul_f64(jitter)).await;
        }
        // Its connections have nothing more to do.
        let _ = tasks.stop(Duration::from_millis(100)).await;
        exchanged.transpose()
    }

    fn roots(&self, txn: &ReadTxn<'_>) -> Result<std::sync::Arc<CaRoots>, ApiError> {
        if !self.config.connect {
            return Err(ApiError::internal(
                "connect.enabled must be set to true in the server's configuration when generating \
                 peering tokens",
            ));
        }
        txn.ca_roots()
            .ok_or_else(|| ApiError::internal("CA has not finished initializing"))
    }

    /// The server name that other clusters expect in the certificates of this cluster's servers. Consul's.
    fn server_name(&self, roots: &CaRoots) -> String {
        format!(
            "server.{}.peering.{}",
            self.config.datacenter, roots.trust_domain
        )
    }

    async fn write<T: Send + 'static>(
        &self,
        tenancy: &Tenancy,
        mut transaction: impl FnMut(&mut WriteTxn) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let tenancy = tenancy.clone();
        let within = move |txn: &mut WriteTxn| {
            txn.in_tenancy(&tenancy, |txn| {
                txn.read().require_tenancy()?;
                transaction(txn)
            })
        };
        let (_, value) = self.store.write(within).await?;
        Ok(value)
    }
}

/// Why a server gave no secret.
enum Refused {
    /// The secret is not valid, at no server.
    Finally(String),
    /// Another server may answer.
    Here(String),
}

async fn ask(
    peering: &Peering,
    address: &str,
    secret: &Secret,
    spawner: &legate_runtime::Spawner,
) -> Result<Secret, Refused> {
    let channel = dial::connect(peering, address, spawner)
        .await
        .map_err(Refused::Here)?;
    let request = ExchangeSecretRequest {
        peer_id: peering.peer_id.clone(),
        establishment_secret: secret.expose().to_owned(),
    };
    let answer = PeerStreamServiceClient::new(channel)
        .exchange_secret(request)
        .await;
    match answer {
        Ok(answer) => Ok(Secret::new(answer.into_inner().stream_secret)),
        Err(status) if status.code() == Code::PermissionDenied => {
            Err(Refused::Finally(status.message().to_owned()))
        }
        Err(status) => Err(Refused::Here(status.message().to_owned())),
    }
}

/// A new peering from the token of another cluster.
fn of_token(request: EstablishPeering, token: PeeringToken) -> Peering {
    Peering {
        id: Uuid::new_v4().to_string(),
        name: request.peer_name,
        meta: request.meta,
        peer_id: token.peer_id,
        peer_ca_pems: token.ca,
        peer_server_name: token.server_name,
        peer_server_addresses: token.server_addresses,
        manual_server_addresses: token.manual_server_addresses,
        remote: PeeringRemote {
            partition: token.remote.partition,
            datacenter: token.remote.datacenter,
            locality: token.remote.locality,
        },
        ..Peering::default()
    }
}

/// A token cannot be generated for a peering that was established with one, or that was deleted.
fn refuse_token(existing: &Peering) -> Result<(), ApiError> {
    let name = &existing.name;
    if existing.dials() {
        return Err(ApiError::internal(format!(
            "cannot create peering with name: {name:?}; there is already an established peering"
        )));
    }
    refuse_deleted(existing)?;
    if existing.state == PeeringState::Terminated {
        return Err(ApiError::internal(format!(
            "the other cluster has deleted the peering {name:?}: delete it here, too, and generate a token then"
        )));
    }
    Ok(())
}

fn refuse_establishing(existing: &Peering) -> Result<(), ApiError> {
    if !existing.dials() {
        return Err(ApiError::internal(format!(
            "cannot create peering with name: {:?}; there is an existing peering expecting to be \
             dialed",
            existing.name
        )));
    }
    refuse_deleted(existing)
}

fn refuse_deleted(existing: &Peering) -> Result<(), ApiError> {
    match existing.deleted_at {
        None => Ok(()),
        Some(_) => Err(ApiError::internal(format!(
            "cannot write to peering that is marked for deletion: {:?} is being removed, try again in a \
             moment",
            existing.name
        ))),
    }
}

/// Writes a peering and returns its id.
fn put(txn: &mut WriteTxn, peering: Peering) -> Result<String, ApiError> {
    let read = txn.read();
    let is_new = read.peering(&peering.name).is_none();
    if is_new && read.peerings_of_all().len() >= MOST {
        return Err(ApiError::internal(format!(
            "the maximum of {MOST} peerings is reached: delete some first"
        )));
    }
    drop(read);
    if is_new {
        // A stream of an earlier peering of that name may have written it last.
        txn.remove_peering_roots(&peering.name);
    }
    let id = peering.id.clone();
    txn.put_peering(peering);
    Ok(id)
}

/// The root certificates, each with a trailing newline, as in Consul.
pub(super) fn pems(roots: &CaRoots) -> Vec<String> {
    let lines = |pem: &str| format!("{}\n", pem.trim_end());
    let all = roots.roots.iter();
    all.map(|root| lines(&root.root_cert)).collect()
}
