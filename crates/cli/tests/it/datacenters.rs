//! Agents of two datacenters that are joined, with the commands of `docs/federation.md`.

use std::path::Path;

use tokio::process::Command;

use crate::agent::Agent;

/// Runs `legate` in a folder. Returns its output, and whether it succeeded.
async fn legate(folder: &Path, agent: Option<&Agent>, arguments: &str) -> (String, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    command.current_dir(folder).args(arguments.split(' '));
    command.env_clear();
    if let Some(agent) = agent {
        command.env("CONSUL_HTTP_ADDR", agent.http.to_string());
    }
    let output = command.output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.success())
}

fn of_datacenter(folder: &Path, name: &str) -> String {
    let folder = folder.display();
    format!(
        r#"
        datacenter = "{name}"
        ports {{ server = 0 }}
        tls {{ internal_rpc {{
          ca_file = "{folder}/consul-agent-ca.pem"
          cert_file = "{folder}/{name}-server-consul-0.pem"
          key_file = "{folder}/{name}-server-consul-0-key.pem"
        }} }}
        "#
    )
}

#[tokio::test]
async fn datacenters_are_joined_and_reached_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for arguments in [
        "tls ca create",
        "tls cert create -server -dc dc1",
        "tls cert create -server -dc dc2",
    ] {
        let (text, done) = legate(folder, None, arguments).await;
        assert!(done, "{arguments}: {text}");
    }
    let one = Agent::start(&of_datacenter(folder, "dc1")).await;
    let secondary = "primary_datacenter = \"dc1\"";
    let two = Agent::start(&format!("{}\n{secondary}", of_datacenter(folder, "dc2"))).await;
    let here = |arguments: String| {
        let one = &one;
        async move { legate(folder, Some(one), &arguments).await }
    };
    let other = two.get("/v1/agent/members?wan=1").await;
    let (address, port) = (&other[0]["Addr"], &other[0]["Port"]);
    let join = format!("join -wan {}:{port}", address.as_str().unwrap());
    let (text, done) = here(join).await;
    assert!(
        done && text.contains("Successfully joined cluster by contacting 1 nodes"),
        "{text}"
    );
    let (members, _) = here("members -wan".to_owned()).await;
    for member in ["n1.dc1", "n1.dc2"] {
        let line = members.lines().find(|line| line.starts_with(member));
        assert!(
            line.is_some_and(|line| line.contains(" alive ")),
            "{members}"
        );
    }
    let (text, done) = here("rtt -wan n1.dc2".to_owned()).await;
    let estimated = "Estimated n1.dc2 <-> n1.dc1 rtt: ";
    assert!(done && text.starts_with(estimated), "{text}");
    assert!(text.contains("(using WAN coordinates)"), "{text}");
    let (text, _) = here("catalog datacenters".to_owned()).await;
    assert_eq!(text, "dc1\ndc2\n");
    let (text, done) = here("kv put -datacenter dc2 greeting hello".to_owned()).await;
    assert!(done, "{text}");
    assert_eq!(
        here("kv get -datacenter dc2 greeting".to_owned()).await.0,
        "hello\n"
    );
    assert_eq!(two.get("/v1/kv/greeting").await[0]["Key"], "greeting");
    assert!(
        !here("kv get greeting".to_owned()).await.1,
        "it is not here"
    );
    // A row of all datacenters, written through the secondary.
    let entry = folder.join("web.hcl");
    let content = "Kind = \"service-defaults\"\nName = \"web\"\nProtocol = \"http\"\n";
    std::fs::write(&entry, content).unwrap();
    let write = format!("config write {}", entry.display());
    let (text, done) = legate(folder, Some(&two), &write).await;
    assert!(done, "{text}");
    let read = "config read -kind service-defaults -name web".to_owned();
    let (text, done) = here(read).await;
    assert!(done && text.contains("http"), "{text}");
    let (text, done) = here("join -wan 127.0.0.1:1".to_owned()).await;
    assert!(!done && text.contains("Failed to join"), "{text}");
    one.stop().await;
    two.stop().await;
}
