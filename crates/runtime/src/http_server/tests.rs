//! Real connections with a paused clock, which advances only when all tasks are idle.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::mpsc;

use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::Scope;

const LIMITS: Limits = Limits {
    connections: 3,
    head: Duration::from_secs(10),
    making: Duration::MAX,
    answer: Duration::from_secs(150),
};

/// Longer than any limit.
const LONG: Duration = Duration::from_secs(3600);

/// Larger than the kernel's buffers.
const LARGE: usize = 32 * 1024 * 1024;

const REQUEST: &[u8] = b"GET /now HTTP/1.1\r\nhost: x\r\n\r\n";

struct Setup {
    address: SocketAddr,
    scope: Scope,
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = match path.as_str() {
        "/later" => {
            sleep(LONG / 2).await;
            Bytes::new()
        }
        "/large" => vec![b'x'; LARGE].into(),
        _ => "now".into(),
    };
    Ok(Response::new(Full::new(body)))
}

async fn start(limits: Limits) -> Setup {
    let scope = Scope::new("test");
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let open = |stream| ready(Ok(stream));
    let spawner = scope.spawner();
    serve(
        "test server",
        listener,
        open,
        service_fn(answer),
        limits,
        &spawner,
    );
    Setup { address, scope }
}

impl Setup {
    async fn connect(&self, sent: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream
    }

    /// Opens a connection, which must be served without any time passing.
    async fn probe(&self) {
        let mut stream = self.connect(REQUEST).await;
        answered(&mut stream).await;
    }
}

/// Reads a small response.
async fn answered(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nnow") {
        let mut bytes = [0; 1024];
        let length = stream.read(&mut bytes).await.unwrap();
        assert_ne!(length, 0, "closed");
        answer.extend_from_slice(&bytes[..length]);
    }
}

/// The time until the peer closes the connection.
async fn closed(stream: &mut TcpStream) -> Duration {
    let start = Instant::now();
    let end = async {
        let mut bytes = vec![0; 64 * 1024];
        while stream.read(&mut bytes).await.is_ok_and(|length| length > 0) {}
    };
    timeout(LONG, end).await.expect("it is closed");
    start.elapsed()
}

/// Prevents the paused clock from advancing as long as it exists: under load the kernel delivers data
/// with a delay, and timers must not fire first. At most 60 s of real time.
struct StandingClock(#[expect(dead_code, reason = "its end is what counts")] mpsc::Sender<()>);

impl StandingClock {
    fn new() -> Self {
        let (sender, end) = mpsc::channel();
        // Tokio's clock does not advance while a blocking task runs.
        drop(spawn_blocking(move || {
            end.recv_timeout(Duration::from_secs(60))
        }));
        Self(sender)
    }
}

/// Compares durations with tolerance, since the paused clock may advance slightly more.
fn about(expected: Duration, found: Duration) -> bool {
    let second = Duration::from_secs(1);
    (expected - second..expected + second).contains(&found)
}

#[tokio::test(start_paused = true)]
async fn incomplete_requests_time_out() {
    let setup = start(LIMITS).await;
    for begun in [
        &b""[..],
        b"GET /now HT",
        b"GET /now HTTP/1.1\r\nhost: x\r\n",
    ] {
        let mut stream = setup.connect(begun).await;
        assert!(about(LIMITS.head, closed(&mut stream).await), "{begun:?}");
    }
    // Sending one byte per second does not extend the limit.
    let mut stream = setup.connect(b"GET /").await;
    let start = Instant::now();
    while stream.write_all(b"x").await.is_ok() && start.elapsed() < LONG {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(start.elapsed() < LIMITS.head + Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_connection_serves_one_request_and_announces_its_end() {
    let setup = start(LIMITS).await;
    let mut stream = setup.connect(&[REQUEST, REQUEST].concat()).await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert_eq!(answer.matches("200 OK").count(), 1, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn the_oldest_connection_without_a_request_is_closed_first() {
    let setup = start(LIMITS).await;
    let request = b"GET /later HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut later = setup.connect(request).await;
    let mut idle = VecDeque::new();
    for _ in 0..LIMITS.connections - 1 {
        idle.push_back(setup.connect(b"GET").await);
    }
    let clock = StandingClock::new();
    for _ in 0..40 {
        setup.probe().await;
        let mut oldest = idle.pop_front().unwrap();
        assert_eq!(closed(&mut oldest).await, Duration::ZERO);
        idle.push_back(setup.connect(b"GET").await);
    }
    drop(clock);
    assert!(about(LONG / 2, closed(&mut later).await), "it was answered");
}

#[tokio::test(start_paused = true)]
async fn if_all_are_being_served_the_newest_is_closed() {
    let setup = start(LIMITS).await;
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let request = b"GET /later HTTP/1.1\r\nhost: x\r\n\r\n";
        waiting.push(setup.connect(request).await);
        // Until it has been read.
        sleep(Duration::from_millis(1)).await;
    }
    let clock = StandingClock::new();
    setup.probe().await;
    let (first, later) = waiting.split_at_mut(LIMITS.connections - 1);
    for stream in later {
        assert_eq!(closed(stream).await, Duration::ZERO);
    }
    drop(clock);
    assert!(
        about(LONG / 2, closed(&mut first[0]).await),
        "it was answered"
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_times_out_and_a_fast_one_gets_everything() {
    let setup = start(LIMITS).await;
    let request = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut fast = setup.connect(request).await;
    let mut page = Vec::new();
    // On a busy machine bytes are on their way for a moment, in which a paused clock would jump to the timeout.
    tokio::time::resume();
    fast.read_to_end(&mut page).await.unwrap();
    tokio::time::pause();
    assert!(page.len() > LARGE);

    let mut slow = setup.connect(request).await;
    let (start, mut read) = (Instant::now(), 0);
    // Reads a little every second, so that the connection is never idle.
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = slow.read(&mut bytes).await {
        read += length;
        if start.elapsed() < LIMITS.answer * 2 {
            sleep(Duration::from_secs(1)).await;
        }
    }
    assert!(read < LARGE, "it was read to its end");
}

#[tokio::test(start_paused = true)]
async fn a_stop_drains_responses_and_closes_idle_connections() {
    let setup = start(LIMITS).await;
    let mut idle = setup.connect(b"GET").await;
    let mut large = setup
        .connect(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    let mut bytes = [0; 1];
    large.read_exact(&mut bytes).await.unwrap();
    let read = async {
        let mut page = Vec::new();
        large.read_to_end(&mut page).await.unwrap();
        assert!(page.len() > LARGE);
    };
    let (stopped, ()) = tokio::join!(setup.scope.stop(LONG), read);
    stopped.unwrap();
    assert_eq!(closed(&mut idle).await, Duration::ZERO);
    assert!(TcpStream::connect(setup.address).await.is_err());
}

#[tokio::test]
async fn the_unspecified_address_covers_both_families() {
    let listener = bind("[::]:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    for ip in ["127.0.0.1", "127.0.0.2"] {
        TcpStream::connect((ip, port)).await.unwrap();
    }
    if listener.local_addr().unwrap().is_ipv6() {
        TcpStream::connect(("::1", port)).await.unwrap();
    }
    let taken = bind(listener.local_addr().unwrap()).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
}
