//! The gRPC service: one driver per stream connects the client's requests, the proxy's snapshots
//! and the clock with a [`Session`]. It spawns nothing: a stream is driven by the connection that
//! reads it, so a client that does not read causes no work and uses no memory. Only large
//! configurations are generated elsewhere, in a pool.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, stream};
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_proxycfg::{Ended, Manager, ProxyId, Snapshot, SnapshotWatch, WatchError};
use legate_resources::{Generator, ResourceSet};
use legate_runtime::metrics::{Error as MetricsError, IntCounterVec, IntGaugeVec, Opts, Registry};
use legate_runtime::{CancellationToken, Pool};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status};

use crate::certificates::CertificateMetrics;
use crate::configuration::Configuration;
use crate::node;
use crate::session::{Asked, MAX_NAME_BYTES, MAX_NAMES, Nack, Received, Session};
use crate::status::{Connected, Proxies};

/// Maximum size of a request in bytes. Suffices for names and versions of tens of thousands of
/// resources.
pub(crate) const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// Time limit for the request that identifies the proxy.
const FIRST_REQUEST: Duration = Duration::from_secs(30);

/// Maximum number of resources of a rejected response in a log line.
const NAMES_IN_LOG: usize = 10;

/// Decides whether a client may open a stream and keep it open.
pub trait StreamAuthorizer: Send + Sync + 'static {
    /// Checks that the token exists. Called before the proxy is known.
    ///
    /// # Errors
    /// The final status of the stream, usually `UNAUTHENTICATED`.
    fn authenticate(&self, token: &str) -> Result<(), Status>;

    /// Checks that the token may receive the configuration of the proxy with this registration.
    /// Called before anything is computed or signed for the proxy. The registration need not exist:
    /// then the token only has to be valid.
    ///
    /// # Errors
    /// As [`StreamAuthorizer::authorize`].
    fn authorize_proxy(&self, token: &str, proxy: &ProxyId) -> Result<(), Status>;

    /// Checks that the token may receive this configuration.
    ///
    /// # Errors
    /// The final status of the stream, usually `UNAUTHENTICATED` or `PERMISSION_DENIED`.
    fn authorize(&self, token: &str, snapshot: &Snapshot) -> Result<(), Status>;

    /// The part of this configuration that the token may receive: without the services of a
    /// terminating gateway whose certificates it may not have. `None` if it may receive all.
    ///
    /// # Errors
    /// As [`StreamAuthorizer::authorize`].
    fn permitted(&self, token: &str, snapshot: &Snapshot) -> Result<Option<Snapshot>, Status>;
}

/// Settings of the service.
#[derive(Clone, Debug)]
pub struct XdsConfig {
    /// Interval at which the token of an open stream is checked again, in addition to checks at
    /// every request and every snapshot. 5 minutes in Consul.
    pub auth_check: Duration,
    /// The catalog node of clients that do not send one: the server's own.
    pub node_name: Arc<str>,
    /// Ends all streams with `UNAVAILABLE`, so that clients connect to another server.
    pub stop: CancellationToken,
    /// The list of connected proxies.
    pub proxies: Proxies,
}

/// Aggregated discovery (ADS), delta variant.
pub struct XdsService {
    shared: Arc<Shared>,
}

struct Shared {
    manager: Manager,
    generator: Arc<Generator>,
    pool: Pool,
    authorizer: Arc<dyn StreamAuthorizer>,
    config: XdsConfig,
    metrics: Metrics,
}

struct Metrics {
    streams: IntGaugeVec,
    nacks: IntCounterVec,
    resource_errors: IntGaugeVec,
}

impl Metrics {
    fn register(registry: &Registry) -> Result<Self, MetricsError> {
        let streams = IntGaugeVec::new(
            Opts::new("consul_xds_server_streams", "Open xDS streams."),
            &["version"],
        )?;
        let nacks = IntCounterVec::new(
            Opts::new(
                "legate_xds_nacks_total",
                "Responses that clients rejected, by resource type.",
            ),
            &["type"],
        )?;
        let resource_errors = IntGaugeVec::new(
            Opts::new(
                "legate_xds_resource_errors",
                "Resources of connected proxies that cannot be generated, by type.",
            ),
            &["type"],
        )?;
        registry.register(Box::new(streams.clone()))?;
        registry.register(Box::new(nacks.clone()))?;
        registry.register(Box::new(resource_errors.clone()))?;
        Ok(Self {
            streams,
            nacks,
            resource_errors,
        })
    }
}

impl XdsService {
    /// Creates the service with metrics in `registry`. Large configurations are generated in
    /// `pool`.
    ///
    /// # Errors
    /// When the registry already contains metrics of these names.
    pub fn new(
        manager: Manager,
        generator: Arc<Generator>,
        pool: Pool,
        authorizer: Arc<dyn StreamAuthorizer>,
        config: XdsConfig,
        registry: &Registry,
    ) -> Result<Self, MetricsError> {
        let metrics = Metrics::register(registry)?;
        CertificateMetrics::register(registry, config.proxies.clone())?;
        Ok(Self {
            shared: Arc::new(Shared {
                manager,
                generator,
                pool,
                authorizer,
                config,
                metrics,
            }),
        })
    }

    /// The stream of responses to `requests`, until either side ends.
    pub(crate) fn serve<S>(
        &self,
        token: String,
        requests: S,
    ) -> Result<impl Stream<Item = Result<DeltaDiscoveryResponse, Status>> + use<S>, Status>
    where
        S: Stream<Item = Result<DeltaDiscoveryRequest, Status>> + Unpin,
    {
        self.shared.authorizer.authenticate(&token)?;
        // Boxed, because `unfold` reserves space for its state several times.
        let driver = Box::new(Driver::new(self.shared.clone(), token, requests));
        Ok(stream::unfold(Some(driver), |driver| async {
            let mut driver = driver?;
            let next = AssertUnwindSafe(driver.next()).catch_unwind().await;
            match next {
                Ok(Some(Ok(response))) => Some((Ok(response), Some(driver))),
                Ok(Some(Err(status))) => Some((Err(status), None)),
                Ok(None) => None,
                // The panic hook has logged the location. Other streams continue.
                Err(_) => {
                    tracing::error!(proxy = %driver.name(), "an xDS stream panicked and was closed");
                    let status =
                        Status::internal("internal error on the xDS stream; see the server's log");
                    Some((Err(status), None))
                }
            }
        }))
    }
}

/// State of a stream.
enum Phase {
    /// Waiting for the request that identifies the proxy.
    Init,
    /// The proxy is known, but its first snapshot is not complete yet.
    Pending(Watched),
    /// The client receives the configuration of the latest snapshot, as far as its token permits.
    Running(Watched, Arc<Snapshot>),
}

struct Watched {
    proxy: ProxyId,
    snapshots: SnapshotWatch,
}

/// Events of a stream.
enum Event {
    Stop,
    Request(Box<DeltaDiscoveryRequest>),
    Snapshot(Option<Arc<Snapshot>>),
    /// The resources of a snapshot; `None` if the server is stopping.
    Resources(Option<(Arc<Snapshot>, ResourceSet)>),
    CheckToken,
    /// The client has closed its side.
    End,
}

struct Driver<S> {
    shared: Arc<Shared>,
    token: String,
    requests: S,
    phase: Phase,
    session: Session,
    outbox: VecDeque<DeltaDiscoveryResponse>,
    token_check: Interval,
    /// Deadline for the request that identifies the proxy.
    named_by: Instant,
    configuration: Configuration,
    /// The latest snapshot, of which the client may receive a part only.
    whole: Option<Arc<Snapshot>>,
    /// `None` before the proxy is known.
    status: Option<Connected>,
}

impl<S> Driver<S> {
    fn new(shared: Arc<Shared>, token: String, requests: S) -> Self {
        shared.metrics.streams.with_label_values(&["v3"]).inc();
        let period = shared.config.auth_check;
        let mut token_check = interval_at(Instant::now() + period, period);
        token_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let errors = shared.metrics.resource_errors.clone();
        let (generator, pool) = (shared.generator.clone(), shared.pool.clone());
        let configuration = Configuration::new(generator, pool, errors);
        Self {
            shared,
            token,
            requests,
            phase: Phase::Init,
            session: Session::new(),
            outbox: VecDeque::new(),
            token_check,
            named_by: Instant::now() + FIRST_REQUEST,
            configuration,
            whole: None,
            status: None,
        }
    }

    fn name(&self) -> String {
        match &self.phase {
            Phase::Init => "not known yet".to_owned(),
            Phase::Pending(watched) | Phase::Running(watched, _) => watched.proxy.to_string(),
        }
    }
}

impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        self.shared.metrics.streams.with_label_values(&["v3"]).dec();
        tracing::debug!(proxy = %self.name(), "xDS stream ended");
    }
}

impl<S> Driver<S>
where
    S: Stream<Item = Result<DeltaDiscoveryRequest, Status>> + Unpin,
{
    /// The next response; `None` once the client is done.
    async fn next(&mut self) -> Option<Result<DeltaDiscoveryResponse, Status>> {
        loop {
            if let Some(response) = self.outbox.pop_front() {
                return Some(Ok(response));
            }
            // Most of the time a stream is idle and needs no space for responses.
            self.outbox = VecDeque::new();
            let handled = match self.event().await {
                Ok(Event::End) => return None,
                Ok(event) => self.handle(event),
                Err(status) => Err(status),
            };
            if let Err(status) = handled {
                tracing::debug!(proxy = %self.name(), %status, "xDS stream ends with an error");
                return Some(Err(status));
            }
        }
    }

    async fn event(&mut self) -> Result<Event, Status> {
        let unnamed = matches!(self.phase, Phase::Init);
        let making = self.configuration.is_making();
        let snapshot = async {
            match &mut self.phase {
                Phase::Init => std::future::pending().await,
                Phase::Pending(watched) | Phase::Running(watched, _) => {
                    watched.snapshots.next().await
                }
            }
        };
        let event = tokio::select! {
            () = self.shared.config.stop.cancelled() => Event::Stop,
            request = self.requests.next() => match request {
                Some(request) => Event::Request(Box::new(request.map_err(too_large)?)),
                None => Event::End,
            },
            // One at a time, so that each is generated from the previous one.
            snapshot = snapshot, if !making => Event::Snapshot(snapshot),
            made = self.configuration.made() => Event::Resources(made),
            _ = self.token_check.tick() => Event::CheckToken,
            () = sleep_until(self.named_by), if unnamed => return Err(no_first_request()),
        };
        Ok(event)
    }

    fn handle(&mut self, event: Event) -> Result<(), Status> {
        match event {
            Event::End => return Ok(()),
            Event::Stop => return Err(stopping()),
            Event::CheckToken => {
                self.check_token()?;
                self.check_parts()?;
            }
            Event::Request(request) => self.on_request(*request)?,
            Event::Snapshot(Some(snapshot)) => self.on_snapshot(snapshot)?,
            Event::Snapshot(None) => return Err(self.ended()),
            Event::Resources(Some((snapshot, set))) => self.on_resources(snapshot, set)?,
            Event::Resources(None) => return Err(stopping()),
        }
        self.outbox.extend(self.session.poll());
        if let Some(status) = &self.status {
            status.progress(&self.session);
            status.outcome(&self.session);
        }
        Ok(())
    }

    fn on_request(&mut self, request: DeltaDiscoveryRequest) -> Result<(), Status> {
        if let Phase::Init = self.phase {
            let watched = self.watch(&request)?;
            let proxies = &self.shared.config.proxies;
            self.status = Some(proxies.connect(watched.proxy.clone()));
            self.phase = Phase::Pending(watched);
        } else {
            self.check_token()?;
        }
        let type_url = request.type_url.clone();
        match self.session.on_request(request) {
            Received::Noted => {}
            Received::Refused(nack) => self.report(&nack),
            Received::TooManyNames(asked) => return Err(too_many_names(asked)),
            Received::UnknownType => {
                tracing::debug!(proxy = %self.name(), type_url, "request for a type the mesh does not use");
            }
        }
        Ok(())
    }

    /// Starts to watch the proxy that the first request identifies.
    fn watch(&self, request: &DeltaDiscoveryRequest) -> Result<Watched, Status> {
        if request.type_url.is_empty() {
            return Err(Status::invalid_argument(
                "the first request of an xDS stream must have a type_url",
            ));
        }
        let proxy = node::identify(&request.node, &self.shared.config.node_name)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.shared
            .authorizer
            .authorize_proxy(&self.token, &proxy)?;
        let watched = self.shared.manager.watch(proxy.clone());
        let snapshots = watched.map_err(|error| {
            tracing::info!(%proxy, %error, "xDS stream refused");
            refused(&error)
        })?;
        tracing::debug!(%proxy, "xDS stream opened");
        Ok(Watched { proxy, snapshots })
    }

    fn on_snapshot(&mut self, snapshot: Arc<Snapshot>) -> Result<(), Status> {
        self.shared.authorizer.authorize(&self.token, &snapshot)?;
        self.whole = Some(Arc::clone(&snapshot));
        let permitted = self.permitted(&snapshot)?;
        self.make(permitted);
        Ok(())
    }

    fn make(&mut self, snapshot: Arc<Snapshot>) {
        if let Phase::Pending(watched) | Phase::Running(watched, _) = &self.phase {
            self.configuration.make(snapshot, watched.snapshots.share());
        }
    }

    /// The part of a snapshot that the token permits.
    fn permitted(&self, snapshot: &Arc<Snapshot>) -> Result<Arc<Snapshot>, Status> {
        let authorizer = &self.shared.authorizer;
        let part = authorizer.permitted(&self.token, snapshot)?;
        Ok(part.map_or_else(|| Arc::clone(snapshot), Arc::new))
    }

    /// Makes the configuration again if the token permits another part of it than before.
    fn check_parts(&mut self) -> Result<(), Status> {
        let (Phase::Running(_, current), Some(whole)) = (&self.phase, &self.whole) else {
            return Ok(());
        };
        if self.configuration.is_making() {
            return Ok(());
        }
        let permitted = self.permitted(whole)?;
        if !permitted.has_same_services(current) {
            self.make(permitted);
        }
        Ok(())
    }

    fn on_resources(&mut self, snapshot: Arc<Snapshot>, set: ResourceSet) -> Result<(), Status> {
        if self.configuration.took_time() {
            // The token may have lost its rights during the generation.
            self.shared.authorizer.authorize(&self.token, &snapshot)?;
            let permitted = self.permitted(&snapshot)?;
            if !permitted.has_same_services(&snapshot) {
                self.make(permitted);
                return Ok(());
            }
        }
        let resources = self.configuration.adopt(&snapshot, set)?;
        if let Some(status) = &self.status {
            status.configured(&snapshot, &resources);
        }
        self.session.on_snapshot(resources);
        self.phase = match std::mem::replace(&mut self.phase, Phase::Init) {
            // Unreachable: without a watch there are no snapshots.
            Phase::Init => Phase::Init,
            Phase::Pending(watched) | Phase::Running(watched, _) => {
                Phase::Running(watched, snapshot)
            }
        };
        Ok(())
    }

    fn check_token(&self) -> Result<(), Status> {
        match &self.phase {
            Phase::Running(_, snapshot) => self.shared.authorizer.authorize(&self.token, snapshot),
            Phase::Pending(watched) => self
                .shared
                .authorizer
                .authorize_proxy(&self.token, &watched.proxy),
            Phase::Init => self.shared.authorizer.authenticate(&self.token),
        }
    }

    fn report(&self, nack: &Nack) {
        if let Some(status) = &self.status {
            status.refused(nack);
        }
        let counter = &self.shared.metrics.nacks;
        counter.with_label_values(&[nack.kind.short()]).inc();
        let named = nack.resources.iter().take(NAMES_IN_LOG);
        let resources: Vec<&str> = named.map(AsRef::as_ref).collect();
        tracing::warn!(
            proxy = %self.name(),
            r#type = %nack.kind,
            resources = ?resources,
            count = nack.resources.len(),
            code = nack.code,
            error = nack.message,
            "the proxy refused a configuration update and keeps what it had"
        );
    }

    /// The final status when the watch delivers no more snapshots.
    fn ended(&self) -> Status {
        let reason = match &self.phase {
            Phase::Init => None,
            Phase::Pending(watched) | Phase::Running(watched, _) => watched.snapshots.reason(),
        };
        tracing::info!(proxy = %self.name(), ?reason, "the proxy is not watched any longer");
        match reason {
            Some(Ended::Stopping) => stopping(),
            Some(Ended::Registration(error)) => refused(error),
            Some(other) => Status::aborted(format!(
                "the xDS stream cannot go on, please try again: {other}"
            )),
            None => Status::aborted("the xDS stream cannot go on, please try again"),
        }
    }
}

fn no_first_request() -> Status {
    let limit = FIRST_REQUEST.as_secs();
    Status::deadline_exceeded(format!(
        "no request on this xDS stream within {limit} seconds: the first one names the proxy"
    ))
}

fn stopping() -> Status {
    Status::unavailable("this server is stopping; connect to another")
}

fn too_many_names(asked: Asked) -> Status {
    Status::resource_exhausted(format!(
        "this xDS stream asks for {} resource names of {} bytes: one stream may ask for \
         {MAX_NAMES} names of {MAX_NAME_BYTES} bytes; ask for what the proxy uses",
        asked.names, asked.bytes
    ))
}

/// Replaces the decoder's status code for a request that exceeds the limit.
fn too_large(status: Status) -> Status {
    match status.code() {
        Code::OutOfRange => Status::resource_exhausted(format!(
            "an xDS request may be {MAX_REQUEST} bytes long: {}",
            status.message()
        )),
        _ => status,
    }
}

/// The status for a client whose proxy cannot be watched.
fn refused(error: &WatchError) -> Status {
    let message = error.to_string();
    match error {
        WatchError::UnknownNode(_) | WatchError::UnknownProxy(_) => Status::not_found(message),
        WatchError::NotAProxy { .. } | WatchError::NoDestination(_) => {
            Status::invalid_argument(message)
        }
        WatchError::Stopping => Status::unavailable(message),
    }
}

#[cfg(test)]
mod tests;
