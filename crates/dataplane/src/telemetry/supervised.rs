//! Counts Envoy's restarts by kind, from what the supervisor asks of its host. It changes nothing
//! about supervision.

use std::sync::{Arc, Mutex, PoisonError};

use legate_envoy::epochs::{Entry, Host, Identity, Start, Way, Work};

use super::{Restart, Telemetry};

/// A host whose restarts are counted.
#[derive(Debug)]
pub struct Supervised<H> {
    host: H,
    telemetry: Telemetry,
    /// How the supervisor will replace what runs, from the check until the start.
    way: Arc<Mutex<Option<Way>>>,
    /// Whether the next start is one more.
    started: bool,
}

impl<H> Supervised<H> {
    /// Counts the restarts of `host` in this telemetry.
    pub fn new(host: H, telemetry: Telemetry) -> Supervised<H> {
        Supervised {
            host,
            telemetry,
            way: Arc::default(),
            started: false,
        }
    }
}

impl<H: Host> Host for Supervised<H> {
    type Config = H::Config;
    type Process = H::Process;

    fn start(&mut self, start: &Start<H::Config>) -> Result<H::Process, String> {
        let way = self
            .way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let process = self.host.start(start)?;
        if std::mem::replace(&mut self.started, true) {
            // Whoever was to be replaced may have ended by itself since the check.
            self.telemetry.envoy_restarted(match (way, start.epoch) {
                (Some(Way::Hot), 1..) => Restart::Hot,
                (Some(Way::Plain), 0) => Restart::Plain,
                _ => Restart::Crash,
            });
        }
        Ok(process)
    }

    fn check(
        &mut self,
        config: &H::Config,
        running: Option<Identity>,
    ) -> Work<Result<Way, String>> {
        let check = self.host.check(config, running);
        let decided = Arc::clone(&self.way);
        Box::pin(async move {
            let way = check.await?;
            *decided.lock().unwrap_or_else(PoisonError::into_inner) = Some(way);
            Ok(way)
        })
    }

    fn validate(&self, config: &H::Config) -> Work<Result<(), String>> {
        self.host.validate(config)
    }

    fn adopt(&mut self, entry: &Entry) -> Result<H::Process, String> {
        let adopted = self.host.adopt(entry)?;
        self.started = true;
        Ok(adopted)
    }

    fn ready(&self, epoch: u32) -> Work<()> {
        self.host.ready(epoch)
    }

    fn serving(&self) -> Work<Option<u32>> {
        self.host.serving()
    }

    fn drain(&self) -> Work<Result<(), String>> {
        self.host.drain()
    }

    fn idle(&self) -> Work<()> {
        self.host.idle()
    }

    fn quit(&self) -> Work<Result<(), String>> {
        self.host.quit()
    }

    fn serves(&mut self, epoch: u32) {
        self.host.serves(epoch);
    }

    fn clean_up(&mut self, epoch: u32, idle: bool) {
        self.host.clean_up(epoch, idle);
    }

    fn fingerprint(&self, config: &H::Config) -> String {
        self.host.fingerprint(config)
    }

    fn base_id(&self) -> Option<u32> {
        self.host.base_id()
    }

    fn adopted(&mut self, base_id: Option<u32>) {
        self.host.adopted(base_id);
    }

    fn obstacle(&self) -> Option<String> {
        self.host.obstacle()
    }
}
