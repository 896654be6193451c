//! Asks Envoy which epoch it is, and reads what it has counted before another one takes over: the IO
//! around [`super::carry`]. It decides nothing about values, and starts no Envoy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use legate_envoy::admin::ServerInfo;
use tokio::time::{Instant, sleep, timeout_at};

use super::Format;
use super::carry::{Carrying, Offsets};
use super::connection::{Connection, Dialer};
use super::fetch::{FetchError, Page, Target};
use super::merge::{Broken, Merge};

/// How long a flush is waited for before Envoy's counters are read. A little more than Envoy's
/// default interval.
const FLUSH: Duration = Duration::from_secs(6);

/// How long reading them may take.
const READ: Duration = Duration::from_secs(10);

/// Between two looks whether there was a flush.
const POLL: Duration = Duration::from_millis(100);

/// Two lines: which epoch it is, and when it last flushed its counters. Envoy sets the second one then.
const WHO: &str =
    "/stats?format=text&type=Gauges&filter=%5Eserver%5C.(hot_restart_epoch%7Cuptime)%24";
const EPOCH: &str = "server.hot_restart_epoch";
const UPTIME: &str = "server.uptime";

/// Says the same where the user lets Envoy have no such gauges, and far more.
const INFO: &str = "/server_info";

/// Largest answer to these questions, in bytes.
const SMALL: usize = 4 * 1024 * 1024;

/// Why Envoy's counters could not be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("{0}: {1}")]
    Broken(Target, Broken),
}

/// What Envoy says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Who {
    epoch: Option<u32>,
    /// Where it is among the flushes.
    flush: Option<u64>,
}

/// Carries Envoy's counters on over hot restarts, on the merged page. Copies share it.
///
/// Whoever supervises Envoy calls [`hand_over`](Carry::hand_over) and [`starting`](Carry::starting);
/// [`Supervised`](super::Supervised) does both.
#[derive(Debug, Clone, Default)]
pub struct Carry {
    offsets: Offsets,
    source: Arc<Mutex<Option<EnvoySource>>>,
}

/// Where Envoy's page is read for the merged one.
#[derive(Debug, Clone)]
struct EnvoySource {
    target: Target,
    dialer: Dialer,
    /// In which format it was last asked for.
    format: Format,
}

impl Carry {
    /// Reads what the Envoy that serves has counted. To be called, and waited for, before another
    /// one is started beside it; again before each further try, which costs nothing but time.
    ///
    /// It waits for up to 6 s for a flush of Envoy's, and reads for up to 10 s. When nobody reads the
    /// merged page there is nothing to do. A failure is told in the log: counters then begin anew.
    pub async fn hand_over(&self) {
        let source = self.source(|source| source.clone());
        let Some(source) = source.filter(|source| !source.dialer.spawner().token().is_cancelled())
        else {
            return;
        };
        let deadline = Instant::now() + FLUSH + READ;
        let target = source.target.clone();
        let read = timeout_at(deadline, self.read(source, deadline)).await;
        let timeout = |_| ReadError::Fetch(FetchError::Timeout { target });
        if let Err(error) = read.map_err(timeout).flatten() {
            tracing::warn!(
                target: "metrics",
                %error,
                "Envoy's counters could not be read before its hot restart; what was not read before \
                 begins anew"
            );
        }
    }

    /// A process with this epoch is about to be started: to be called before each start. What was
    /// counted ends with an Envoy that crashed, or was ended to make room; readers know such resets.
    pub fn starting(&self, epoch: u32) {
        self.offsets.starting(epoch);
    }

    /// Where the merged page has Envoy's metrics from.
    pub(super) fn reads(&self, target: Target, dialer: Dialer) {
        let format = Format::Text;
        self.source(|source| {
            *source = Some(EnvoySource {
                target,
                dialer,
                format,
            });
        });
    }

    /// Asks for Envoy's page and waits for its status, until the deadline.
    pub(super) async fn open(
        &self,
        target: Target,
        wanted: Format,
        dialer: Dialer,
        deadline: Instant,
    ) -> Result<Page, FetchError> {
        self.source(|source| {
            if let Some(source) = source {
                source.format = wanted;
            }
        });
        let opened = async {
            let mut connection = dialer.open(target.clone()).await?;
            // The connection stands: whoever accepted it will answer.
            let carrying = match self.offsets.connected() {
                Some(carrying) => carrying,
                None => self.asked(&mut connection).await?,
            };
            Page::of(connection.page(wanted).await?, Some(carrying))
        };
        match timeout_at(deadline, opened).await {
            Ok(page) => page,
            Err(_) => Err(FetchError::Timeout { target }),
        }
    }

    async fn asked(&self, connection: &mut Connection) -> Result<Carrying, FetchError> {
        let said = who(connection).await?;
        let epoch = epoch(connection, said).await?;
        let carrying = self.offsets.answered_by(epoch);
        carrying.ok_or_else(|| replaced(connection))
    }

    async fn read(&self, source: EnvoySource, deadline: Instant) -> Result<(), ReadError> {
        let mut connection = source.dialer.open(source.target.clone()).await?;
        let first = who(&mut connection).await?;
        let epoch = epoch(&mut connection, first).await?;
        let patience = Instant::now() + FLUSH;
        let mut now = first;
        while first.flush.is_some() && now.flush == first.flush && Instant::now() < patience {
            sleep(POLL).await;
            now = who(&mut connection).await?;
        }
        // From here on pages tell what they have shown, and then this one is asked for.
        let Some(carrying) = self.offsets.handing_over(epoch) else {
            return Err(replaced(&connection).into());
        };
        let mut page = Page::of(connection.page(source.format).await?, None)?;
        let (mut merge, mut nobody) = (Merge::new(page.format()), Vec::new());
        merge.begin(page.format());
        merge.carry(carrying);
        let broken = |broken| ReadError::Broken(source.target.clone(), broken);
        while let Some(piece) = page.next(deadline).await? {
            merge.push(&piece, &mut nobody).map_err(broken)?;
            nobody.clear();
        }
        merge.end(&mut nobody).map_err(broken)
    }

    fn source<T>(&self, look: impl FnOnce(&mut Option<EnvoySource>) -> T) -> T {
        look(&mut self.source.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn replaced(connection: &Connection) -> FetchError {
    let target = connection.target().clone();
    FetchError::Replaced { target }
}

async fn who(connection: &mut Connection) -> Result<Who, FetchError> {
    let body = small(connection, WHO).await?;
    let mut who = Who::default();
    for line in String::from_utf8_lossy(&body).lines() {
        match line.split_once(": ") {
            Some((EPOCH, value)) => who.epoch = value.parse().ok(),
            Some((UPTIME, value)) => who.flush = value.parse().ok(),
            _ => {}
        }
    }
    Ok(who)
}

async fn epoch(connection: &mut Connection, who: Who) -> Result<u32, FetchError> {
    if let Some(epoch) = who.epoch {
        return Ok(epoch);
    }
    let body = small(connection, INFO).await?;
    match serde_json::from_slice::<ServerInfo>(&body) {
        Ok(info) => Ok(info.epoch()),
        Err(error) => Err(failed(connection, &error)),
    }
}

async fn small(connection: &mut Connection, path: &str) -> Result<Bytes, FetchError> {
    let response = connection.get(path).await?;
    let status = response.status();
    if !status.is_success() {
        let target = connection.target().clone();
        return Err(FetchError::Status { target, status });
    }
    match Limited::new(response.into_body(), SMALL).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(failed(connection, error.as_ref())),
    }
}

fn failed(connection: &Connection, error: &dyn std::fmt::Display) -> FetchError {
    FetchError::Connection {
        target: connection.target().clone(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
