//! Connections of each epoch while real Envoys hand over to one another.

use std::time::Duration;

use legate_envoy::supervision::{EnvoyHost, HotRestart, Options, Report, connections_by_port};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::load;
use crate::place::{ADMIN, ECHO, Place, TCP, hot, supervise, until};

async fn connect(place: Place) -> TcpStream {
    let mut stream = TcpStream::connect(place.at(TCP)).await.unwrap();
    load::echo(&mut stream).await.unwrap();
    stream
}

/// Number of clients of a process, without the supervisor's admin requests.
fn clients(pid: u32) -> u64 {
    let mut found = connections_by_port(pid).unwrap();
    found.remove(&ADMIN);
    let clients = found.remove(&TCP).unwrap_or_default();
    assert!(found.is_empty(), "{found:?}");
    clients
}

#[tokio::test]
async fn each_epoch_has_its_own_connections() {
    let (place, folder) = (Place::new(12), tempfile::tempdir().unwrap());
    let echo = TcpListener::bind(place.at(ECHO)).await.unwrap();
    let slow = HotRestart {
        parent_shutdown: Duration::from_secs(60),
        ..hot(folder.path())
    };
    let host = EnvoyHost::new(place.admin(), Some(slow), None);
    supervise(
        host,
        place.config(),
        Options::default(),
        async |supervisor| {
            let scenario = async {
                let parent = until(&supervisor, Report::ready).await.epochs[0].pid;
                assert_eq!(clients(parent), 0);
                let long = connect(place).await;
                assert_eq!(clients(parent), 1);
                supervisor.restart().unwrap();
                let handed =
                    |report: &Report| report.epochs.len() == 2 && report.epochs[1].state.serves();
                let child = until(&supervisor, handed).await.epochs[1].pid;
                assert_eq!((clients(parent), clients(child)), (1, 0));
                let _new = connect(place).await;
                assert_eq!((clients(parent), clients(child)), (1, 1));
                drop(long);
                while clients(parent) > 0 {
                    sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(clients(child), 1);
            };
            tokio::select! { () = scenario => {}, () = load::echo_server(&echo) => {} }
            supervisor.stop();
        },
    )
    .await;
}
