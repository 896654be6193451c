//! The real host: Envoys that are started with their place in a hot restart, or without one where
//! that cannot work. Why it cannot is said once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::config::{EnvoyConfig, Program};
use super::detached::{DetachedProcess, Envoy};
use super::files::Entry;
use super::host::{Host, Work};
use super::hot_restart::{self, HotRestart, Obstacle};
use super::identity::Identity;
use super::machine::{RestartMode, Start};
use super::{headroom, version};
use crate::admin::AdminClient;
use crate::process::{Family, Launch, LogTail, Restart, ValidationError};

/// How often a starting Envoy is asked whether it serves.
const READY_POLL: Duration = Duration::from_millis(50);
/// How often a draining Envoy is asked whether somebody is connected.
const IDLE_POLL: Duration = Duration::from_secs(1);

/// Starts and ends Envoys.
#[derive(Debug)]
pub struct EnvoyHost {
    admin: AdminClient,
    hot: Option<HotRestart>,
    /// Whether Envoys live on when this program ends.
    outlive: bool,
    /// Where Envoys that live on write.
    log: Option<PathBuf>,
    base_id: Option<u32>,
    /// Whether the running Envoys were started with hot restart.
    hot_capable: bool,
    logged: Arc<Mutex<Logged>>,
    /// Whether the next Envoy's standard error is captured: none has served since the last start.
    capture_errors: bool,
    headroom: Headroom,
}

/// Whether there is room for a second Envoy, see [`headroom::for_second_envoy`].
type Headroom = fn(concurrency: u32, running: Option<u32>) -> Result<(), Obstacle>;

/// What was said in the log already.
#[derive(Debug, Default)]
struct Logged {
    obstacle: Option<Obstacle>,
    version: Option<String>,
}

impl EnvoyHost {
    /// A host for Envoys whose admin interface `admin` calls. Without `hot` every restart is a
    /// plain one. Envoys that `outlive` this program can be adopted by its successor; others are
    /// ended by the kernel together with the thread that drives this host.
    pub fn new(admin: AdminClient, hot: Option<HotRestart>, outlive: bool) -> Self {
        Self {
            admin,
            base_id: None,
            hot,
            outlive,
            log: None,
            hot_capable: false,
            logged: Arc::default(),
            capture_errors: false,
            headroom: headroom::for_second_envoy,
        }
    }

    /// Has Envoys that outlive this program append what they write to this file.
    #[must_use]
    pub fn logging_to(mut self, log: PathBuf) -> Self {
        self.log = Some(log);
        self
    }

    fn restart_options(&mut self, start: &Start<EnvoyConfig>) -> Result<Restart, String> {
        let launch = &start.config.launch;
        if start.epoch == 0 {
            // One that an earlier family left is not this one's.
            self.remove_base_id_file();
            let obstacle = hot_restart::obstacle(self.hot.as_ref(), launch);
            self.hot_capable = obstacle.is_none();
            log_obstacle(&self.logged, obstacle);
        }
        let Some(hot) = self.hot.as_ref().filter(|_| self.hot_capable) else {
            return Ok(Restart::Disabled);
        };
        let family = match self.base_id {
            Some(base_id) => {
                if start.epoch > 0 {
                    let region = hot_restart::region(&hot.shared_memory, base_id);
                    let unmarked = hot_restart::unmark(&region)
                        .map_err(|error| format!("{}: {error}", region.display()))?;
                    if unmarked {
                        tracing::info!("an epoch had died while it started; its mark is removed");
                    }
                }
                Family::Known(base_id)
            }
            None if start.epoch == 0 => Family::Chosen(hot.base_id.clone()),
            None => return Err("the running Envoy's base id is not known".to_owned()),
        };
        Ok(Restart::Hot {
            epoch: start.epoch,
            family,
            parent_shutdown: hot.parent_shutdown.max(launch.drain_time),
        })
    }

    /// The number that Envoy has chosen, as it wrote it.
    fn chosen_base_id(&self) -> Option<Result<u32, Obstacle>> {
        let path = &self.hot.as_ref()?.base_id;
        let read = fs::read_to_string(path).map_err(|error| error.to_string());
        let number = read.and_then(|text| text.trim().parse().map_err(|_| format!("{text:?}")));
        Some(number.map_err(|reason| Obstacle::base_id(path, &reason)))
    }

    fn remove_base_id_file(&self) {
        if let Some(hot) = &self.hot {
            let _ = fs::remove_file(&hot.base_id);
        }
    }

    /// What keeps `launch` from taking over from the running Envoy, as far as that can be seen
    /// without running anything; `no_room` when there is no room for both.
    fn obstacle_to(&self, launch: &Launch, no_room: Option<Obstacle>) -> Option<Obstacle> {
        let obstacle = hot_restart::obstacle(self.hot.as_ref(), launch)
            .or(no_room)
            .or_else(|| (!self.hot_capable).then_some(Obstacle::Running));
        obstacle.or_else(|| match self.base_id {
            Some(_) => None,
            None => {
                let path = &self.hot.as_ref()?.base_id;
                Some(Obstacle::base_id(path, "Envoy has not written it"))
            }
        })
    }
}

/// Says why hot restart cannot work, unless that was the last thing said about it.
fn log_obstacle(logged: &Mutex<Logged>, obstacle: Option<Obstacle>) {
    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    // Who switches it off knows why.
    if let Some(new) = &obstacle
        && *new != Obstacle::Off
        && logged.obstacle.as_ref() != Some(new)
    {
        tracing::info!(reason = %new, "envoy cannot be restarted hot, a plain restart is used");
    }
    logged.obstacle = obstacle;
}

fn log_version(logged: &Mutex<Logged>, version: &str) {
    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.version.as_deref() != Some(version) {
        if let Some(warning) = version::untested(version) {
            tracing::warn!("{warning}");
        }
        logged.version = Some(version.to_owned());
    }
}

impl Host for EnvoyHost {
    type Config = EnvoyConfig;
    type Process = Envoy;

    fn start(&mut self, start: &Start<EnvoyConfig>) -> Result<Envoy, String> {
        let (launch, place) = (&start.config.launch, self.restart_options(start)?);
        if !self.outlive {
            // The usual first one costs no thread; it says what is wrong where everything is said.
            let capture_errors =
                start.epoch > 0 || std::mem::replace(&mut self.capture_errors, true);
            let process = launch
                .spawn(&place, capture_errors)
                .map_err(|error| error.to_string())?;
            let identity = Identity::of(process.pid());
            return Ok(Envoy::Child(Box::new(process), identity));
        }
        let log = self.log.as_deref().map(LogTail::from_now);
        let pid = launch
            .spawn_detached(&place, self.log.as_deref())
            .map_err(|error| error.to_string())?;
        match DetachedProcess::started(pid) {
            Ok(process) => Ok(Envoy::Detached(process.logging_to(log))),
            Err(reason) => {
                self.clean_up(start.epoch, start.epoch == 0);
                let words = log.and_then(|log| log.last_words());
                Err(words.map_or(reason.clone(), |words| format!("{reason}: {words}")))
            }
        }
    }

    fn check(
        &mut self,
        config: &EnvoyConfig,
        running: Option<Identity>,
    ) -> Work<Result<RestartMode, String>> {
        let pid = running.as_ref().map(|running| running.pid);
        let no_room = (self.headroom)(config.launch.concurrency, pid).err();
        let no_threads = matches!(no_room, Some(Obstacle::Processes { .. }));
        let obstacle = self.obstacle_to(&config.launch, no_room);
        let (launch, program) = (config.launch.clone(), config.program.clone());
        let (logged, hot_only) = (Arc::clone(&self.logged), config.hot_only);
        Box::pin(async move {
            // An Envoy that checks needs as many threads as one that serves.
            if !no_threads {
                launch.validate().await.map_err(|error| error.to_string())?;
            }
            let obstacle = match obstacle {
                Some(obstacle) => Some(obstacle),
                None => takes_over(&launch.executable, program.as_ref(), running)
                    .await
                    .err(),
            };
            match obstacle {
                Some(obstacle) if hot_only => {
                    tracing::warn!(
                        %obstacle,
                        "envoy runs on as it is, because a restart would cut connections; SIGHUP, \
                         POST /restart or legate-dataplane -restart does it"
                    );
                    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
                    logged.obstacle = Some(obstacle);
                    Ok(RestartMode::Deferred)
                }
                obstacle => {
                    let mode = obstacle
                        .as_ref()
                        .map_or(RestartMode::Hot, |_| RestartMode::Cold);
                    log_obstacle(&logged, obstacle);
                    Ok(mode)
                }
            }
        })
    }

    fn validate(&self, config: &EnvoyConfig) -> Work<Result<(), String>> {
        let launch = config.launch.clone();
        Box::pin(async move {
            match launch.validate().await {
                Err(ValidationError::Refused(words)) => Err(words),
                Err(error) => {
                    tracing::warn!(%error, "whether envoy takes its configuration is not known");
                    Ok(())
                }
                Ok(()) => Ok(()),
            }
        })
    }

    fn ready(&self, epoch: u32) -> Work<()> {
        let (admin, hot, logged) = (self.admin, self.hot_capable, Arc::clone(&self.logged));
        Box::pin(async move {
            loop {
                // The parent has the admin interface until its child takes it over.
                if let Ok(info) = admin.server_info().await
                    && info.live()
                    && (!hot || info.epoch() == epoch)
                {
                    return log_version(&logged, &info.version);
                }
                sleep(READY_POLL).await;
            }
        })
    }

    fn drain(&self) -> Work<Result<(), String>> {
        let admin = self.admin;
        Box::pin(async move {
            admin
                .drain_listeners()
                .await
                .map_err(|error| error.to_string())
        })
    }

    fn idle(&self) -> Work<()> {
        let admin = self.admin;
        Box::pin(async move {
            loop {
                match admin.active_connections().await {
                    Ok(0) => return,
                    Ok(active) => tracing::debug!(active, "envoy drains"),
                    // As long as it cannot be known the grace period decides.
                    Err(error) => tracing::debug!(%error, "connections cannot be counted"),
                }
                sleep(IDLE_POLL).await;
            }
        })
    }

    fn quit(&self) -> Work<Result<(), String>> {
        let admin = self.admin;
        Box::pin(async move { admin.quit().await.map_err(|error| error.to_string()) })
    }

    fn serves(&mut self, _epoch: u32) {
        self.capture_errors = false;
        if !self.hot_capable || self.base_id.is_some() {
            return;
        }
        match self.chosen_base_id() {
            Some(Ok(number)) => self.base_id = Some(number),
            Some(Err(obstacle)) => log_obstacle(&self.logged, Some(obstacle)),
            None => return,
        }
        self.remove_base_id_file();
    }

    fn clean_up(&mut self, _epoch: u32, idle: bool) {
        let Some(hot) = self.hot.as_ref().filter(|_| idle && self.hot_capable) else {
            return;
        };
        // Envoy leaves both behind, also when it ends before it serves.
        if let Some(base_id) = self.base_id.or_else(|| self.chosen_base_id()?.ok()) {
            let _ = fs::remove_file(hot_restart::region(&hot.shared_memory, base_id));
        }
        self.remove_base_id_file();
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

    fn adopt(&mut self, entry: &Entry) -> Result<Envoy, String> {
        let process = DetachedProcess::find(entry.identity.clone());
        process
            .map(|process| {
                let log = self.log.as_deref().map(LogTail::from_now);
                Envoy::Detached(process.logging_to(log))
            })
            .map_err(|reason| reason.to_string())
    }

    fn adopted(&mut self, base_id: Option<u32>) {
        // A supervisor that was killed as soon as Envoy served may not have noted the number.
        let base_id = base_id.or_else(|| self.chosen_base_id()?.ok());
        self.hot_capable = base_id.is_some() && self.hot.is_some();
        if self.hot_capable {
            self.base_id = base_id;
        }
        let obstacle = match (&self.hot, self.hot_capable) {
            (_, true) => None,
            (Some(_), false) => Some(Obstacle::Running),
            (None, false) => Some(Obstacle::Off),
        };
        log_obstacle(&self.logged, obstacle);
    }

    fn obstacle(&self) -> Option<String> {
        let logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.obstacle.as_ref().map(ToString::to_string)
    }
}

/// Whether a program can take over from the running process.
async fn takes_over(
    executable: &Path,
    program: Option<&Program>,
    running: Option<Identity>,
) -> Result<(), Obstacle> {
    let Some(running) = running else {
        return Err(Obstacle::Running);
    };
    let same =
        program.is_some_and(|new| (new.device, new.inode) == (running.device, running.inode));
    if same {
        return Ok(());
    }
    // What runs may have no name any more.
    let old = PathBuf::from(format!("/proc/{}/exe", running.pid));
    version::compatible(&old, executable).await
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::process::{DrainStrategy, EnvoyLog};
    use legate_runtime::logging::Level;

    /// A host that finds no room for more threads, and what it shall run; every check of that fails.
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
        let mut host = EnvoyHost::new(admin, Some(hot), false);
        host.headroom = |_, _| {
            Err(Obstacle::Processes {
                room: 1,
                needed: 14,
            })
        };
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
    async fn without_room_for_threads_a_restart_is_plain_where_somebody_asked() {
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
        // With room it is checked.
        let (mut host, config) = no_room(folder.path());
        host.headroom = |_, _| Ok(());
        let refused = host.check(&config, running).await.unwrap_err();
        assert!(refused.contains("cannot start a thread"), "{refused}");
    }

    #[test]
    fn what_envoy_chose_is_cleaned_up_though_it_never_served() {
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
    fn a_number_that_was_not_noted_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (mut host, _) = no_room(folder.path());
        let file = folder.path().join("base-id");
        host.hot.as_mut().unwrap().base_id = file.clone();
        host.adopted(None);
        assert_eq!(host.obstacle(), Some(Obstacle::Running.to_string()));
        fs::write(&file, "77\n").unwrap();
        host.adopted(None);
        assert_eq!((host.base_id(), host.obstacle()), (Some(77), None));
    }
}
