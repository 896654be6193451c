//! What a test needs from its machine beyond the tools of every contributor: programs that no package client
//! brings, root, features of the kernel.
//!
//! A test asks before it starts anything, with [`met`] or [`program`], on its own thread. If something is missing the
//! test is left out: this is recorded, and the test returns. `cargo xtask test` names the file of records in
//! `LEGATE_LEFT_OUT` and lists them at the end; without that variable they are written to standard error. With
//! `LEGATE_STRICT=1`, as in CI, a test that would be left out fails instead, unless `tests/may-be-left-out` allows
//! it. Nothing is left out silently.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use nix::unistd::{Uid, geteuid};
use serde_json::json;

/// The file to which records of tests that are left out are appended, one JSON object a line.
const RECORDS: &str = "LEGATE_LEFT_OUT";
/// `1`: a test that would be left out fails, unless [`ALLOWED`] has it.
const STRICT: &str = "LEGATE_STRICT";
/// The tests that are left out even then, with the requirement that is missing.
const ALLOWED: &str = include_str!("../../../tests/may-be-left-out");

/// Something that a machine has or lacks.
#[derive(Debug, Clone, Copy)]
pub struct Requirement {
    /// Its name in reports.
    pub name: &'static str,
    /// How to have it, for people.
    pub how: &'static str,
    /// The program, if it is one or needs one.
    program: Option<Program>,
    /// A command that succeeds if everything works, which is run if the tests run as root; may be empty.
    probe: &'static [&'static str],
}

/// A program.
#[derive(Debug, Clone, Copy)]
struct Program {
    /// Its file name on `PATH`.
    name: &'static str,
    /// The variable that can name its file instead.
    variable: Option<&'static str>,
}

/// The rights to create namespaces.
pub const ROOT: Requirement = Requirement {
    name: "root",
    how: "run the tests as root; in a container, with all capabilities",
    program: None,
    probe: &[
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--mount-proc",
        "true",
    ],
};

/// `ip`, which configures the networks of namespaces.
pub const IP: Requirement = Requirement {
    name: "ip",
    how: "apt-get install iproute2",
    program: Some(Program {
        name: "ip",
        variable: None,
    }),
    probe: &[
        "unshare", "--net", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1",
    ],
};

/// `nft`, and a kernel with nftables and address translation.
pub const NFT: Requirement = Requirement {
    name: "nft",
    how: "apt-get install nftables; the kernel needs nf_tables with NAT",
    program: Some(Program {
        name: "nft",
        variable: None,
    }),
    probe: &[
        "unshare",
        "--net",
        "nft",
        "add table inet t; add chain inet t c { type nat hook output priority -100; }",
    ],
};

/// `iptables-legacy`, and a kernel with the tables that it uses.
pub const IPTABLES: Requirement = Requirement {
    name: "iptables",
    how: "apt-get install iptables; the kernel needs ip_tables and ip6_tables with NAT",
    program: Some(Program {
        name: "iptables-legacy",
        variable: None,
    }),
    probe: &[
        "unshare",
        "--net",
        "sh",
        "-c",
        "iptables-legacy -t nat -S && ip6tables-legacy -t nat -S",
    ],
};

/// `setcap`, which gives capabilities to files.
pub const SETCAP: Requirement = Requirement {
    name: "setcap",
    how: "apt-get install libcap2-bin",
    program: Some(Program {
        name: "setcap",
        variable: None,
    }),
    probe: &[],
};

/// A Consul.
pub const CONSUL: Requirement = Requirement::foreign(
    "consul",
    "LEGATE_CONSUL",
    "install Consul 1.21, or set LEGATE_CONSUL to the program",
);

/// A `consul-dataplane`.
pub const CONSUL_DATAPLANE: Requirement = Requirement::foreign(
    "consul-dataplane",
    "LEGATE_CONSUL_DATAPLANE",
    "install consul-dataplane, or set LEGATE_CONSUL_DATAPLANE to the program",
);

/// A Vault.
pub const VAULT: Requirement = Requirement::foreign(
    "vault",
    "LEGATE_VAULT",
    "install Vault, set LEGATE_VAULT to the program, or install Go 1.26 and run `cargo xtask vault`",
);

/// What a test lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Missing {
    name: &'static str,
    reason: String,
    how: &'static str,
}

impl Requirement {
    /// A program of another project, which is only started by its path.
    const fn foreign(name: &'static str, variable: &'static str, how: &'static str) -> Self {
        Self {
            name,
            how,
            program: Some(Program {
                name,
                variable: Some(variable),
            }),
            probe: &[],
        }
    }

    /// The program's path if there is a program, or the reason why the requirement is not met.
    fn check(
        &self,
        user: Uid,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Option<PathBuf>, String> {
        let found = match &self.program {
            None if !user.is_root() => return Err(format!("the tests run as user {user}")),
            None => None,
            Some(program) => Some(program.find(environment)?),
        };
        match self.probe {
            [name, arguments @ ..] if user.is_root() => probe(name, arguments).map(|()| found),
            _ => Ok(found),
        }
    }

    /// The result of [`Self::check`], which is determined once in a process.
    fn checked(&self) -> Result<Option<PathBuf>, Missing> {
        static KNOWN: Mutex<BTreeMap<&str, Result<Option<PathBuf>, String>>> =
            Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().expect("no check panics");
        let result = known
            .entry(self.name)
            .or_insert_with(|| self.check(geteuid(), &variable));
        result.clone().map_err(|reason| Missing {
            name: self.name,
            reason,
            how: self.how,
        })
    }
}

impl Program {
    /// The program in the variable, or the first on `PATH`.
    fn find(&self, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
        let set = |variable| environment(variable).filter(|value| !value.is_empty());
        if let Some(variable) = self.variable
            && let Some(named) = set(variable).map(PathBuf::from)
        {
            return match named.is_file() {
                true => Ok(named),
                false => Err(format!(
                    "{variable} is {}, which is not a file",
                    named.display()
                )),
            };
        }
        let path = set("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path)
            .map(|folder| folder.join(self.name))
            .find(|file| file.is_file());
        found.ok_or_else(|| format!("there is no {} on PATH", self.name))
    }
}

/// Runs a command that shows whether something works.
fn probe(name: &str, arguments: &[&str]) -> Result<(), String> {
    let done = Command::new(name).args(arguments).output();
    let done = done.map_err(|error| format!("cannot start {name}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let first = said.lines().find(|line| !line.trim().is_empty());
    let command = [&[name], arguments].concat().join(" ");
    Err(format!(
        "`{command}` fails: {}",
        first.unwrap_or("without a message").trim()
    ))
}

/// Whether the machine has all of these. If not, the calling test has been recorded as left out and must return.
///
/// # Panics
///
/// If the test must not be left out, with what is missing and how to have it.
#[must_use]
pub fn met(requirements: &[Requirement]) -> bool {
    let checked = requirements.iter().map(|requirement| requirement.checked());
    let missing: Vec<Missing> = checked.filter_map(Result::err).collect();
    if !missing.is_empty() {
        leave_out(&missing);
    }
    missing.is_empty()
}

/// The path of a required program; `None` if the calling test has been recorded as left out and must return.
///
/// # Panics
///
/// As [`met`], and if the requirement is not a program.
#[must_use]
pub fn program(requirement: Requirement) -> Option<PathBuf> {
    match requirement.checked() {
        Ok(path) => Some(path.expect("the requirement is a program")),
        Err(missing) => {
            leave_out(&[missing]);
            None
        }
    }
}

/// A test, in the words of `tests/may-be-left-out`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Test {
    /// The folder of its package, relative to the repository, and the name of its program.
    target: String,
    /// Its name in that program.
    name: String,
}

impl Test {
    /// The test that this thread runs.
    fn current(program: &Path, folder: &Path) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let root = root.expect("this crate is in a folder of the repository");
        let folder = folder.strip_prefix(root).unwrap_or(folder);
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        // Cargo appends a hash.
        let target = file.rsplit_once('-').map_or(&*file, |(name, _)| name);
        let thread = std::thread::current();
        Self {
            target: format!("{}/{target}", folder.display()),
            name: thread.name().unwrap_or("main").to_owned(),
        }
    }
}

/// Records that the test of this thread is left out.
fn leave_out(missing: &[Missing]) {
    let program = std::env::current_exe().expect("this program has a file");
    let folder = std::env::current_dir().expect("there is a working directory");
    let test = Test::current(&program, &folder);
    let strict = variable(STRICT).is_some_and(|value| value == "1");
    if let Err(refusal) = may_leave_out(&test, missing, strict, ALLOWED) {
        panic!("{refusal}");
    }
    let Some(records) = variable(RECORDS).filter(|path| !path.is_empty()) else {
        // Not a macro, whose output the test harness captures.
        let _ = writeln!(std::io::stderr(), "{}", sentence(&test, missing));
        return;
    };
    let parts = missing
        .iter()
        .map(|part| json!({"name": part.name, "reason": part.reason, "how": part.how}));
    let record = json!({
        "program": program,
        "folder": folder,
        "target": test.target,
        "test": test.name,
        "missing": parts.collect::<Vec<_>>(),
    });
    let file = OpenOptions::new().append(true).create(true).open(&records);
    let written = file.and_then(|mut file| file.write_all(format!("{record}\n").as_bytes()));
    if let Err(error) = written {
        panic!("{} ({RECORDS}): {error}", Path::new(&records).display());
    }
}

/// An error if the test must not be left out.
fn may_leave_out(
    test: &Test,
    missing: &[Missing],
    strict: bool,
    allowed: &str,
) -> Result<(), String> {
    let is_allowed = |part: &Missing| {
        let expected = [part.name, &*test.target, &*test.name];
        allowed
            .lines()
            .any(|line| line.split_whitespace().eq(expected))
    };
    if !strict || missing.iter().all(is_allowed) {
        return Ok(());
    }
    Err(format!(
        "{}; with {STRICT}=1 only tests in tests/may-be-left-out are left out",
        sentence(test, missing)
    ))
}

fn sentence(test: &Test, missing: &[Missing]) -> String {
    let parts = missing
        .iter()
        .map(|part| format!("{}: {}: {}", part.name, part.reason, part.how));
    format!(
        "LEFT OUT: {} {}: it needs {}",
        test.target,
        test.name,
        parts.collect::<Vec<_>>().join("; ")
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "the environment selects the programs of tests"
)]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    const USER: Uid = Uid::from_raw(1000);

    fn consul(variables: &[(&str, &str)]) -> Result<Option<PathBuf>, String> {
        CONSUL.check(USER, &|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn a_program_is_the_named_one_or_on_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("consul");
        let path = ("PATH", folder.path().to_str().unwrap());
        let named = ("LEGATE_CONSUL", program.to_str().unwrap());
        assert_eq!(
            consul(&[path]),
            Err("there is no consul on PATH".to_owned())
        );
        assert!(consul(&[named]).unwrap_err().contains("is not a file"));

        std::fs::write(&program, "").unwrap();
        assert_eq!(consul(&[path]), Ok(Some(program.clone())));
        assert_eq!(consul(&[named]), Ok(Some(program.clone())));
        assert_eq!(consul(&[path, ("LEGATE_CONSUL", "")]), Ok(Some(program)));
    }

    #[test]
    fn rights_and_the_kernel_are_probed_by_use() {
        let nothing = |_: &str| None;
        let error = ROOT.check(USER, &nothing).unwrap_err();
        assert_eq!(error, "the tests run as user 1000");
        let failing = Requirement {
            probe: &["sh", "-c", "echo 'no such table' >&2; exit 1"],
            ..ROOT
        };
        let error = failing.check(Uid::from_raw(0), &nothing).unwrap_err();
        assert!(error.ends_with("fails: no such table"), "{error}");
        let absent = Requirement {
            probe: &["legate-no-such-program"],
            ..ROOT
        };
        let error = absent.check(Uid::from_raw(0), &nothing).unwrap_err();
        assert!(
            error.contains("cannot start legate-no-such-program"),
            "{error}"
        );
    }

    fn missing(name: &'static str) -> Missing {
        Missing {
            name,
            reason: "there is none".to_owned(),
            how: "install it",
        }
    }

    #[test]
    fn strict_runs_leave_out_only_listed_tests() {
        let test = Test {
            target: "tests/interop".to_owned(),
            name: "dns::a".to_owned(),
        };
        let list = "# why\nconsul tests/interop dns::a\n";
        let (consul, nft) = (missing("consul"), missing("nft"));
        let refused = |missing: &[Missing], strict| may_leave_out(&test, missing, strict, list);
        assert_eq!(refused(from_ref(&nft), false), Ok(()));
        assert_eq!(refused(from_ref(&consul), true), Ok(()));
        let error = refused(&[consul, nft], true).unwrap_err();
        for part in ["tests/interop dns::a", "nft: there is none: install it"] {
            assert!(error.contains(part), "{error}");
        }
        let other = Test {
            name: "dns::ab".to_owned(),
            ..test.clone()
        };
        assert!(may_leave_out(&other, &[missing("consul")], true, list).is_err());
    }

    #[test]
    fn a_test_is_named_by_folder_program_and_thread() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let program = root.join("target/debug/deps/interop-0123456789abcdef");
        let test = Test::current(&program, &root.join("tests"));
        assert_eq!(test.target, "tests/interop");
        let name = "requirement::tests::a_test_is_named_by_folder_program_and_thread";
        assert_eq!(test.name, name);
    }

    /// The work of the next test's child.
    #[test]
    #[ignore = "run by another test"]
    fn child() {
        let absent = Requirement::foreign("absent", "LEGATE_ABSENT", "write it");
        assert!(program(absent).is_none());
        assert!(!met(&[absent]));
    }

    /// Runs `child` with the variables; returns whether it passed, and its standard error.
    fn run_child(variables: &[(&str, &Path)]) -> (bool, String) {
        let done = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "requirement::tests::child", "--ignored"])
            .env_remove(STRICT)
            .env_remove(RECORDS)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let said = [done.stdout, done.stderr].concat();
        (
            done.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    #[test]
    fn a_test_that_is_left_out_is_recorded_printed_or_fails() {
        let sentence = "LEFT OUT: crates/testkit/legate_testkit requirement::tests::child: it needs absent: \
                        there is no absent on PATH: write it";
        let (passed, said) = run_child(&[]);
        assert!(passed && said.contains(sentence), "{said}");

        let folder = tempfile::tempdir().unwrap();
        let records = folder.path().join("records");
        let (passed, said) = run_child(&[(RECORDS, &records)]);
        assert!(passed && !said.contains("LEFT OUT"), "{said}");
        let lines = std::fs::read_to_string(&records).unwrap();
        assert_eq!(lines.lines().count(), 2, "{lines}");
        let line = lines.lines().next().unwrap();
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["test"], "requirement::tests::child");
        assert_eq!(record["missing"][0]["how"], "write it");

        let (passed, said) = run_child(&[(STRICT, Path::new("1"))]);
        assert!(!passed && said.contains(sentence), "{said}");
    }
}
