//! Clients in other languages, and consul-template: each is fetched from its registry, and tested by a
//! script of `tests/interop/clients` against an agent of its own.

use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};

use super::Environment;
use super::agent::Agent;
use crate::workspace::run;

/// The client for Python, from PyPI.
const PYTHON: &str = "py-consul==1.8.0";
/// The client for Node.js, from the npm registry.
const NODE: &str = "consul@2.0.1";
/// consul-template, from the Go module proxy.
const TEMPLATE: &str = "github.com/hashicorp/consul-template@v0.41.1";

/// `py-consul` for Python.
pub(super) fn python(place: &Environment) -> anyhow::Result<()> {
    let folder = place.folder.join("python");
    let python = folder.join("bin/python");
    if !python.is_file() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        PYTHON,
    ];
    run(Command::new(&python).args(pip))?;
    script(place, Command::new(&python), "python.py")
}

/// `consul` for Node.js.
pub(super) fn node(place: &Environment) -> anyhow::Result<()> {
    let folder = place.folder.join("node");
    fs::create_dir_all(&folder)?;
    let install = ["install", "--silent", "--no-audit", "--no-fund", NODE];
    run(Command::new("npm")
        .args(install)
        .arg("--prefix")
        .arg(&folder))
    .context("cannot install the client: install Node.js with npm")?;
    // A script finds packages in its own folder.
    let script_in_repository = place.root.join("tests/interop/clients/node.cjs");
    fs::copy(&script_in_repository, folder.join("node.cjs"))?;
    let agent = Agent::start(place)?;
    run(Command::new("node")
        .arg(folder.join("node.cjs"))
        .arg(agent.address()))
}

fn script(place: &Environment, mut command: Command, name: &str) -> anyhow::Result<()> {
    let agent = Agent::start(place)?;
    command.arg(place.root.join("tests/interop/clients").join(name));
    run(command.arg(agent.address()))
}

/// consul-template renders a template of services, keys and nodes once.
pub(super) fn template(place: &Environment) -> anyhow::Result<()> {
    let program = place.folder.join("consul-template");
    if !program.is_file() {
        let install = Command::new("go")
            .args(["install", TEMPLATE])
            .env("GOBIN", &place.folder)
            .env("CGO_ENABLED", "0")
            .status()
            .context("cannot start go, which compiles consul-template: install Go 1.24 or newer")?;
        ensure!(
            install.success(),
            "go install {TEMPLATE} ended with {install}"
        );
    }
    let agent = Agent::start(place)?;
    let consul = |args: &[&str]| {
        run(Command::new(place.consul())
            .args(args)
            .env("CONSUL_HTTP_ADDR", agent.address()))
    };
    consul(&["kv", "put", "app/limits/rate", "100"])?;
    consul(&["kv", "put", "app/limits/burst", "20"])?;
    let service = [
        "services",
        "register",
        "-name=web",
        "-port=8080",
        "-tag=v1",
        "-address=127.0.0.9",
    ];
    consul(&service)?;
    let (input, output) = (
        place.root.join("tests/interop/clients/template.ctmpl"),
        place.folder.join("template.out"),
    );
    // Removes the output of an earlier run.
    let _ = fs::remove_file(&output);
    run(Command::new(&program)
        .args(["-once", "-log-level", "err", "-consul-addr"])
        .arg(agent.address())
        .arg("-template")
        .arg(format!("{}:{}", input.display(), output.display())))?;
    let (found, expected) = (
        fs::read_to_string(&output)?,
        fs::read_to_string(place.root.join("tests/interop/clients/template.expected"))?,
    );
    ensure!(
        found == expected,
        "consul-template wrote:\n{found}\ninstead of:\n{expected}"
    );
    Ok(())
}
