//! `legate config`: output of writes.

use std::process::Output;

use tokio::process::Command;

use crate::agent::Agent;

async fn legate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    let command = command.arg("config").args(args).kill_on_drop(true);
    command.output().await.expect("legate runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn fields_without_an_effect_are_warnings() {
    let agent = Agent::start("").await;
    let address = format!("-http-addr={}", agent.http);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("web.hcl");
    let entry = r#"
        Kind = "service-defaults"
        Name = "web"
        EnvoyExtensions = [
          { Name = "builtin/lua", EnvoyVersion = ">= 1.30", ConsulVersion = ">= 1.20"
            Arguments = { Script = "x", Listener = "inbound" } },
        ]
    "#;
    std::fs::write(&file, entry).expect("a file");
    let file = file.display().to_string();
    for dry_run in [true, false] {
        let flag = dry_run.then_some("-dry-run");
        let args: Vec<&str> = ["write", &address].into_iter().chain(flag).collect();
        let write = legate(&[args.as_slice(), &[&file]].concat()).await;
        assert!(write.status.success(), "{}", text(&write.stderr));
        let mut warnings: Vec<String> = text(&write.stderr).lines().map(str::to_owned).collect();
        warnings.sort();
        assert_eq!(
            warnings,
            [
                "warning: EnvoyExtensions[0].ConsulVersion is not supported and has no effect",
                "warning: EnvoyExtensions[0].EnvoyVersion is not supported and has no effect",
            ]
        );
        let out = text(&write.stdout);
        assert_eq!(out.contains("Config entry written"), !dry_run, "{out}");
    }
}

#[tokio::test]
async fn a_gateway_that_nobody_runs_is_a_warning() {
    let agent = Agent::start("").await;
    let address = format!("-http-addr={}", agent.http);
    let directory = tempfile::tempdir().expect("a directory");
    let write = async |entry: &str| {
        let file = directory.path().join("entry.hcl");
        std::fs::write(&file, entry).expect("a file");
        let written = legate(&["write", &address, &file.display().to_string()]).await;
        assert!(written.status.success(), "{}", text(&written.stderr));
        text(&written.stderr)
    };
    let gateway = r#"
        Kind = "api-gateway"
        Name = "edge"
        Listeners = [{ Name = "one", Port = 8080, Protocol = "http" }]
    "#;
    let warning = write(gateway).await;
    assert!(
        warning.contains("no instance of the api-gateway \"edge\" is registered"),
        "{warning}"
    );
    let route = r#"
        Kind = "http-route"
        Name = "r"
        Parents = [{ Name = "edge" }]
    "#;
    let warning = write(route).await;
    assert!(warning.contains("the api-gateway \"edge\""), "{warning}");
    let file = directory.path().join("edge.hcl");
    let service = r#"service { name = "edge", kind = "api-gateway", port = 8443 }"#;
    std::fs::write(&file, service).expect("a file");
    let mut register = Command::new(env!("CARGO_BIN_EXE_legate"));
    register.args(["services", "register", &address]).arg(&file);
    assert!(register.status().await.expect("legate runs").success());
    assert_eq!(write(gateway).await, "");
    assert_eq!(write(route).await, "");
}
