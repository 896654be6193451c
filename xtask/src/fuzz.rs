//! `cargo xtask fuzz`: a bounded run of each fuzz target in `fuzz/`.
//!
//! The targets run libFuzzer, which steers by what an input reaches in the code. The compiler of
//! `rust-toolchain.toml` marks the code for that; nothing else has to be installed but a C++
//! compiler, which builds libFuzzer itself. `--address-sanitizer` looks for misuse of memory as
//! well, which the crates below ours could be guilty of, and takes a nightly compiler.
//!
//! `fuzz/seeds` has an input of each kind and is never written to. What a run finds stays below the
//! target directory: inputs that reach something new, where the next run starts, and inputs that
//! break a target.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;

use crate::workspace::{self, Workspace};

/// What to fuzz, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// How long each target runs, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Build with the address sanitizer too; needs a nightly compiler
    #[arg(long)]
    address_sanitizer: bool,
    /// One target; all of them unless given
    target: Option<String>,
}

/// What CI does: as much as a change should wait for.
const CI: Options = Options {
    seconds: 15,
    address_sanitizer: false,
    target: None,
};

/// Longest time in seconds that one input may take, and memory in MiB that one target may use:
/// whatever is read has to be done with quickly, and in little.
const INPUT_SECONDS: u32 = 10;
const MEMORY: u32 = 512;
/// The sanitizer keeps freed memory for a while and needs some for itself.
const MEMORY_OF_SANITIZER: u32 = 1024;

/// Counters and comparisons for libFuzzer in all code, and the mark by which crates know.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// Runs the targets one after another, up to the first that fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let targets = chosen(workspace, options.target.as_deref())?;
    check_tools(options)?;
    let build = Build::new(workspace, options)?;
    build.build(&targets)?;
    for target in targets {
        println!("fuzzing {target} for {} s", options.seconds);
        build.fuzz(&target, options)?;
    }
    Ok(())
}

/// All targets for a short time each, as a stage of `cargo xtask ci`.
pub(crate) fn ci(workspace: &Workspace) -> anyhow::Result<()> {
    run(workspace, &CI)
}

/// The lints that the rest of the repository has to pass, and its format.
pub(crate) fn clippy(workspace: &Workspace) -> anyhow::Result<()> {
    check_tools(&CI)?;
    let build = Build::new(workspace, &CI)?;
    let mut command = build.cargo("clippy");
    workspace::run(command.args(["--", "-D", "warnings"]))
}

/// The format of the targets; they are no members of the root workspace.
pub(crate) fn format(workspace: &Workspace) -> anyhow::Result<()> {
    let mut command = workspace.cargo(&["fmt", "--all", "--check"]);
    workspace::run(command.current_dir(workspace.root.join("fuzz")))
}

/// The targets that `fuzz/Cargo.toml` names, or the one that is asked for.
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
            "there is no fuzz target {wanted:?}; there are {}",
            known.join(", ")
        ),
    }
}

/// One line for each way in which fuzzing cannot work here.
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
            "libFuzzer needs a C++ compiler, and {} is none: install g++ (Debian, Ubuntu: apt-get install g++) or name one in CXX",
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

/// How the targets are built, and where.
struct Build {
    /// The workspace of the targets.
    folder: PathBuf,
    /// Where what is built and what is found goes.
    target: PathBuf,
    /// The machine's own triple. Cargo applies flags to the targets alone, and not to what runs
    /// while they are built, only when the target is named.
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

    /// A cargo command with everything on which what is built depends.
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
        // Only the first folder is written to.
        command
            .arg(found)
            .arg(self.folder.join("seeds").join(target))
            .args([
                format!("-max_total_time={}", options.seconds),
                format!("-timeout={INPUT_SECONDS}"),
                format!("-rss_limit_mb={memory}"),
                // With the slash: it is put before the name of the file.
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
        println!("{}", summary(&said));
        Ok(())
    }
}

/// What libFuzzer counted, in one line.
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

/// The triple for which the compiler builds by itself.
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
