//! The clients' requests and their response times.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Method;
use legate_runtime::BoxError;
use serde_json::json;
use tokio::time::Instant;

use crate::client::Client;
use crate::figures::Taken;

/// The number of keys.
const KEYS: usize = 1000;
/// The number of instances of the queried service.
const INSTANCES: usize = 100;

/// The request that a client repeats.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Key,
    Catalog,
    Health,
    Put,
    /// Nine reads of a key and one write.
    Mixed,
    /// A write that wakes the blocking query of another client.
    Wake,
}

/// Writes the data for the reads.
pub(crate) async fn fill(server: SocketAddr) {
    let mut client = connected(server).await;
    for key in 0..KEYS {
        let path = format!("/v1/kv/bench/{key}");
        let written = client.put(&path, &json!("x".repeat(100))).await;
        written.expect("a key is written");
    }
    for n in 0..INSTANCES {
        let body = json!({
            "Node": format!("node-{n}"), "Address": "10.0.0.1",
            "Service": { "Service": "web", "Port": 8080, "Tags": ["v1"] },
            "Check": { "Name": "alive", "Status": "passing", "ServiceID": "web" },
        });
        let registered = client.put("/v1/catalog/register", &body).await;
        registered.expect("an instance is registered");
    }
}

async fn connected(server: SocketAddr) -> Client {
    let client = Client::connect(server).await;
    client.expect("the server takes connections")
}

/// Measures the response times of concurrent clients for a given time.
pub(crate) async fn measure(
    server: SocketAddr,
    asked: Asked,
    clients: usize,
    time: Duration,
) -> Taken {
    let begin = Instant::now();
    if asked == Asked::Wake {
        let times = wake(server, begin + time).await;
        let times = times.expect("the server answers");
        return Taken::of(times, begin.elapsed());
    }
    let all = (0..clients).map(|client| ask(server, asked, client, begin + time));
    let all = join_all(all).await;
    let took = begin.elapsed();
    let times = all
        .into_iter()
        .flat_map(|times| times.expect("the server answers"));
    Taken::of(times.collect(), took)
}

async fn ask(
    server: SocketAddr,
    asked: Asked,
    number: usize,
    end: Instant,
) -> Result<Vec<Duration>, BoxError> {
    let mut client = Client::connect(server).await?;
    let mut times = Vec::new();
    let mut n = number;
    while Instant::now() < end {
        n += 1;
        let key = format!("/v1/kv/bench/{}", n * 7919 % KEYS);
        let before = Instant::now();
        match asked {
            Asked::Key => client.get(&key).await?,
            Asked::Catalog => client.get("/v1/catalog/service/web").await?,
            Asked::Health => client.get("/v1/health/service/web?passing").await?,
            Asked::Mixed if !n.is_multiple_of(10) => client.get(&key).await?,
            Asked::Put | Asked::Mixed | Asked::Wake => {
                // Each write has a new value, because an unchanged one costs nothing.
                let value = json!(format!("{number} {n:0>90}"));
                client.put(&key, &value).await?
            }
        };
        times.push(before.elapsed());
    }
    Ok(times)
}

/// One client blocks on a key and another writes it: measures from the start of the write to the
/// response.
async fn wake(server: SocketAddr, end: Instant) -> Result<Vec<Duration>, BoxError> {
    let mut reader = Client::connect(server).await?;
    let mut writer = Client::connect(server).await?;
    writer.put("/v1/kv/wake", &json!(0)).await?;
    let mut index = waited(&mut reader, 0).await?;
    let mut times = Vec::new();
    while Instant::now() < end {
        let waiting = async {
            let next = waited(&mut reader, index).await;
            (next, Instant::now())
        };
        let writing = async {
            // By now the query has arrived at the server.
            tokio::time::sleep(Duration::from_millis(5)).await;
            let before = Instant::now();
            // An unchanged value would not wake the query.
            writer.put("/v1/kv/wake", &json!(times.len() + 1)).await?;
            Ok::<_, BoxError>(before)
        };
        let ((next, after), before) = tokio::join!(waiting, writing);
        index = next?;
        times.push(after.duration_since(before?));
    }
    Ok(times)
}

/// Blocks until the index differs from this one.
async fn waited(client: &mut Client, index: u64) -> Result<u64, BoxError> {
    let path = format!("/v1/kv/wake?index={index}&wait=30s");
    let answer = client.ask(Method::GET, &path, Bytes::new()).await?;
    let index = answer.headers().get("x-consul-index");
    let index = index.ok_or("an answer without an index")?;
    Ok(index.to_str()?.parse()?)
}
