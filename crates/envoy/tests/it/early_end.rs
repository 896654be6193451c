//! Envoys that end before they serve: their output explains the reason, and they leave nothing
//! behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use legate_envoy::supervision::{EnvoyConfig, EnvoyHost, Options, SHARED_MEMORY};
use tokio::net::TcpListener;

use crate::place::{ADMIN, Place, hot, supervise, until};

/// A real Envoy whose chosen base id is recorded before its end is observed. One that only
/// validates a document chooses none.
fn noting(place: Place, folder: &Path) -> EnvoyConfig {
    let mut launch = place.config().launch;
    let script = format!(
        "#!/bin/sh\n{} \"$@\"\ncode=$?\ncase \"$*\" in *--base-id-path*) \
         echo $(cat {1}/base-id) >> {1}/chosen;; esac\nexit $code\n",
        launch.executable.display(),
        folder.display()
    );
    launch.executable = folder.join("envoy");
    fs::write(&launch.executable, script).unwrap();
    fs::set_permissions(&launch.executable, fs::Permissions::from_mode(0o755)).unwrap();
    EnvoyConfig::new(launch)
}

#[tokio::test]
async fn an_envoy_that_never_serves_reports_the_reason_and_leaves_no_shared_memory() {
    for (test, outlives) in [(40, false), (41, true)] {
        let (place, folder) = (Place::new(test), tempfile::tempdir().unwrap());
        let folder = folder.path();
        let _taken = TcpListener::bind(place.at(ADMIN)).await.unwrap();
        let host = EnvoyHost::new(
            place.admin(),
            Some(hot(folder)),
            outlives.then(|| folder.join("envoy.log")),
        );
        let config = noting(place, folder);
        supervise(host, config, Options::default(), async |supervisor| {
            // Two exits are enough, whether Envoys are detached or not.
            let report = until(&supervisor, |report| report.exits.len() > 1).await;
            let refusal = report.refusal.unwrap();
            let address = place.at(ADMIN).to_string();
            assert!(
                refusal.contains("cannot bind") && refusal.contains(&address),
                "{refusal}"
            );
            supervisor.stop();
        })
        .await;
        let chosen = fs::read_to_string(folder.join("chosen")).unwrap();
        assert!(chosen.lines().count() > 1, "{chosen}");
        for number in chosen.lines() {
            assert!(number.parse::<u32>().is_ok(), "{chosen:?}");
            let region = format!("{SHARED_MEMORY}/envoy_shared_memory_{number}0");
            assert!(!Path::new(&region).exists(), "{region} is left");
        }
        assert!(!folder.join("base-id").exists());
    }
}
