//! The rows that are written and read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use legate_runtime::Scope;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::Client;
use crate::figures::Taken;
use crate::plane::Plane;

const REGISTER: &str = "/v1/catalog/register";
/// The number of instances per service and per node of the generated rows.
const INSTANCES: usize = 1000;
/// The number of concurrent clients that write them.
const FILLERS: usize = 128;
/// The deadline for filling, and for the last write.
const LIMIT: Duration = Duration::from_secs(1200);

/// Writers that register nodes without pause. Every write changes a row.
pub(crate) async fn write(plane: &Plane, writers: usize, time: Duration) -> Taken {
    let scope = Scope::new("writers");
    let answered = Arc::new(Mutex::new(Vec::new()));
    let started = Instant::now();
    for writer in 0..writers {
        let (http, answered) = (plane.http, Arc::clone(&answered));
        scope.spawn("writer", async move {
            let mut client = Client::connect(http).await?;
            let mut times = Vec::new();
            while started.elapsed() < time {
                let number = times.len();
                let node = json!({
                    "Node": format!("writer-{writer}"),
                    "Address": format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255),
                });
                let asked = Instant::now();
                client.put(REGISTER, &node).await?;
                times.push(asked.elapsed());
            }
            answered.lock().await.append(&mut times);
            Ok::<(), legate_runtime::BoxError>(())
        });
    }
    finished(scope).await;
    let took = started.elapsed();
    let times = std::mem::take(&mut *answered.lock().await);
    Taken::of(times, took)
}

/// Waits until every task has ended.
async fn finished(scope: Scope) {
    scope.stop(LIMIT).await.expect("every write is answered");
}

/// Registers this many instances.
pub(crate) async fn fill(plane: &Plane, rows: usize) {
    let scope = Scope::new("fillers");
    let next = Arc::new(AtomicUsize::new(0));
    for _ in 0..FILLERS {
        let (http, next) = (plane.http, Arc::clone(&next));
        scope.spawn("filler", async move {
            let mut client = Client::connect(http).await?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= rows {
                    return Ok::<(), legate_runtime::BoxError>(());
                }
                client.put(REGISTER, &instance(number)).await?;
            }
        });
    }
    finished(scope).await;
}

fn service(number: usize) -> String {
    format!("service-{}", number / INSTANCES)
}

fn instance(number: usize) -> Value {
    let node = number % INSTANCES;
    json!({
        "Node": format!("node-{node}"),
        "Address": format!("10.1.{}.{}", node >> 8, node & 255),
        "Service": {
            "ID": format!("instance-{number}"),
            "Service": service(number),
            "Port": 1024 + number / INSTANCES,
            "Tags": ["v1"],
            "Meta": {"version": "1.2.3"},
        },
    })
}

/// The time until a restarted control plane returns the row that was written last, and until all
/// rows have been read.
pub(crate) async fn read_all(plane: &mut Plane, rows: usize) -> (Duration, Duration) {
    let started = Instant::now();
    let last = service(rows - 1);
    let of = |service: &str| format!("/v1/catalog/service/{service}");
    let in_last = rows - (rows - 1) / INSTANCES * INSTANCES;
    plane.until_answered(&of(&last), in_last).await;
    let answered = started.elapsed();
    let mut client = Client::connect(plane.http).await.expect("it serves");
    let mut found = 0;
    for number in (0..rows).step_by(INSTANCES) {
        let read = client.count(&of(&service(number))).await;
        found += read.expect("it serves");
    }
    assert_eq!(found, rows, "rows are missing after the kill");
    (answered, started.elapsed())
}
