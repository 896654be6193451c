//! A real `consul-dataplane` with Legate's server, over TLS unless a test's name indicates
//! otherwise.

use legate_tests::interop::Pair;

use crate::{credentials, scenario};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_traffic() {
    if let Some(pair) = Pair::legate_server(true) {
        scenario::http_traffic(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plaintext_traffic() {
    if let Some(pair) = Pair::legate_server(false) {
        scenario::http_traffic(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_traffic_and_end() {
    if let Some(pair) = Pair::legate_server(true) {
        scenario::tcp_traffic_and_end(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn intentions() {
    if let Some(pair) = Pair::legate_server(true) {
        scenario::intentions(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances() {
    if let Some(pair) = Pair::legate_server(true) {
        scenario::instances(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage() {
    if let Some(pair) = Pair::legate_server(true) {
        scenario::outage(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plaintext_outage() {
    if let Some(pair) = Pair::legate_server(false) {
        scenario::outage(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_and_logout() {
    if let Some(pair) = Pair::legate_server(true) {
        credentials::login_and_logout(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names() {
    if let Some(pair) = Pair::legate_server(true) {
        scenario::names(&pair).await;
    }
}
