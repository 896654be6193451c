//! The driver's reaction to actions that are impossible.

use super::*;
use crate::config::Bearer;

/// A driver that has not dialled yet.
fn driver() -> Driver {
    let login = LoginConfig {
        auth_method: "method".to_owned(),
        namespace: String::new(),
        partition: String::new(),
        datacenter: String::new(),
        bearer: Bearer::Token(Secret::new("bearer")),
        meta: std::collections::BTreeMap::new(),
    };
    let config = ClientConfig {
        credentials: Credentials::Login(login),
        ..ClientConfig::new("127.0.0.1".parse().unwrap(), 8502)
    };
    let scope = Scope::new("test");
    let made = Driver::new(config, &scope.spawner(), &Registry::new());
    made.unwrap().0
}

#[tokio::test(start_paused = true)]
async fn an_operation_without_a_connection_fails_and_is_not_waited_for() {
    for action in [Action::Login, Action::CheckFeatures] {
        let mut driver = driver();
        driver.perform(action.clone());
        let outcome = tokio::time::timeout(Duration::from_secs(3600), &mut driver.operation);
        let absorb = outcome.await.unwrap();
        let failed = matches!(
            absorb(&mut driver),
            Event::LoggedIn(Err(_)) | Event::Features(Err(_))
        );
        assert!(failed, "{action:?}");
    }
}
