//! Compares DNS answers for the same catalog, settings and questions. The answers of a real Consul are
//! recorded in `dns/`, and Legate's are compared with them. If a real Consul is available, it is queried
//! again; `LEGATE_RECORD=1` updates the recordings.
//!
//! Each folder has the servers' settings (`agent.hcl`), their catalogs (`catalog.txt`), and questions
//! with answers (`questions.txt`, which explains its format).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use http::Method;
use legate_testkit::envoy::workspace_binary;
use legate_tests::client;
use legate_tests::interop::Pair;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::consul_catalog::consul;

const LIMIT: Duration = Duration::from_secs(5);

/// The number of attempts for a datagram that may be lost.
const ATTEMPTS: usize = 3;

const PORT: u16 = 8600;

const TOKEN: &str = "11111111-2222-3333-4444-555555555555";

const DIFFERS: &str = "differs: ";

#[tokio::test]
async fn defaults_as_recorded() {
    replay("defaults", "127.0.77.21").await;
}

#[tokio::test]
async fn settings_as_recorded() {
    replay("settings", "127.0.77.22").await;
}

#[tokio::test]
async fn rights_as_recorded() {
    replay("acl", "127.0.77.23").await;
}

#[tokio::test]
async fn consul_answers_as_recorded() {
    let Some(program) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    for (folder, address) in [
        ("defaults", "127.0.77.24"),
        ("settings", "127.0.77.25"),
        ("acl", "127.0.77.26"),
    ] {
        let mut recording = Recording::read(folder);
        let answers = recording.answers(&program, address).await;
        if crate::recorded::set("LEGATE_RECORD") {
            for (entry, answer) in recording.entries.iter_mut().zip(answers) {
                entry.consul = answer;
            }
            recording.write();
            continue;
        }
        let recorded = recording.entries.iter().map(|entry| &entry.consul);
        compare(&recording.entries, recorded, &answers);
    }
}

async fn replay(folder: &str, address: &str) {
    let recording = Recording::read(folder);
    for Entry {
        question,
        consul,
        differs,
    } in &recording.entries
    {
        let is_different = differs.as_ref().is_none_or(|(_, own)| own != consul);
        assert!(
            is_different,
            "{question}: listed as different, and is the same"
        );
    }
    let answers = recording
        .answers(&workspace_binary("legate"), address)
        .await;
    let expected = recording.entries.iter().map(|entry| match &entry.differs {
        Some((_, own)) => own,
        None => &entry.consul,
    });
    compare(&recording.entries, expected, &answers);
}

fn compare<'a>(
    entries: &[Entry],
    expected: impl Iterator<Item = &'a Vec<String>>,
    answers: &[Vec<String>],
) {
    let mut wrong = String::new();
    for ((entry, expected), answer) in entries.iter().zip(expected).zip(answers) {
        if expected != answer {
            let (expected, answer) = (expected.join("\n  "), answer.join("\n  "));
            let _ = writeln!(
                wrong,
                "{}\n  {expected}\nis answered with\n  {answer}\n",
                entry.question
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The recording of one folder.
struct Recording {
    folder: PathBuf,
    /// The header of the file with the questions.
    head: String,
    entries: Vec<Entry>,
}

struct Entry {
    question: String,
    consul: Vec<String>,
    /// The reason for a difference in Legate's answer, and that answer.
    differs: Option<(String, Vec<String>)>,
}

impl Recording {
    fn read(folder: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("interop/dns")
            .join(folder);
        let text = read(&folder, "questions.txt");
        let mut recording = Self {
            folder,
            head: String::new(),
            entries: Vec::new(),
        };
        for line in text.lines() {
            match line.strip_prefix("  ") {
                _ if line.starts_with('#') => {
                    let _ = writeln!(recording.head, "{line}");
                }
                Some(line) => recording.entries.last_mut().expect("a question").add(line),
                None if line.is_empty() => {}
                None => recording.entries.push(Entry {
                    question: line.to_owned(),
                    consul: Vec::new(),
                    differs: None,
                }),
            }
        }
        recording
    }

    fn write(&self) {
        let mut text = self.head.clone();
        for entry in &self.entries {
            let _ = writeln!(text, "\n{}", entry.question);
            for line in &entry.consul {
                let _ = writeln!(text, "  {line}");
            }
            if let Some((reason, own)) = &entry.differs {
                let _ = writeln!(text, "  {DIFFERS}{reason}");
                for line in own {
                    let _ = writeln!(text, "  {line}");
                }
            }
        }
        std::fs::write(self.folder.join("questions.txt"), text).expect("it can be written");
    }

    /// A program's answers to all questions.
    async fn answers(&self, program: &Path, address: &str) -> Vec<Vec<String>> {
        let settings = read(&self.folder, "agent.hcl");
        let (mut server, http) = consul(program, address, &settings).await;
        for line in read(&self.folder, "catalog.txt").lines() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.splitn(3, ' ');
            let (Some(method), Some(path), Some(body)) = (words.next(), words.next(), words.next())
            else {
                panic!("{line}: a method, a path and a body")
            };
            let method: Method = method.parse().expect("a method");
            let body: Value = serde_json::from_str(body).expect("JSON");
            let answer = client::send(method, http, path, Some(TOKEN), Some(&body)).await;
            let (status, text) = answer.expect("an answer");
            assert!(status.is_success(), "{line}: {status} {text}");
        }
        let mut answers = Vec::new();
        for entry in &self.entries {
            answers.push(Asked::read(&entry.question).ask(http.ip()).await);
        }
        server.kill().await.expect("the server ends");
        answers
    }
}

impl Entry {
    fn add(&mut self, line: &str) {
        if let Some(reason) = line.strip_prefix(DIFFERS) {
            self.differs = Some((reason.to_owned(), Vec::new()));
        } else if let Some((_, own)) = &mut self.differs {
            own.push(line.to_owned());
        } else {
            self.consul.push(line.to_owned());
        }
    }
}

fn read(folder: &Path, file: &str) -> String {
    let file = folder.join(file);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A question.
struct Asked {
    message: Vec<u8>,
    tcp: bool,
    /// Whether only the number of answers is compared, because they are a random selection.
    counted: bool,
}

impl Asked {
    fn read(line: &str) -> Self {
        let mut words = line.split(' ');
        let name = Name::from_ascii(words.next().expect("a name")).expect("a name");
        let kind: RecordType = words.next().expect("a type").parse().expect("a type");
        let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name, kind));
        let (mut tcp, mut counted) = (false, false);
        for word in words {
            match word.split_once('=') {
                None if word == "tcp" => tcp = true,
                None if word == "counted" => counted = true,
                Some(("edns", payload)) => {
                    let mut edns = Edns::new();
                    edns.set_max_payload(payload.parse().expect("a number"));
                    message.set_edns(edns);
                }
                Some(("subnet", network)) => {
                    let (ip, prefix) = network.split_once('/').expect("a network");
                    let IpAddr::V4(ip) = ip.parse().expect("an address") else {
                        panic!("{network}: IPv4 only")
                    };
                    let prefix: u8 = prefix.parse().expect("a number");
                    let used = usize::from(prefix).div_ceil(8);
                    let value = [&[0, 1, prefix, 0][..], &ip.octets()[..used]].concat();
                    let mut edns = message.edns.take().unwrap_or_default();
                    edns.options_mut().insert(EdnsOption::Unknown(8, value));
                    message.set_edns(edns);
                }
                _ => panic!("{line}: {word}"),
            }
        }
        Self {
            message: message.to_vec().expect("it can be written"),
            tcp,
            counted,
        }
    }

    /// The answer as lines.
    async fn ask(&self, server: IpAddr) -> Vec<String> {
        let address = SocketAddr::new(server, PORT);
        let reply = match self.tcp {
            true => self.ask_tcp(address).await,
            false => self.ask_udp(address).await,
        };
        let reply = Message::from_vec(&reply).expect("a DNS message");
        self.lines(&reply, server)
    }

    async fn ask_udp(&self, server: SocketAddr) -> Vec<u8> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        socket.connect(server).await.expect("it is reached");
        let mut buffer = vec![0; 65_535];
        for _ in 0..ATTEMPTS {
            socket.send(&self.message).await.expect("it is sent");
            if let Ok(Ok(length)) = timeout(LIMIT, socket.recv(&mut buffer)).await {
                buffer.truncate(length);
                return buffer;
            }
        }
        panic!("{server} does not answer")
    }

    async fn ask_tcp(&self, server: SocketAddr) -> Vec<u8> {
        let exchange = async {
            let mut stream = TcpStream::connect(server).await?;
            let length = u16::try_from(self.message.len()).expect("it is short");
            stream.write_u16(length).await?;
            stream.write_all(&self.message).await?;
            let length = stream.read_u16().await?;
            let mut reply = vec![0; length.into()];
            stream.read_exact(&mut reply).await?;
            Ok::<_, std::io::Error>(reply)
        };
        let reply = timeout(LIMIT, exchange).await;
        reply.expect("in time").expect("an answer")
    }

    fn lines(&self, reply: &Message, server: IpAddr) -> Vec<String> {
        let head = &reply.metadata;
        let mut first = format!("{:?}", head.response_code);
        for (is_set, name) in [
            (head.authoritative, "aa"),
            (head.truncation, "tc"),
            (head.recursion_desired, "rd"),
            (head.recursion_available, "ra"),
        ] {
            if is_set {
                let _ = write!(first, " {name}");
            }
        }
        let mut lines = vec![first];
        for (section, records) in [
            ("answer", &reply.answers),
            ("authority", &reply.authorities),
            ("additional", &reply.additionals),
        ] {
            lines.extend(self.section(section, records, server));
        }
        if let Some(edns) = &reply.edns {
            let mut line = format!("edns {}", edns.max_payload());
            for (_, option) in edns.options().as_ref() {
                let value: Vec<u8> = option.try_into().expect("its bytes");
                let _ = write!(line, " {value:?}");
            }
            lines.push(line);
        }
        lines
    }

    fn section(&self, section: &str, records: &[Record], server: IpAddr) -> Vec<String> {
        if self.counted {
            let mut kinds = BTreeMap::new();
            for record in records {
                *kinds.entry(record.record_type().to_string()).or_insert(0) += 1;
            }
            let line = |(kind, count)| format!("{section} {count} {kind}");
            return kinds.into_iter().map(line).collect();
        }
        let mut lines: Vec<String> = records
            .iter()
            .map(|record| {
                let data = match &record.data {
                    // The serial number is the time.
                    RData::SOA(soa) => format!(
                        "{} {} … {} {} {} {}",
                        soa.mname, soa.rname, soa.refresh, soa.retry, soa.expire, soa.minimum
                    ),
                    data => data.to_string(),
                };
                let (name, kind) = (&record.name, record.record_type());
                let line = format!("{section} {name} {} {kind} {data}", record.ttl);
                hidden(&line.to_lowercase(), server)
            })
            .collect();
        lines.sort();
        lines
    }
}

/// Masks the address of the server, which differs.
fn hidden(line: &str, server: IpAddr) -> String {
    let IpAddr::V4(ip) = server else {
        return line.to_owned();
    };
    let digits = format!("{:08x}", ip.to_bits());
    let line = line.replace(&digits, "<server in hexadecimal>");
    line.replace(&ip.to_string(), "<server>")
}
