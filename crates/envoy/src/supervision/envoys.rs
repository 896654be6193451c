//! The real host: starts Envoys as members of a hot restart family, or independently where hot restart
//! is not possible. The reason is logged once.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::sleep;

use super::config::EnvoyConfig;
use super::files::Entry;
use super::host::{Host, Work};
use super::hot_restart::{self, HotRestart};
use super::machine::RestartMode;
use super::{headroom, version};
use crate::admin::{AdminClient, AdminError};
use crate::process::{DetachedProcess, HotRestartRole, Identity, Launch, Process, ValidationError};

/// Polling interval for the readiness of a starting Envoy.
const READY_POLL: Duration = Duration::from_millis(50);
/// Polling interval for the connections of a draining Envoy. A job's pod is complete only when its
/// sidecar has ended.
const IDLE_POLL: Duration = Duration::from_millis(200);

/// Starts and ends Envoys.
#[derive(Debug)]
pub struct EnvoyHost {
    admin: AdminClient,
    hot: Option<HotRestart>,
    /// The log file of Envoys that outlive this program; `None` if they do not.
    log: Option<PathBuf>,
    base_id: Option<u32>,
    /// Whether the running Envoys were started with hot restart.
    hot_capable: bool,
    /// Why hot restart is not possible; the last logged reason.
    obstacle: watch::Sender<Option<String>>,
    /// The last logged warning about the version of Envoy.
    warning: watch::Sender<Option<String>>,
    /// Whether to capture the standard error of the next Envoy: none has served since the last start.
    capture_errors: bool,
    /// [`headroom::too_few_threads`], replaced in tests.
    too_few_threads: fn(concurrency: u32) -> Option<String>,
}

impl EnvoyHost {
    /// A host for Envoys whose admin interface is `admin`. Without `hot` every restart is cold. With
    /// `log`, Envoys append their output to that file and outlive this program, so that its successor
    /// can adopt them. Without it, the kernel kills them when the thread that drives this host ends.
    pub fn new(admin: AdminClient, hot: Option<HotRestart>, log: Option<PathBuf>) -> Self {
        Self {
            admin,
            base_id: None,
            hot,
            log,
            hot_capable: false,
            obstacle: watch::Sender::default(),
            warning: watch::Sender::default(),
            capture_errors: false,
            too_few_threads: headroom::too_few_threads,
        }
    }

    fn place(&mut self, epoch: u32, launch: &Launch) -> Result<Option<HotRestartRole>, String> {
        if epoch == 0 {
            // A file of an earlier family does not belong to this one.
            self.hot.iter().for_each(HotRestart::remove_base_id);
            let obstacle = hot_restart::obstacle(self.hot.as_ref(), launch);
            self.hot_capable = obstacle.is_none();
            log_obstacle(&self.obstacle, obstacle);
        }
        let Some(hot) = self.hot.as_ref().filter(|_| self.hot_capable) else {
            return Ok(None);
        };
        if epoch > 0 {
            let number = self
                .base_id
                .ok_or("the running Envoy's base id is not known")?;
            let region = hot_restart::region(&hot.shared_memory, number);
            let cleared = hot_restart::clear_flag(&region)
                .map_err(|error| format!("{}: {error}", region.display()))?;
            if cleared {
                tracing::info!(
                    "an epoch died during its initialisation, cleared its flag in shared memory"
                );
            }
        }
        Ok(Some(HotRestartRole {
            epoch,
            base_id: self.base_id,
            base_id_file: hot.base_id.clone(),
            parent_shutdown: hot.parent_shutdown.max(launch.drain_time),
        }))
    }
}

/// Stores a text, and returns it if it differs from the previous one.
fn replace_if_changed(
    last: &watch::Sender<Option<String>>,
    text: Option<String>,
) -> Option<String> {
    let before = last.send_replace(text.clone());
    text.filter(|text| before.as_ref() != Some(text))
}

/// Logs why hot restart is not possible, unless the reason is the last one logged.
fn log_obstacle(logged: &watch::Sender<Option<String>>, obstacle: Option<String>) {
    // An operator who disabled it knows the reason.
    let reason = replace_if_changed(logged, obstacle).filter(|reason| reason != hot_restart::OFF);
    if let Some(reason) = reason {
        tracing::info!(
            reason,
            "envoy cannot be restarted hot, a cold restart is used"
        );
    }
}

impl Host for EnvoyHost {
    type Config = EnvoyConfig;

    fn start(&mut self, epoch: u32, config: &EnvoyConfig) -> Result<Box<dyn Process>, String> {
        let launch = &config.launch;
        let place = self.place(epoch, launch)?;
        let started = match &self.log {
            Some(log) => launch.spawn_detached(place.as_ref(), log),
            None => {
                // A regular first start does without the extra thread. Its errors appear in the common
                // output.
                let quoted = std::mem::replace(&mut self.capture_errors, true) || epoch > 0;
                launch.spawn(place.as_ref(), quoted)
            }
        };
        started.map_err(|error| {
            self.clean_up(epoch, epoch == 0);
            error.to_string()
        })
    }

    fn check(
        &mut self,
        config: &EnvoyConfig,
        running: Option<Identity>,
    ) -> Work<Result<RestartMode, String>> {
        let config = config.clone();
        let too_few_threads = (self.too_few_threads)(config.launch.concurrency);
        // Envoy needs as many threads for a validation as for serving.
        let can_validate = too_few_threads.is_none();
        let pid = running.as_ref().map(|running| running.pid);
        let seen = hot_restart::obstacle(self.hot.as_ref(), &config.launch)
            .or(too_few_threads)
            .or_else(|| headroom::too_little_memory(pid?))
            .or_else(|| (!self.hot_capable).then(|| hot_restart::RUNNING.to_owned()))
            .or_else(|| match self.base_id {
                Some(_) => None,
                None => Some("Envoy has not written its base id".to_owned()),
            });
        let logged = self.obstacle.clone();
        Box::pin(async move {
            if can_validate {
                let validated = config.launch.validate().await;
                validated.map_err(|error| error.to_string())?;
            }
            let obstacle = match seen {
                Some(obstacle) => Some(obstacle),
                None => incompatible(&config, running).await,
            };
            if let Some(obstacle) = obstacle.as_ref().filter(|_| config.hot_only) {
                tracing::warn!(
                    obstacle,
                    "envoy runs on as it is, because a restart would cut connections; SIGHUP, \
                     POST /restart or legate-dataplane -restart does it"
                );
                logged.send_replace(Some(obstacle.clone()));
                return Ok(RestartMode::Deferred);
            }
            let mode = match obstacle {
                Some(_) => RestartMode::Cold,
                None => RestartMode::Hot,
            };
            log_obstacle(&logged, obstacle);
            Ok(mode)
        })
    }

    fn validate(&self, config: &EnvoyConfig) -> Work<Result<(), String>> {
        let launch = config.launch.clone();
        Box::pin(async move {
            match launch.validate().await {
                Err(ValidationError::Refused(message)) => Err(message),
                Err(error) => {
                    tracing::warn!(%error, "envoy's configuration could not be validated");
                    Ok(())
                }
                Ok(()) => Ok(()),
            }
        })
    }

    fn ready(&self, epoch: u32) -> Work<()> {
        let (admin, hot, logged) = (self.admin, self.hot_capable, self.warning.clone());
        Box::pin(async move {
            let info = loop {
                // The parent has the admin interface until its child takes it over.
                if let Ok(info) = admin.server_info().await
                    && info.live()
                    && (!hot || info.epoch() == epoch)
                {
                    break info;
                }
                sleep(READY_POLL).await;
            };
            if let Some(warning) = replace_if_changed(&logged, version::untested(&info.version)) {
                tracing::warn!("{warning}");
            }
        })
    }

    fn drain(&self) -> Work<Result<(), AdminError>> {
        let admin = self.admin;
        async move { admin.drain_listeners().await }.boxed()
    }

    fn idle(&self) -> Work<()> {
        let admin = self.admin;
        Box::pin(async move {
            loop {
                match admin.active_connections().await {
                    Ok(0) => return,
                    Ok(active) => tracing::debug!(active, "envoy drains"),
                    // While the count is unknown, the grace period decides.
                    Err(error) => tracing::debug!(%error, "connections cannot be counted"),
                }
                sleep(IDLE_POLL).await;
            }
        })
    }

    fn quit(&self) -> Work<Result<(), AdminError>> {
        let admin = self.admin;
        async move { admin.quit().await }.boxed()
    }

    fn serves(&mut self, _epoch: u32) {
        self.capture_errors = false;
        let unknown = self.hot_capable && self.base_id.is_none();
        if let Some(hot) = self.hot.as_ref().filter(|_| unknown) {
            match hot.chosen_base_id() {
                Ok(number) => self.base_id = Some(number),
                Err(obstacle) => log_obstacle(&self.obstacle, Some(obstacle)),
            }
            hot.remove_base_id();
        }
    }

    fn clean_up(&mut self, _epoch: u32, idle: bool) {
        let Some(hot) = self.hot.as_ref().filter(|_| idle && self.hot_capable) else {
            return;
        };
        // Envoy leaves both files behind, even if it ends before it serves.
        if let Some(base_id) = self.base_id.or_else(|| hot.chosen_base_id().ok()) {
            let _ = fs::remove_file(hot_restart::region(&hot.shared_memory, base_id));
        }
        hot.remove_base_id();
    }

    fn fingerprint(&self, config: &EnvoyConfig) -> String {
        config.fingerprint()
    }

    fn base_id(&self) -> Option<u32> {
        self.base_id.filter(|_| self.hot_capable)
    }

    fn serving(&self) -> Work<Option<u32>> {
        let admin = self.admin;
        Box::pin(async move {
            let info = admin.server_info().await.ok()?;
            info.live().then(|| info.epoch())
        })
    }

    fn adopt(&mut self, entry: &Entry) -> Result<Box<dyn Process>, String> {
        let log = self
            .log
            .as_ref()
            .ok_or("envoys do not outlive this program")?;
        let process = DetachedProcess::find(entry.identity.clone(), log)?;
        Ok(Box::new(process))
    }

    fn adopted(&mut self, base_id: Option<u32>) {
        // A supervisor that was killed right after Envoy became ready may not have stored the id.
        let base_id = base_id.or_else(|| self.hot.as_ref()?.chosen_base_id().ok());
        self.hot_capable = base_id.is_some() && self.hot.is_some();
        self.base_id = base_id.filter(|_| self.hot_capable);
        let obstacle = match &self.hot {
            None => Some(hot_restart::OFF),
            Some(_) => (!self.hot_capable).then_some(hot_restart::RUNNING),
        };
        log_obstacle(&self.obstacle, obstacle.map(str::to_owned));
    }

    fn obstacle(&self) -> Option<String> {
        self.obstacle.borrow().clone()
    }
}

/// Why `config` cannot take over from the running process because of its program.
async fn incompatible(config: &EnvoyConfig, running: Option<Identity>) -> Option<String> {
    let Some(running) = running else {
        return Some(hot_restart::RUNNING.to_owned());
    };
    let program = config.program.as_ref();
    if program.is_some_and(|new| (new.device, new.inode) == (running.device, running.inode)) {
        return None;
    }
    // The running program's file may have been removed.
    let old = PathBuf::from(format!("/proc/{}/exe", running.pid));
    version::incompatible(&old, &config.launch.executable).await
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::process::{DrainStrategy, EnvoyLog};
    use legate_runtime::logging::Level;

    /// A host that reports no room for more threads, with a configuration that fails every validation.
    fn no_room(folder: &Path) -> (EnvoyHost, EnvoyConfig) {
        let executable = folder.join("envoy");
        fs::write(
            &executable,
            "#!/bin/sh\necho 'cannot start a thread' >&2\nexit 1\n",
        )
        .unwrap();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
        let hot = HotRestart {
            shared_memory: folder.to_path_buf(),
            ..HotRestart::new(Duration::ZERO)
        };
        let admin = AdminClient::new("127.0.0.1:1".parse().unwrap());
        let mut host = EnvoyHost::new(admin, Some(hot), None);
        host.too_few_threads = |_| Some("pids.max".to_owned());
        let config = EnvoyConfig::new(Launch {
            executable,
            bootstrap: "{}".to_owned(),
            log: EnvoyLog {
                level: Level::Info,
                json: false,
            },
            concurrency: 2,
            drain_time: Duration::ZERO,
            drain_strategy: DrainStrategy::Immediate,
            extra_args: Vec::new(),
        });
        (host, config)
    }

    #[tokio::test]
    async fn without_room_for_threads_only_a_requested_restart_is_cold() {
        let folder = tempfile::tempdir().unwrap();
        let (mut host, config) = no_room(folder.path());
        let running = Identity::of(std::process::id());
        assert_eq!(
            host.check(&config, running.clone()).await,
            Ok(RestartMode::Cold)
        );
        let obstacle = host.obstacle().unwrap();
        assert!(obstacle.contains("pids.max"), "{obstacle}");
        let waits = host.check(&config.clone().hot_only(), running.clone());
        assert_eq!(waits.await, Ok(RestartMode::Deferred));
        host.hot = None;
        assert_eq!(
            host.check(&config, running.clone()).await,
            Ok(RestartMode::Cold)
        );
        // With enough room it is validated.
        let (mut host, config) = no_room(folder.path());
        host.too_few_threads = |_| None;
        let refused = host.check(&config, running).await.unwrap_err();
        assert!(refused.contains("cannot start a thread"), "{refused}");
    }

    #[test]
    fn the_base_id_of_an_envoy_that_never_served_is_cleaned_up() {
        let folder = tempfile::tempdir().unwrap();
        let (mut host, _) = no_room(folder.path());
        let file = folder.path().join("base-id");
        let hot = host.hot.as_mut().unwrap();
        hot.base_id = file.clone();
        host.hot_capable = true;
        let region = hot_restart::region(folder.path(), 77);
        for path in [&file, &region] {
            fs::write(path, "77\n").unwrap();
        }
        host.clean_up(0, false);
        assert!(region.exists(), "another runs");
        host.clean_up(0, true);
        assert!(!region.exists() && !file.exists());
    }

    #[test]
    fn a_base_id_that_was_not_stored_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (mut host, _) = no_room(folder.path());
        let file = folder.path().join("base-id");
        host.hot.as_mut().unwrap().base_id = file.clone();
        host.adopted(None);
        assert_eq!(host.obstacle(), Some(hot_restart::RUNNING.to_owned()));
        fs::write(&file, "77\n").unwrap();
        host.adopted(None);
        assert_eq!((host.base_id(), host.obstacle()), (Some(77), None));
    }
}
