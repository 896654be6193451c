//! The load of a turn.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::echo::SINK;

/// The connections of exchanges.
const CONNECTIONS: u32 = 64;

/// After so long a connection hangs.
const HANGS: Duration = Duration::from_secs(10);

/// What is done.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// 1 KiB there and back, again and again, on 64 connections. Counts exchanges.
    Exchanges,
    /// 64 KiB at a time in one direction of so many connections. Counts megabytes.
    Bulk(usize),
    /// A connection with a byte there and back, on 8 connections at a time. Counts connections.
    New,
}

/// Runs a turn, and returns its count and its length, at whose end everything has arrived. Connections that fail are
/// not counted.
///
/// # Panics
///
/// If a connection hangs.
pub(crate) async fn run(kind: Kind, server: SocketAddr, turn: Duration) -> (f64, f64) {
    let start = Instant::now();
    let until = start + turn;
    let mut work = JoinSet::new();
    match kind {
        Kind::Exchanges => {
            for _ in 0..CONNECTIONS {
                work.spawn(exchanges(server, until));
            }
        }
        Kind::Bulk(connections) => {
            for _ in 0..connections {
                work.spawn(bulk(server, until));
            }
        }
        Kind::New => {
            for _ in 0..8 {
                work.spawn(connections(server, until));
            }
        }
    }
    let mut total = 0.0;
    let all = async {
        while let Some(count) = work.join_next().await {
            total += count.expect("no panic");
        }
    };
    let ended = timeout(turn + HANGS, all).await;
    ended.expect("no connection hangs");
    (total, start.elapsed().as_secs_f64())
}

async fn exchanges(server: SocketAddr, until: Instant) -> f64 {
    let mut count = 0.0;
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let mut bytes = [0; 1024];
        while Instant::now() < until {
            stream.write_all(&bytes).await?;
            stream.read_exact(&mut bytes).await?;
            count += 1.0;
        }
        Ok::<_, std::io::Error>(())
    };
    // What was counted so far counts.
    let _ = exchange.await;
    count
}

async fn bulk(server: SocketAddr, until: Instant) -> f64 {
    let mut count = 0.0;
    let send = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_u8(SINK).await?;
        let bytes = vec![1; 64 * 1024];
        while Instant::now() < until {
            stream.write_all(&bytes).await?;
            count += bytes.len() as f64 / 1e6;
        }
        stream.shutdown().await?;
        // Everything has arrived.
        stream.read_u8().await
    };
    let _ = send.await;
    count
}

async fn connections(server: SocketAddr, until: Instant) -> f64 {
    let mut count = 0.0;
    while Instant::now() < until {
        if exchanged(server).await {
            count += 1.0;
        }
    }
    count
}

/// The times of exchanges in microseconds, sorted, with so many per second on all connections.
pub(crate) async fn latencies(server: SocketAddr, rate: f64, turn: Duration) -> Vec<f64> {
    let until = Instant::now() + turn;
    let pause = Duration::from_secs_f64(f64::from(CONNECTIONS) / rate.max(1.0));
    let mut work = JoinSet::new();
    for number in 0..CONNECTIONS {
        let start = Instant::now() + pause * number / CONNECTIONS;
        work.spawn(paced(server, start, pause, until));
    }
    let mut all = Vec::new();
    while let Some(times) = work.join_next().await {
        all.extend(times.expect("no panic"));
    }
    all.sort_by(f64::total_cmp);
    all
}

async fn paced(server: SocketAddr, start: Instant, pause: Duration, until: Instant) -> Vec<f64> {
    let mut times = Vec::new();
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let mut ticks = interval_at(start, pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut bytes = [0; 1024];
        while Instant::now() < until {
            ticks.tick().await;
            let sent = Instant::now();
            stream.write_all(&bytes).await?;
            stream.read_exact(&mut bytes).await?;
            times.push(sent.elapsed().as_secs_f64() * 1e6);
        }
        Ok::<_, std::io::Error>(())
    };
    // What was measured so far counts.
    let _ = exchange.await;
    times
}

/// Opens a connection, and exchanges a byte. False also if that takes long.
pub(crate) async fn exchanged(server: SocketAddr) -> bool {
    matches!(timeout(HANGS, connected(server)).await, Ok(Ok(_)))
}

async fn connected(server: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    stream.write_u8(b'x').await?;
    stream.read_u8().await?;
    Ok(stream)
}

/// Opens connections that are idle after an exchange.
pub(crate) async fn idle(server: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(connected(server).await.expect("a connection"));
    }
    held
}
