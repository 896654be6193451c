//! An application whose behaviour depends on the path of a request, and that counts requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use legate_runtime::{Scope, Spawner};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The delay of `/slow`.
const SLOW: Duration = Duration::from_millis(300);

/// The number of requests for each path.
#[derive(Debug, Default, Clone)]
pub struct Requests(Arc<Mutex<BTreeMap<String, usize>>>);

impl Requests {
    /// The number of requests for a path.
    ///
    /// # Panics
    ///
    /// Never in practice: the lock is not held across a panic.
    #[must_use]
    pub fn to(&self, path: &str) -> usize {
        let seen = self.0.lock().expect("no holder panics");
        seen.get(path).copied().unwrap_or_default()
    }

    fn add(&self, path: &str) {
        let mut seen = self.0.lock().expect("no holder panics");
        *seen.entry(path.to_owned()).or_default() += 1;
    }
}

/// Serves HTTP/1 until the scope ends:
///
/// - `/closes` closes the connection without a response,
/// - `/resets` resets it,
/// - `/half` closes it after the first byte of the body,
/// - `/fails` responds with 503,
/// - `/claims` with 503 and `header`,
/// - `/slow` after a delay,
/// - `/waits` never,
/// - any other path with the instance's name, after the body was received.
///
/// # Panics
///
/// If the address cannot be bound.
pub async fn serve(
    instance: &str,
    address: SocketAddr,
    header: &'static str,
    requests: &Requests,
    scope: &Scope,
) {
    let listener = TcpListener::bind(address)
        .await
        .expect("the address is free");
    let (stop, spawner) = (scope.token(), scope.spawner());
    let application = Application {
        instance: instance.to_owned(),
        header,
        requests: requests.clone(),
    };
    scope.spawn(format!("app {instance}"), async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok::<(), std::io::Error>(()),
                accepted = listener.accept() => application.clone().start(accepted?.0, &spawner),
            }
        }
    });
}

#[derive(Clone)]
struct Application {
    instance: String,
    header: &'static str,
    requests: Requests,
}

impl Application {
    fn start(self, stream: TcpStream, spawner: &Spawner) {
        let stop = spawner.token();
        spawner.spawn(format!("connection of {}", self.instance), async move {
            let mut stream = BufReader::new(stream);
            // A disconnected caller is not a failure of the application.
            tokio::select! {
                () = stop.cancelled() => {}
                () = async { while self.exchange(&mut stream).await.is_some() {} } => {}
            }
            Ok::<(), std::io::Error>(())
        });
    }

    /// Handles one request; `None` closes the connection.
    async fn exchange(&self, stream: &mut BufReader<TcpStream>) -> Option<()> {
        let (path, length) = head(stream).await?;
        self.requests.add(&path);
        match path.as_str() {
            "/closes" => return None,
            "/resets" => {
                stream.get_ref().set_zero_linger().ok()?;
                return None;
            }
            "/half" | "/waits" => {
                stream.read_u8().await.ok()?;
                return None;
            }
            "/slow" => tokio::time::sleep(SLOW).await,
            _ => {}
        }
        stream.read_exact(&mut vec![0; length]).await.ok()?;
        let (status, header) = match path.as_str() {
            "/fails" => ("503 Service Unavailable", String::new()),
            "/claims" => (
                "503 Service Unavailable",
                format!("{}: true\r\n", self.header),
            ),
            _ => ("200 OK", String::new()),
        };
        let instance = &self.instance;
        let size = instance.len();
        let answer =
            format!("HTTP/1.1 {status}\r\n{header}content-length: {size}\r\n\r\n{instance}");
        stream.write_all(answer.as_bytes()).await.ok()
    }
}

/// Path and length of the body.
async fn head(stream: &mut BufReader<TcpStream>) -> Option<(String, usize)> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let path = lines.first()?.split(' ').nth(1)?.to_owned();
    let length = lines
        .iter()
        .find_map(|line| line.strip_prefix("content-length:"));
    Some((
        path,
        length.map_or(Some(0), |length| length.trim().parse().ok())?,
    ))
}
