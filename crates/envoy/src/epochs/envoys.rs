//! The real host: Envoys that are started with their place in a hot restart, or without one where
//! that cannot work. Why it cannot is said once.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use tokio::time::sleep;

use super::detached::{DetachedProcess, Envoy};
use super::files::Entry;
use super::host::{Host, Work};
use super::hot_restart::{self, BaseId, HotRestart, Obstacle};
use super::identity::Identity;
use super::machine::{Start, Way};
use super::{room, version};
use crate::admin::AdminClient;
use crate::process::{Family, HotRole, Launch, Restart, ValidationError};

/// How often a starting Envoy is asked whether it serves.
const READY_POLL: Duration = Duration::from_millis(50);
/// How often a draining Envoy is asked whether somebody is connected.
const IDLE_POLL: Duration = Duration::from_secs(1);

/// Of a file that Envoy reads, this much counts, in bytes; certificates are far smaller.
const FILE_LIMIT: u64 = 1024 * 1024;

/// What an Envoy runs: how it is started, which program file that was, and what was in the files
/// that it reads only when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyConfig {
    launch: Launch,
    program: Option<Program>,
    files: Vec<(PathBuf, Option<[u8; 32]>)>,
    /// Whether it may only run when it takes over from what runs.
    gapless: bool,
}

/// A program file, so that another one in its place is noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    device: u64,
    inode: u64,
    size: u64,
    modified: Option<SystemTime>,
}

impl EnvoyConfig {
    /// Looks at the program file of now: a configuration that is made after the file was replaced
    /// is another one.
    pub fn new(launch: Launch) -> Self {
        let program = fs::metadata(&launch.executable).ok().map(|file| Program {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: file.modified().ok(),
        });
        Self {
            launch,
            program,
            files: Vec::new(),
            gapless: false,
        }
    }

    /// Refuses to run when what runs would have to be ended first.
    #[must_use]
    pub fn gapless(mut self) -> Self {
        self.gapless = true;
        self
    }

    /// Adds files that Envoy reads when it starts and never again: with other content it is
    /// another configuration.
    #[must_use]
    pub fn reading(mut self, files: impl IntoIterator<Item = PathBuf>) -> Self {
        let files = files.into_iter().map(|path| {
            let digest = digest(&path).ok();
            (path, digest)
        });
        self.files = files.collect();
        self
    }

    /// How Envoy is started.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// In what another configuration differs, for people; empty when it does not.
    pub fn difference(&self, other: &Self) -> String {
        let mut parts = Vec::new();
        if self.launch.bootstrap != other.launch.bootstrap {
            parts.push("the bootstrap document".to_owned());
        }
        if self.program != other.program || self.launch.executable != other.launch.executable {
            parts.push(format!("the program {}", other.launch.executable.display()));
        }
        let changed = other.files.iter().filter(|file| !self.files.contains(file));
        parts.extend(changed.map(|(path, _)| format!("the file {}", path.display())));
        if parts.is_empty() && self != other {
            parts.push("the arguments".to_owned());
        }
        parts.join(", ")
    }
}

fn digest(path: &Path) -> io::Result<[u8; 32]> {
    let mut content = Vec::new();
    File::open(path)?
        .take(FILE_LIMIT)
        .read_to_end(&mut content)?;
    Ok(Sha256::digest(&content).into())
}

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
}

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
            base_id: hot.as_ref().and_then(|hot| match hot.base_id {
                BaseId::Fixed(number) => Some(number),
                BaseId::Dynamic(_) => None,
            }),
            hot,
            outlive,
            log: None,
            family: false,
            told: Arc::default(),
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
            let obstacle = hot_restart::obstacle(self.hot.as_ref(), launch);
            self.family = obstacle.is_none();
            tell(&self.told, obstacle);
        }
        let Some(hot) = self.hot.as_ref().filter(|_| self.family) else {
            return Ok(Restart::Disabled);
        };
        let family = match (&hot.base_id, self.base_id) {
            (_, Some(base_id)) => {
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
            (BaseId::Dynamic(file), None) if start.epoch == 0 => {
                let _ = fs::remove_file(file);
                Family::Chosen(file.clone())
            }
            _ => return Err("the running Envoy's base id is not known".to_owned()),
        };
        Ok(Restart::Hot(HotRole {
            epoch: start.epoch,
            family,
            parent_shutdown: hot.parent_shutdown.max(launch.drain_time),
            socket_path: hot.socket_path.clone(),
            socket_mode: hot.socket_mode,
        }))
    }

    /// What keeps `launch` from taking over from the running Envoy, as far as that can be seen
    /// without running anything.
    fn obstacle_to(&self, launch: &Launch, running: Option<&Identity>) -> Option<Obstacle> {
        let obstacle = hot_restart::obstacle(self.hot.as_ref(), launch)
            .or_else(|| {
                room::room_for(launch.concurrency, running.map(|running| running.pid)).err()
            })
            .or_else(|| (!self.family).then_some(Obstacle::Running));
        obstacle.or_else(|| match (&self.hot.as_ref()?.base_id, self.base_id) {
            (BaseId::Dynamic(path), None) => Some(Obstacle::BaseId {
                path: path.clone(),
                reason: "Envoy has not written it".to_owned(),
            }),
            _ => None,
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
            let process = launch.spawn_as(&place).map_err(|error| error.to_string())?;
            let identity = Identity::of(process.pid());
            return Ok(Envoy::Child(process, identity));
        }
        let pid = launch
            .spawn_detached(&place, self.log.as_deref())
            .map_err(|error| error.to_string())?;
        DetachedProcess::started(pid).map(Envoy::Detached)
    }

    fn check(
        &mut self,
        config: &EnvoyConfig,
        running: Option<Identity>,
    ) -> Work<Result<Way, String>> {
        let obstacle = self.obstacle_to(&config.launch, running.as_ref());
        let (launch, program) = (config.launch.clone(), config.program.clone());
        let (told, gapless) = (Arc::clone(&self.told), config.gapless);
        Box::pin(async move {
            launch.validate().await.map_err(|error| error.to_string())?;
            let obstacle = match obstacle {
                Some(obstacle) => Some(obstacle),
                None => takes_over(&launch.executable, program.as_ref(), running)
                    .await
                    .err(),
            };
            match obstacle {
                Some(obstacle) if gapless => Err(format!(
                    "it could only run after what runs was ended, because {obstacle}; ask for a restart"
                )),
                obstacle => {
                    let way = obstacle.as_ref().map_or(Way::Hot, |_| Way::Plain);
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
        let Some(BaseId::Dynamic(path)) = self.hot.as_ref().map(|hot| &hot.base_id) else {
            return;
        };
        if !self.family || self.base_id.is_some() {
            return;
        }
        let read = fs::read_to_string(path).map_err(|error| error.to_string());
        match read.and_then(|text| text.trim().parse().map_err(|_| format!("{text:?}"))) {
            Ok(number) => self.base_id = Some(number),
            Err(reason) => {
                tell(
                    &self.told,
                    Some(Obstacle::BaseId {
                        path: path.clone(),
                        reason,
                    }),
                );
            }
        }
        let _ = fs::remove_file(path);
    }

    fn clean_up(&mut self, _epoch: u32, idle: bool) {
        let Some(hot) = self.hot.as_ref().filter(|_| idle && self.family) else {
            return;
        };
        // Envoy leaves both behind.
        match (self.base_id, &hot.base_id) {
            (Some(base_id), _) => {
                let _ = fs::remove_file(hot_restart::region(&hot.shared_memory, base_id));
            }
            (None, BaseId::Dynamic(file)) => {
                let _ = fs::remove_file(file);
            }
            (None, BaseId::Fixed(_)) => {}
        }
    }

    fn fingerprint(&self, config: &EnvoyConfig) -> String {
        // The form that is printed has every field and is the same in every run. How it came to
        // run does not matter once it does.
        let running = EnvoyConfig {
            gapless: false,
            ..config.clone()
        };
        let digest = Sha256::digest(format!("{running:?}"));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
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
            .map(Envoy::Detached)
            .map_err(|reason| reason.to_string())
    }

    fn adopted(&mut self, base_id: Option<u32>) {
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
