//! Resolves the configured addresses to servers' addresses, once. The machine decides when. Results
//! are not cached.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, copy, sink};
use tokio::net::lookup_host;
use tokio::process::Command;
use tokio::time::timeout;

use crate::addresses::{Addresses, without_zone};
use crate::error::{ErrorKind, SessionError};

/// Time limit of a look-up or a command.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of concurrent look-ups.
const LOOKUPS: usize = 8;
/// Maximum number of bytes of a command's output.
const OUTPUT: u64 = 64 * 1024;
/// Maximum number of bytes of a command's standard error that are shown.
const STDERR: usize = 1024;

/// Servers with the host that resolved to them; `None` if a command printed the address.
pub(crate) type ResolvedServers = BTreeMap<SocketAddr, Option<Arc<str>>>;

/// Resolves addresses of servers.
pub(crate) async fn resolve(
    addresses: &Addresses,
    port: u16,
) -> Result<ResolvedServers, SessionError> {
    let found = match addresses {
        Addresses::Hosts(hosts) => look_up_all(hosts, port).await,
        Addresses::Exec(words) => from_command(words, port).await.map_err(|reason| {
            let program = words.first().map(String::as_str).unwrap_or_default();
            format!("cannot find servers with the command {program:?} (-addresses): {reason}")
        }),
    };
    found.map_err(|text| SessionError::new(ErrorKind::Server, None, text))
}

/// Looks up all hosts. Those that do not resolve are ignored as long as another one does. An
/// address of several hosts is assigned to the first of them.
async fn look_up_all(hosts: &[String], port: u16) -> Result<ResolvedServers, String> {
    let lookups = stream::iter(hosts.to_vec()).map(|host| async move {
        let found = look_up(&host, port).await;
        (Arc::<str>::from(host), found)
    });
    let mut lookups = lookups.buffered(LOOKUPS);
    let mut found = ResolvedServers::new();
    let mut failed = Vec::new();
    while let Some((host, result)) = lookups.next().await {
        match result {
            Ok(servers) => {
                for server in servers {
                    found
                        .entry(server)
                        .or_insert_with(|| Some(Arc::clone(&host)));
                }
            }
            Err(reason) => failed.push((host, reason)),
        }
    }
    if found.is_empty() {
        let reasons = match failed.as_slice() {
            [(_, reason)] => reason.clone(),
            several => {
                let several = several
                    .iter()
                    .map(|(host, reason)| format!("{host}: {reason}"));
                several.collect::<Vec<_>>().join("; ")
            }
        };
        let hosts = hosts.join(",");
        return Err(format!(
            "cannot find servers: {hosts:?} (-addresses) does not resolve: {reasons}"
        ));
    }
    for (host, reason) in failed {
        tracing::warn!(
            target: "server-connection-manager",
            %host,
            reason,
            "failed to resolve one of several server addresses; going on with the others"
        );
    }
    Ok(found)
}

async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found: Vec<_> = match timeout(DEADLINE, lookup_host((host, port))).await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer within {DEADLINE:?}")),
    };
    match found.is_empty() {
        true => Err("it has no addresses".to_owned()),
        false => Ok(found),
    }
}

/// Runs a command and parses the addresses that it prints.
async fn from_command(words: &[String], port: u16) -> Result<ResolvedServers, String> {
    match timeout(DEADLINE, run(words)).await {
        Ok(output) => parse(&output?, port).await,
        Err(_) => Err(format!("it did not end within {DEADLINE:?} and was killed")),
    }
}

/// Runs the command to its end and returns its output.
async fn run(words: &[String]) -> Result<String, String> {
    let (program, arguments) = words.split_first().ok_or("there is no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| not_started(program, &error))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr, status) = tokio::join!(read(stdout), read(stderr), child.wait());
    let status = status.map_err(|error| format!("it cannot be waited for: {error}"))?;
    if !status.success() {
        let mut reason = format!("it ended with {}", describe(status));
        let text = excerpt(&stderr);
        if !text.is_empty() {
            reason = format!("{reason}: {text}");
        }
        return Err(reason);
    }
    if stdout.len() as u64 > OUTPUT {
        return Err(format!("it printed more than {OUTPUT} bytes"));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Why a command could not be started, with advice.
fn not_started(program: &str, error: &io::Error) -> String {
    let advice = match (error.kind(), program) {
        // Consul's documentation recommends it, but only some images contain it.
        (io::ErrorKind::NotFound, "discover") => {
            "; it is HashiCorp's go-discover: put it on PATH, or use the image's target with-discover"
        }
        (io::ErrorKind::NotFound, _) => "; put it on PATH, or name it with its whole path",
        _ => "",
    };
    format!("it cannot be started: {error}{advice}")
}

/// The beginning of a command's standard error.
fn excerpt(stderr: &[u8]) -> String {
    let more = if stderr.len() > STDERR { " …" } else { "" };
    let text = String::from_utf8_lossy(&stderr[..stderr.len().min(STDERR)]);
    format!("{}{more}", text.trim())
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}

/// Reads the output, truncated to one byte more than [`OUTPUT`]. Reads to the end in any case, so
/// that the command can exit.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut pipe) = pipe {
        // A pipe that cannot be read any more counts as ended.
        let _ = (&mut pipe).take(OUTPUT + 1).read_to_end(&mut kept).await;
        let _ = copy(&mut pipe, &mut sink()).await;
    }
    kept
}

/// Parses IP addresses separated by white space, optionally in double quotes.
async fn parse(output: &str, port: u16) -> Result<ResolvedServers, String> {
    let mut found = ResolvedServers::new();
    for word in output.split_whitespace() {
        let word = word
            .strip_prefix('"')
            .and_then(|word| word.strip_suffix('"'))
            .unwrap_or(word);
        if without_zone(word).parse::<IpAddr>().is_err() {
            return Err(format!("it printed {word:?}, which is not an IP address"));
        }
        // The system resolves zones, which name network interfaces.
        let servers = look_up(word, port).await?;
        found.extend(servers.into_iter().map(|server| (server, None)));
    }
    if found.is_empty() {
        return Err("it printed no addresses".to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(addresses: &str) -> Result<Vec<String>, String> {
        let addresses: Addresses = addresses.parse().unwrap();
        let found = resolve(&addresses, 8502).await;
        found
            .map(|found| found.keys().map(ToString::to_string).collect())
            .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn an_ip_address_is_itself() {
        assert_eq!(of("10.1.2.3").await.unwrap(), ["10.1.2.3:8502"]);
        assert_eq!(of("::1").await.unwrap(), ["[::1]:8502"]);
        assert_eq!(of("fe80::1%1").await.unwrap(), ["[fe80::1%1]:8502"]);
    }

    #[tokio::test]
    async fn several_hosts_are_all_servers_each_under_its_own_name() {
        let addresses: Addresses = "10.0.0.2,[::1],localhost 10.0.0.1".parse().unwrap();
        let found = resolve(&addresses, 8502).await.unwrap();
        let host = |server: &str| found[&server.parse().unwrap()].as_deref();
        assert_eq!(host("10.0.0.1:8502"), Some("10.0.0.1"));
        assert_eq!(host("10.0.0.2:8502"), Some("10.0.0.2"));
        assert_eq!(host("127.0.0.1:8502"), Some("localhost"));
        assert_eq!(
            host("[::1]:8502"),
            Some("::1"),
            "the first host that has it"
        );
    }

    #[tokio::test]
    async fn one_host_that_resolves_is_enough() {
        assert_eq!(
            of("no-such-host.invalid,10.0.0.1").await.unwrap(),
            ["10.0.0.1:8502"]
        );
        let error = of("no-such-a.invalid no-such-b.invalid").await.unwrap_err();
        assert!(
            error.contains("no-such-a.invalid: ") && error.contains("no-such-b.invalid: "),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_is_named() {
        assert!(
            of("no-such-host.invalid")
                .await
                .unwrap_err()
                .contains("\"no-such-host.invalid\"")
        );
    }

    #[tokio::test]
    async fn a_command_prints_addresses() {
        let found = of("exec=echo 10.0.0.2 \"10.0.0.1\" ::1 10.0.0.2 fe80::1%1")
            .await
            .unwrap();
        assert_eq!(
            found,
            [
                "10.0.0.1:8502",
                "10.0.0.2:8502",
                "[::1]:8502",
                "[fe80::1%1]:8502"
            ]
        );
    }

    #[tokio::test]
    async fn errors_of_a_command_are_reported() {
        assert!(of("exec=true").await.unwrap_err().contains("no addresses"));
        assert!(
            of("exec=echo 10.0.0.1:8502")
                .await
                .unwrap_err()
                .contains("\"10.0.0.1:8502\"")
        );
        for (command, advice) in [
            ("exec=/no/such/program", "name it with its whole path"),
            ("exec=/no/such/discover", "name it with its whole path"),
        ] {
            let failed = of(command).await.unwrap_err();
            assert!(failed.contains("cannot be started"), "{failed}");
            assert!(failed.contains(advice), "{failed}");
        }
        let missing = not_started("discover", &io::ErrorKind::NotFound.into());
        assert!(missing.contains("with-discover"), "{missing}");
        let secret = of("exec=false provider=aws secret_access_key=hidden")
            .await
            .unwrap_err();
        assert!(
            secret.contains("\"false\"") && secret.ends_with("exit code 1"),
            "{secret}"
        );
        let failed = of("exec=ls --no-such-option").await.unwrap_err();
        assert!(failed.contains("exit code 2: ls: "), "{failed}");
        let long = of("exec=find /no/such/a /no/such/b -name x")
            .await
            .unwrap_err();
        assert!(long.contains("exit code 1: find"), "{long}");
        assert_eq!(excerpt(&[b'x'; 2000]).len(), STDERR + " …".len());
        assert!(
            of("exec=head -c 70000 /dev/zero")
                .await
                .unwrap_err()
                .contains("more than 65536 bytes")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_hangs_is_killed() {
        // The clock is paused, so the deadline expires at once.
        assert!(
            of("exec=sleep 1000")
                .await
                .unwrap_err()
                .contains("was killed")
        );
    }
}
