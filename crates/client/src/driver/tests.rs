//! What the driver does when the machine wants what cannot be done.

use legate_model::Secret;
use legate_runtime::Scope;
use legate_runtime::metrics::Registry;

use super::*;
use crate::config::Bearer;
use crate::machine::{Credential, Settings};

/// A driver that has not dialled yet.
fn driver() -> Driver {
    let scope = Scope::new("test");
    let timing = Timing::default();
    let (_, reports) = mpsc::channel(1);
    let login = LoginConfig {
        auth_method: "method".to_owned(),
        namespace: String::new(),
        partition: String::new(),
        datacenter: String::new(),
        bearer: Bearer::Token(Secret::new("bearer".to_owned())),
        meta: std::collections::BTreeMap::new(),
    };
    let parts = Parts {
        addresses: Arc::new("127.0.0.1".parse().unwrap()),
        port: 8502,
        login: Some(Arc::new(login)),
        token: None,
        dialer: Arc::new(Dialer {
            tls: None,
            routes: None,
            spawner: scope.spawner(),
        }),
        timing,
        metrics: Arc::new(Metrics::new(&Registry::new()).unwrap()),
        facts: Arc::new(Facts::new()),
        state: watch::Sender::new(SessionState::Connecting { last_error: None }),
        reports,
        configured: CancellationToken::new(),
        close: CancellationToken::new(),
        scope,
        _ended: CancellationToken::new().drop_guard(),
    };
    let settings = Settings {
        watch: false,
        credential: Credential::Login,
        silence: timing.silence,
        spread: timing.files,
    };
    Driver::new(parts, Machine::new(settings, Box::new(|| 0.5)))
}

#[tokio::test(start_paused = true)]
async fn an_operation_without_a_connection_fails_and_is_not_waited_for() {
    for action in [Action::Login, Action::CheckFeatures] {
        let mut driver = driver();
        driver.perform(action.clone());
        let outcome = tokio::time::timeout(Duration::from_secs(3600), &mut driver.operation);
        let failed = match outcome.await {
            Ok(Outcome::LoggedIn(result)) => result.is_err(),
            Ok(Outcome::Features(result)) => result.is_err(),
            _ => false,
        };
        assert!(failed, "{action:?}");
    }
}
