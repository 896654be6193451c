//! `cargo xtask fuzz`: a bounded run of each fuzz target in `fuzz/`.
//!
//! The targets use libFuzzer, which is guided by coverage. The compiler of `rust-toolchain.toml`
//! instruments the code; the only other requirement is a C++ compiler, which builds libFuzzer
//! itself. `--address-sanitizer` also detects memory errors, possible in dependencies, and requires
//! a nightly compiler.
//!
//! `fuzz/seeds` has an input of each kind and is never written to. The results of a run are below
//! the target directory: the corpus, with which the next run starts, and inputs that fail.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, anyhow, bail};
use clap::Args;

use crate::workspace::{self, Workspace};

/// Options of `cargo xtask fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// Duration of each target, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Build with the address sanitizer as well; requires a nightly compiler
    #[arg(long)]
    address_sanitizer: bool,
    /// Build the targets, but do not run them
    #[arg(long)]
    no_run: bool,
    /// A single target; default: all
    target: Option<String>,
}

/// The options in CI, limited to a reasonable duration.
const CI: Options = Options {
    seconds: 15,
    address_sanitizer: false,
    no_run: false,
    target: None,
};

/// The time limit in seconds for one input, and the memory limit in MiB of a target, because every
/// input must be processed quickly and with little memory.
const INPUT_SECONDS: u32 = 10;
const MEMORY: u32 = 512;
/// The sanitizer delays freeing memory and needs some for itself.
const MEMORY_OF_SANITIZER: u32 = 1024;

/// Instrumentation for libFuzzer in all code, and the cfg flag for crates.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// Runs the targets, as many at a time as there are cores.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let targets = chosen(workspace, options.target.as_deref())?;
    check_tools(options)?;
    let build = Build::new(workspace, options)?;
    build.build(&targets)?;
    if options.no_run {
        return Ok(());
    }
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    for targets in targets.chunks(cores) {
        println!(
            "fuzzing {} for {} s",
            targets.join(" and "),
            options.seconds
        );
        let outcomes: Vec<_> = thread::scope(|scope| {
            let runs = targets
                .iter()
                .map(|target| scope.spawn(|| build.fuzz(target, options)));
            let runs: Vec<_> = runs.collect();
            runs.into_iter().map(|run| run.join()).collect()
        });
        for outcome in outcomes {
            outcome.map_err(|_| anyhow!("fuzzing panicked"))??;
        }
    }
    Ok(())
}

/// Runs all targets for a short time, as a stage of `cargo xtask ci`.
pub(crate) fn all(workspace: &Workspace) -> anyhow::Result<()> {
    run(workspace, &CI)
}

/// Checks lints and format of the targets as in the rest of the repository.
pub(crate) fn clippy(workspace: &Workspace) -> anyhow::Result<()> {
    check_tools(&CI)?;
    let build = Build::new(workspace, &CI)?;
    let mut command = build.cargo("clippy");
    workspace::run(command.args(["--", "-D", "warnings"]))
}

/// Checks the format of the targets, which are not members of the root workspace.
pub(crate) fn format(workspace: &Workspace) -> anyhow::Result<()> {
    let mut command = workspace.cargo(&["fmt", "--all", "--check"]);
    workspace::run(command.current_dir(workspace.root.join("fuzz")))
}

/// The targets in `fuzz/Cargo.toml`, or the requested one.
fn chosen(workspace: &Workspace, wanted: Option<&str>) -> anyhow::Result<Vec<String>> {
    let path = workspace.root.join("fuzz/Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
    let manifest: toml::Table = text.parse()?;
    let targets = manifest.get("bin").and_then(toml::Value::as_array);
    let known: Vec<String> = targets
        .context("fuzz/Cargo.toml names its targets as [[bin]]")?
        .iter()
        .filter_map(|target| target.get("name")?.as_str().map(str::to_owned))
        .collect();
    match wanted {
        None => Ok(known),
        Some(wanted) if known.iter().any(|target| target == wanted) => Ok(vec![wanted.to_owned()]),
        Some(wanted) => bail!(
            "there is no fuzz target {wanted:?}; use one of {}",
            known.join(", ")
        ),
    }
}

/// A line for each missing requirement of fuzzing.
fn check_tools(options: &Options) -> anyhow::Result<()> {
    let works = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let compiler = workspace::variable("CXX").map_or_else(|| "c++".into(), PathBuf::from);
    if !works(&compiler, &["--version"]) {
        bail!(
            "libFuzzer needs a C++ compiler, but {} does not work: install g++ (Debian, Ubuntu: apt-get install g++) or set CXX",
            compiler.display()
        );
    }
    if options.address_sanitizer
        && !works("rustup".as_ref(), &["run", "nightly", "rustc", "--version"])
    {
        bail!(
            "the address sanitizer needs a nightly compiler: rustup toolchain install nightly --profile minimal"
        );
    }
    Ok(())
}

/// The configuration of a build.
struct Build {
    /// The workspace of the targets.
    folder: PathBuf,
    /// The folder for build output and results.
    target: PathBuf,
    /// The machine's target triple. Only if it is set explicitly does Cargo apply flags to the
    /// targets alone, and not to build scripts.
    machine: String,
    flags: String,
    nightly: bool,
}

impl Build {
    fn new(workspace: &Workspace, options: &Options) -> anyhow::Result<Self> {
        let (flags, name) = match options.address_sanitizer {
            false => (COVERAGE.to_owned(), "fuzz"),
            true => (format!("{COVERAGE} -Zsanitizer=address"), "fuzz-sanitized"),
        };
        Ok(Self {
            folder: workspace.root.join("fuzz"),
            target: workspace.target.join(name),
            machine: machine()?,
            flags,
            nightly: options.address_sanitizer,
        })
    }

    /// A cargo command with all settings that affect the build.
    fn cargo(&self, task: &str) -> Command {
        let mut command = match self.nightly {
            false => Command::new("cargo"),
            true => Command::new("rustup"),
        };
        if self.nightly {
            command.args(["run", "nightly", "cargo"]);
        }
        command
            .args([task, "--locked", "--release", "--target", &self.machine])
            .arg("--target-dir")
            .arg(&self.target)
            .env("RUSTFLAGS", &self.flags)
            .current_dir(&self.folder);
        command
    }

    fn build(&self, targets: &[String]) -> anyhow::Result<()> {
        let mut command = self.cargo("build");
        for target in targets {
            command.args(["--bin", target]);
        }
        workspace::run(&mut command)
    }

    fn fuzz(&self, target: &str, options: &Options) -> anyhow::Result<()> {
        let found = self.target.join("corpus").join(target);
        let broken = self.target.join("artifacts").join(target);
        for folder in [&found, &broken] {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {folder:?}"))?;
        }
        let folder = self.target.join(&self.machine).join("release");
        let program = folder.join(target);
        let memory = match options.address_sanitizer {
            false => MEMORY,
            true => MEMORY_OF_SANITIZER,
        };
        let mut command = Command::new(&program);
        // libFuzzer writes to the first folder only.
        command
            .arg(found)
            .arg(self.folder.join("seeds").join(target))
            .args([
                format!("-max_total_time={}", options.seconds),
                format!("-timeout={INPUT_SECONDS}"),
                format!("-rss_limit_mb={memory}"),
                // With a trailing slash, because it is a prefix of file names.
                format!("-artifact_prefix={}/", broken.display()),
                "-print_final_stats=1".to_owned(),
                "-verbosity=0".to_owned(),
            ]);
        let output = command
            .output()
            .with_context(|| format!("cannot start {program:?}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            println!("{said}");
            bail!(
                "fuzz target {target} ended with {}; to see it again: {} FILE, with the file named above",
                output.status,
                program.display()
            );
        }
        println!("{target}: {}", summary(&said));
        Ok(())
    }
}

/// libFuzzer's statistics in one line.
fn summary(said: &str) -> String {
    let counted = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("?", |line| line.trim_start_matches(':').trim())
    };
    format!(
        "{} inputs, {} a second, the slowest took {} s, {} MiB at most",
        counted("stat::number_of_executed_units"),
        counted("stat::average_exec_per_sec"),
        counted("stat::slowest_unit_time_sec"),
        counted("stat::peak_rss_mb"),
    )
}

/// The compiler's default target triple.
fn machine() -> anyhow::Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc -vV names no host")
}
