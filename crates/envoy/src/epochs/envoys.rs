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
use super::{room, version};
use crate::admin::AdminClient;
use crate::process::{Family, HotRole, Launch, LogTail, Restart, ValidationError};

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
    /// Whether the running family was started with hot restart.
    family: bool,
    told: Arc<Mutex<Told>>,
    /// Whether no process has served since the last one was started.
    doubtful: bool,
    room: Room,
}

/// Whether there is room for a second Envoy, see [`room::room_for`].
type Room = fn(concurrency: u32, running: Option<u32>) -> Result<(), Obstacle>;

/// What was said in the log already.
#[derive(Debug, Default)]
struct Told {
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
            family: false,
            told: Arc::default(),
            doubtful: false,
            room: room::room_for,
        }
    }

    /// Has Envoys that outlive this program append what they write to this file.
    #[must_use]
    pub fn logging_to(mut self, log: PathBuf) -> Self {
        self.log = Some(log);
        self
    }

    fn place(&mut self, start: &Start<EnvoyConfig>) -> Result<Restart, String> {
        let launch = &start.config.launch;
        if start.epoch == 0 {
            // One that an earlier family left is not this one's.
            self.forget_choice();
            let obstacle = hot_restart::obstacle(self.hot.as_ref(), launch);
            self.family = obstacle.is_none();
            tell(&self.told, obstacle);
        }
        let Some(hot) = self.hot.as_ref().filter(|_| self.family) else {
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
        Ok(Restart::Hot(HotRole {
            epoch: start.epoch,
            family,
            parent_shutdown: hot.parent_shutdown.max(launch.drain_time),
        }))
    }

    /// The number that Envoy has chosen, as it wrote it.
    fn choice(&self) -> Option<Result<u32, Obstacle>> {
        let path = &self.hot.as_ref()?.base_id;
        let read = fs::read_to_string(path).map_err(|error| error.to_string());
        let number = read.and_then(|text| text.trim().parse().map_err(|_| format!("{text:?}")));
        Some(number.map_err(|reason| Obstacle::BaseId {
            path: path.clone(),
            reason,
        }))
    }

    fn forget_choice(&self) {
        if let Some(hot) = &self.hot {
            let _ = fs::remove_file(&hot.base_id);
        }
    }

    /// What keeps `launch` from taking over from the running Envoy, as far as that can be seen
    /// without running anything; `crowded` when there is no room for both.
    fn obstacle_to(&self, launch: &Launch, crowded: Option<Obstacle>) -> Option<Obstacle> {
        let obstacle = hot_restart::obstacle(self.hot.as_ref(), launch)
            .or(crowded)
            .or_else(|| (!self.family).then_some(Obstacle::Running));
        obstacle.or_else(|| match self.base_id {
            Some(_) => None,
            None => Some(Obstacle::BaseId {
                path: self.hot.as_ref()?.base_id.clone(),
                reason: "Envoy has not written it".to_owned(),
            }),
        })
    }
}

/// Says why hot restart cannot work, unless that was the last thing said about it.
fn tell(told: &Mutex<Told>, obstacle: Option<Obstacle>) {
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    // Who switches it off knows why.
    if let Some(new) = &obstacle
        && *new != Obstacle::Off
        && told.obstacle.as_ref() != Some(new)
    {
        tracing::info!(reason = %new, "envoy cannot be restarted hot, a plain restart is used");
    }
    told.obstacle = obstacle;
}

fn tell_version(told: &Mutex<Told>, version: &str) {
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    if told.version.as_deref() != Some(version) {
        if let Some(warning) = version::untested(version) {
            tracing::warn!("{warning}");
        }
        told.version = Some(version.to_owned());
    }
}

impl Host for EnvoyHost {
    type Config = EnvoyConfig;
    type Process = Envoy;

    fn start(&mut self, start: &Start<EnvoyConfig>) -> Result<Envoy, String> {
        let (launch, place) = (&start.config.launch, self.place(start)?);
        if !self.outlive {
            // The usual first one costs no thread; it says what is wrong where everything is said.
            let doubtful = start.epoch > 0 || std::mem::replace(&mut self.doubtful, true);
            let process = launch
                .spawn(&place, doubtful)
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
        let crowded = (self.room)(config.launch.concurrency, pid).err();
        let no_threads = matches!(crowded, Some(Obstacle::Processes { .. }));
        let obstacle = self.obstacle_to(&config.launch, crowded);
        let (launch, program) = (config.launch.clone(), config.program.clone());
        let (told, gapless) = (Arc::clone(&self.told), config.gapless);
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
                Some(obstacle) if gapless => {
                    tracing::warn!(
                        %obstacle,
                        "envoy runs on as it is, because a restart would cut connections; SIGHUP, \
                         POST /restart or legate-dataplane -restart does it"
                    );
                    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                    told.obstacle = Some(obstacle);
                    Ok(RestartMode::Deferred)
                }
                obstacle => {
                    let way = obstacle
                        .as_ref()
                        .map_or(RestartMode::Hot, |_| RestartMode::Cold);
                    tell(&told, obstacle);
                    Ok(way)
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
        let (admin, family, told) = (self.admin, self.family, Arc::clone(&self.told));
        Box::pin(async move {
            loop {
                // The parent has the admin interface until its child takes it over.
                if let Ok(info) = admin.server_info().await
                    && info.live()
                    && (!family || info.epoch() == epoch)
                {
                    return tell_version(&told, &info.version);
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
        self.doubtful = false;
        if !self.family || self.base_id.is_some() {
            return;
        }
        match self.choice() {
            Some(Ok(number)) => self.base_id = Some(number),
            Some(Err(obstacle)) => tell(&self.told, Some(obstacle)),
            None => return,
        }
        self.forget_choice();
    }

    fn clean_up(&mut self, _epoch: u32, idle: bool) {
        let Some(hot) = self.hot.as_ref().filter(|_| idle && self.family) else {
            return;
        };
        // Envoy leaves both behind, also when it ends before it serves.
        if let Some(base_id) = self.base_id.or_else(|| self.choice()?.ok()) {
            let _ = fs::remove_file(hot_restart::region(&hot.shared_memory, base_id));
        }
        self.forget_choice();
    }

    fn fingerprint(&self, config: &EnvoyConfig) -> String {
        config.fingerprint()
    }

    fn base_id(&self) -> Option<u32> {
        self.base_id.filter(|_| self.family)
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
        let base_id = base_id.or_else(|| self.choice()?.ok());
        self.family = base_id.is_some() && self.hot.is_some();
        if self.family {
            self.base_id = base_id;
        }
        let obstacle = match (&self.hot, self.family) {
            (_, true) => None,
            (Some(_), false) => Some(Obstacle::Running),
            (None, false) => Some(Obstacle::Off),
        };
        tell(&self.told, obstacle);
    }

    fn obstacle(&self) -> Option<String> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.obstacle.as_ref().map(ToString::to_string)
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
    use crate::process::{DrainStrategy, EnvoyLog, LogLevel};

    /// A host that finds no room for more threads, and what it shall run; every check of that fails.
    fn crowded(folder: &Path) -> (EnvoyHost, EnvoyConfig) {
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
        host.room = |_, _| {
            Err(Obstacle::Processes {
                room: 1,
                needed: 14,
            })
        };
        let config = EnvoyConfig::new(Launch {
            executable,
            bootstrap: "{}".to_owned(),
            log: EnvoyLog {
                level: LogLevel::Info,
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
        let (mut host, config) = crowded(folder.path());
        let running = Identity::of(std::process::id());
        assert_eq!(
            host.check(&config, running.clone()).await,
            Ok(RestartMode::Cold)
        );
        let obstacle = host.obstacle().unwrap();
        assert!(obstacle.contains("pids.max"), "{obstacle}");
        let waits = host.check(&config.clone().gapless(), running.clone());
        assert_eq!(waits.await, Ok(RestartMode::Deferred));
        host.hot = None;
        assert_eq!(
            host.check(&config, running.clone()).await,
            Ok(RestartMode::Cold)
        );
        // With room it is checked.
        let (mut host, config) = crowded(folder.path());
        host.room = |_, _| Ok(());
        let refused = host.check(&config, running).await.unwrap_err();
        assert!(refused.contains("cannot start a thread"), "{refused}");
    }

    #[test]
    fn what_envoy_chose_is_cleaned_up_though_it_never_served() {
        let folder = tempfile::tempdir().unwrap();
        let (mut host, _) = crowded(folder.path());
        let file = folder.path().join("base-id");
        let hot = host.hot.as_mut().unwrap();
        hot.base_id = file.clone();
        host.family = true;
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
        let (mut host, _) = crowded(folder.path());
        let file = folder.path().join("base-id");
        host.hot.as_mut().unwrap().base_id = file.clone();
        host.adopted(None);
        assert_eq!(host.obstacle(), Some(Obstacle::Running.to_string()));
        fs::write(&file, "77\n").unwrap();
        host.adopted(None);
        assert_eq!((host.base_id(), host.obstacle()), (Some(77), None));
    }
}
