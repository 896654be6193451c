//! `legate config`: reads and writes config entries over HTTP, with the flags of `consul config`.

mod dry_run;

use std::ffi::OsString;
use std::io::Read;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::{Args, Subcommand};
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use legate_model::{ConfigEntry, hcl, json};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::http_client;

/// How long a request may take, connecting included.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Largest answer that is read, in bytes.
const SIZE_LIMIT: usize = 64 << 20;
/// Largest entry that is read, in bytes: what servers take.
const ENTRY_LIMIT: u64 = 512 * 1024;

/// The header in which a server names the fields of a write that have no effect.
const NOT_SERVED: &str = "x-legate-not-served";

/// What is done with config entries.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the config entry of a file, in HCL or JSON
    Write(Write),
    /// Print a config entry as JSON
    Read(One),
    /// Print the names of the config entries of a kind
    List(List),
    /// Delete a config entry
    Delete(Delete),
}

/// Where the API is.
#[derive(Args)]
struct Api {
    /// Address of a server's HTTP API, as host:port or http://host:port
    #[arg(long, env = "CONSUL_HTTP_ADDR", default_value = "127.0.0.1:8500")]
    http_addr: String,
    /// ACL token
    #[arg(
        long,
        env = "CONSUL_HTTP_TOKEN",
        hide_env_values = true,
        default_value = ""
    )]
    token: String,
}

#[derive(Args)]
struct Write {
    /// The file, or - for standard input
    file: String,
    /// Write only if the stored entry has the modify index of -modify-index; 0: if there is none
    #[arg(long)]
    cas: bool,
    /// The modify index for -cas
    #[arg(long, default_value_t = 0)]
    modify_index: u64,
    /// Print what the write would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    api: Api,
}

#[derive(Args)]
struct One {
    /// The entry's kind, such as service-router
    #[arg(long)]
    kind: String,
    /// The entry's name
    #[arg(long)]
    name: String,
    #[command(flatten)]
    api: Api,
}

#[derive(Args)]
struct List {
    /// The kind, such as service-router
    #[arg(long)]
    kind: String,
    /// Which entries, in Consul's filter language
    #[arg(long)]
    filter: Option<String>,
    #[command(flatten)]
    api: Api,
}

#[derive(Args)]
struct Delete {
    #[command(flatten)]
    one: One,
    /// Delete only if the entry has the modify index of -modify-index
    #[arg(long)]
    cas: bool,
    /// The modify index for -cas
    #[arg(long, default_value_t = 0)]
    modify_index: u64,
    /// Print what the removal would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Consul's flags have one dash; those of `legate config` may have.
pub(crate) fn with_two_dashes(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_none_or(|command| command != "config") {
        return args;
    }
    for arg in args.iter_mut().skip(2) {
        let flag = arg.to_str().and_then(|text| text.strip_prefix('-'));
        let long =
            |flag: &&str| flag.len() > 1 && flag.starts_with(|c: char| c.is_ascii_lowercase());
        if let Some(flag) = flag.filter(long) {
            *arg = format!("--{flag}").into();
        }
    }
    args
}

/// Does it, and prints the outcome.
///
/// # Errors
///
/// When the file cannot be read, the server cannot be asked, or it refuses.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    match options.command {
        Command::Write(options) => write(options).await,
        Command::Read(one) => {
            let entry = one.api.ask(Method::GET, &one.path(), None).await?;
            println!("{}", serde_json::to_string_pretty(&entry)?);
            Ok(())
        }
        Command::List(list) => {
            let mut path = format!("/v1/config/{}", encoded(&list.kind));
            if let Some(filter) = &list.filter {
                path.push_str(&format!("?filter={}", encoded(filter)));
            }
            let entries = list.api.ask(Method::GET, &path, None).await?;
            for entry in entries.as_array().into_iter().flatten() {
                println!("{}", entry["Name"].as_str().unwrap_or_default());
            }
            Ok(())
        }
        Command::Delete(options) => delete(options).await,
    }
}

async fn write(options: Write) -> anyhow::Result<()> {
    let entry = read(&options.file)?;
    let path = with_parameters(
        "/v1/config",
        options.cas,
        options.modify_index,
        options.dry_run,
    );
    let written = options.api.ask(Method::PUT, &path, Some(&entry)).await?;
    if options.dry_run {
        print!("{}", dry_run::text(&written));
        return Ok(());
    }
    let text = |name: &str| entry[name].as_str().unwrap_or_default();
    let entry = format!("{}/{}", text("Kind"), text("Name"));
    ensure!(
        written != Value::Bool(false),
        "the config entry {entry} has another modify index than -modify-index, and was not written"
    );
    println!("Config entry written: {entry}");
    Ok(())
}

async fn delete(options: Delete) -> anyhow::Result<()> {
    let one = &options.one;
    let path = with_parameters(
        &one.path(),
        options.cas,
        options.modify_index,
        options.dry_run,
    );
    let removed = one.api.ask(Method::DELETE, &path, None).await?;
    if options.dry_run {
        print!("{}", dry_run::text(&removed));
        return Ok(());
    }
    let entry = format!("{}/{}", one.kind, one.name);
    ensure!(
        removed != Value::Bool(false),
        "the config entry {entry} has another modify index than -modify-index, and was not deleted"
    );
    println!("Config entry deleted: {entry}");
    Ok(())
}

fn with_parameters(path: &str, cas: bool, modify_index: u64, dry_run: bool) -> String {
    let cas = cas.then(|| format!("cas={modify_index}"));
    let dry_run = dry_run.then(|| "dry-run".to_owned());
    let all: Vec<String> = cas.into_iter().chain(dry_run).collect();
    match all.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", all.join("&")),
    }
}

/// The entry of a file as the API takes it.
fn read(file: &str) -> anyhow::Result<Value> {
    let reading = || format!("cannot read {file}");
    let mut text = String::new();
    let source: Box<dyn Read> = match file {
        "-" => Box::new(std::io::stdin()),
        path => Box::new(std::fs::File::open(path).with_context(reading)?),
    };
    let mut source = source.take(ENTRY_LIMIT + 1);
    source.read_to_string(&mut text).with_context(reading)?;
    ensure!(
        text.len() as u64 <= ENTRY_LIMIT,
        "{file} is longer than the {ENTRY_LIMIT} bytes that servers take"
    );
    entry_of(&text).with_context(|| format!("{file} is no config entry"))
}

fn entry_of(text: &str) -> anyhow::Result<Value> {
    let value = hcl::to_json(text)?;
    let entry = json::from_hcl::<ConfigEntry>(value)?;
    Ok(serde_json::to_value(entry.value)?)
}

#[expect(
    clippy::print_stderr,
    reason = "a warning is no part of what is asked for"
)]
fn warn(not_served: &str) {
    for field in not_served.split(", ") {
        eprintln!("warning: {field} is not served and has no effect");
    }
}

/// A part of a URL.
fn encoded(text: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    let of = |byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(of).collect()
}

impl One {
    fn path(&self) -> String {
        format!("/v1/config/{}/{}", encoded(&self.kind), encoded(&self.name))
    }
}

impl Api {
    /// The server's answer.
    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let at = self.http_addr.as_str();
        if at.starts_with("https://") || at.starts_with("unix://") {
            bail!("-http-addr {at} is not served: use host:port of the HTTP API without TLS");
        }
        let host = at
            .strip_prefix("http://")
            .unwrap_or(at)
            .trim_end_matches('/');
        let mut request = Request::builder()
            .method(&method)
            .uri(path)
            .header(header::HOST, host);
        if !self.token.is_empty() {
            request = request.header("x-consul-token", &self.token);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)))?;
        let exchange = async {
            let stream = TcpStream::connect(host).await?;
            http_client::exchange_with_head(stream, request, SIZE_LIMIT).await
        };
        let answer = tokio::time::timeout(TIME_LIMIT, exchange).await;
        let answer = answer.context("no answer in time").flatten();
        let answer = answer.with_context(|| format!("{method} http://{host}{path}"))?;
        ensure!(
            answer.status() == StatusCode::OK,
            "the server {host} answered {}: {}",
            answer.status(),
            String::from_utf8_lossy(answer.body()).trim()
        );
        if let Some(fields) = answer.headers().get(NOT_SERVED) {
            warn(&String::from_utf8_lossy(fields.as_bytes()));
        }
        Ok(serde_json::from_slice(answer.body())?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_are_read_in_both_languages_and_spellings() {
        let hcl = r#"
            Kind = "service-router"
            Name = "web"
            Routes = [
              {
                Match { HTTP { PathPrefix = "/x" } }
                Destination { Service = "api" }
              },
            ]
        "#;
        let blocks = r#"
            kind = "service-splitter"
            name = "web"
            splits { weight = 90 }
            splits { weight = 10 service = "canary" }
        "#;
        let entry = entry_of(hcl).expect("an entry");
        assert_eq!(entry["Routes"][0]["Destination"]["Service"], "api");
        let entry = entry_of(blocks).expect("an entry");
        assert_eq!(entry["Kind"], "service-splitter");
        assert_eq!(entry["Splits"][1]["Service"], "canary");
        let text = json!({"kind": "service-defaults", "name": "web", "protocol": "http"});
        assert_eq!(
            entry_of(&text.to_string()).expect("one")["Protocol"],
            "http"
        );
        let error = entry_of("Kind = \"service-defaults\" Name = \"web\" Protcol = \"http\"");
        assert!(format!("{error:?}").contains("Protcol"), "{error:?}");
    }

    #[test]
    fn paths_and_flags_are_those_of_consul() {
        let args = [
            "legate",
            "config",
            "write",
            "-cas",
            "-modify-index=3",
            "-",
            "--token",
            "x",
        ];
        let args = with_two_dashes(args.map(OsString::from).to_vec());
        let expected = [
            "legate",
            "config",
            "write",
            "--cas",
            "--modify-index=3",
            "-",
            "--token",
            "x",
        ];
        assert_eq!(args, expected.map(OsString::from));
        assert_eq!(
            with_parameters("/v1/config", true, 3, true),
            "/v1/config?cas=3&dry-run"
        );
        assert_eq!(encoded("a b/*"), "a%20b%2F%2A");
    }
}
