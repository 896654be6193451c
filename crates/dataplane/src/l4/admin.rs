//! The admin interface of the built-in proxy: the paths of Envoy's that tools and dashboards use, with the same answers.
//!
//! It serves no page of Envoy's that says nothing about this proxy: those are refused with a line that says so. What
//! Envoy counts and this proxy does not is absent, not zero. It shows no private key.

mod certs;
mod clusters;
mod dump;
mod forward;
mod info;
mod listeners;
mod logging;
mod query;
mod statistics;
mod tags;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{Method, StatusCode, header};
use legate_runtime::Spawner;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use self::query::Query;
use self::tags::Tags;
use super::built_in::{BuiltIn, Draining};

/// What the pages show and do.
pub(crate) struct Parts {
    /// The proxy.
    pub(crate) built_in: BuiltIn,
    /// The document that Envoy would be started with: `node` and `stats_config` are used.
    pub(crate) bootstrap: Value,
    /// How long a graceful drain accepts connections.
    pub(crate) drain_time: Duration,
    /// Requests the end of the process.
    pub(crate) quit: Box<dyn Fn() + Send + Sync>,
    /// The admin interface of the Envoy that serves in the place of the built-in proxy, if one does.
    pub(crate) envoy: watch::Receiver<Option<SocketAddr>>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// The pages of the admin interface. Clones show the same proxy.
#[derive(Clone)]
pub(crate) struct Pages(Arc<Admin>);

impl Pages {
    /// The pages of a proxy. Delayed steps run in the scope of `spawner`.
    pub(crate) fn new(parts: Parts, spawner: &Spawner) -> Pages {
        Pages(Arc::new(Admin {
            built_in: parts.built_in,
            tags: Tags::new(&parts.bootstrap["stats_config"]),
            node: parts.bootstrap["node"].clone(),
            drain_time: parts.drain_time,
            quit: parts.quit,
            envoy: parts.envoy,
            failed: AtomicBool::new(false),
            scheduled: Mutex::new(Draining::No),
            spawner: spawner.clone(),
        }))
    }

    /// Serves all pages until the scope of `spawner` stops.
    pub(crate) fn serve(&self, listener: TcpListener, spawner: &Spawner) {
        let admin = Arc::clone(&self.0);
        let router = Router::new().fallback(answer).with_state(admin);
        crate::http_server::serve("admin interface of the proxy", listener, router, spawner);
    }

    /// Serves only the page at this path and those below it, for others than operators. With Envoy, a listener of
    /// Envoy does that.
    pub(crate) fn expose(
        &self,
        name: &'static str,
        path: &'static str,
        listener: TcpListener,
        spawner: &Spawner,
    ) {
        let below = format!("{path}/{{*rest}}");
        let router = Router::new()
            .route(path, get(answer))
            .route(&below, get(answer))
            .with_state(Arc::clone(&self.0));
        crate::http_server::serve(name, listener, router, spawner);
    }
}

/// State behind the pages.
struct Admin {
    built_in: BuiltIn,
    tags: Tags,
    node: Value,
    drain_time: Duration,
    quit: Box<dyn Fn() + Send + Sync>,
    envoy: watch::Receiver<Option<SocketAddr>>,
    /// `/healthcheck/fail` was called.
    failed: AtomicBool,
    /// The graceful drain that is under way.
    scheduled: Mutex<Draining>,
    spawner: Spawner,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    status: StatusCode,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn text(status: StatusCode, body: impl Into<String>) -> Page {
        Page {
            status,
            content_type: "text/plain; charset=UTF-8",
            body: body.into(),
        }
    }

    fn ok(body: impl Into<String>) -> Page {
        Page::text(StatusCode::OK, body)
    }

    fn bad(body: impl Into<String>) -> Page {
        Page::text(StatusCode::BAD_REQUEST, body)
    }

    fn json(value: &Value) -> Page {
        Page {
            status: StatusCode::OK,
            content_type: "application/json",
            body: format!("{value:#}\n"),
        }
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, self.content_type),
            (header::CACHE_CONTROL, "no-cache, max-age=0"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::SERVER, "legate-l4"),
        ];
        (self.status, headers, self.body).into_response()
    }
}

/// The paths that change something: `POST` only, as in Envoy.
const CHANGES: [&str; 6] = [
    "/drain_listeners",
    "/healthcheck/fail",
    "/healthcheck/ok",
    "/logging",
    "/quitquitquit",
    "/reset_counters",
];

/// Those of them that hold also after the other proxy has taken over.
const STAYS: [&str; 3] = ["/drain_listeners", "/healthcheck/fail", "/healthcheck/ok"];

async fn answer(State(admin): State<Arc<Admin>>, request: Request) -> Response {
    let envoy = *admin.envoy.borrow();
    let path = request.uri().path();
    let Some(envoy) = envoy.filter(|_| path != "/quitquitquit") else {
        // The end of Envoy alone is not what the caller means.
        return own(admin, request).await.into_response();
    };
    if STAYS.contains(&path) {
        let mut same = Request::new(Body::empty());
        same.method_mut().clone_from(request.method());
        same.uri_mut().clone_from(request.uri());
        own(admin, same).await;
    }
    forward::call(envoy, request).await
}

async fn own(admin: Arc<Admin>, request: Request) -> Page {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let query = Query::parse(request.uri().query().unwrap_or_default());
    drop(request);
    if CHANGES.contains(&path.as_str()) && method != Method::POST {
        return Page::text(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("Method {method} not allowed, POST required."),
        );
    }
    // A page of a large mesh takes a while to make.
    let made = spawn_blocking(move || admin.page(&path, &query)).await;
    made.unwrap_or_else(|error| {
        Page::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("no page: {error}\n"),
        )
    })
}

impl Admin {
    fn page(self: &Arc<Self>, path: &str, query: &Query) -> Page {
        let page = match path {
            "/ready" => Ok(self.ready()),
            "/server_info" => Ok(Page::json(&self.server_info())),
            "/stats" => self.stats(query),
            "/stats/prometheus" => self.prometheus(query),
            "/clusters" => self.clusters(query),
            "/listeners" => self.listeners(query),
            "/certs" => Ok(Page::json(&self.certs())),
            "/config_dump" => self.config_dump(query),
            "/drain_listeners" => self.drain(query),
            "/healthcheck/fail" => Ok(self.fail(true)),
            "/healthcheck/ok" => Ok(self.fail(false)),
            "/logging" => Self::logging(query),
            "/quitquitquit" => {
                (self.quit)();
                Ok(Page::ok("OK\n"))
            }
            "/reset_counters" => {
                self.built_in.shared.stats.reset();
                Ok(Page::ok("OK\n"))
            }
            _ => Err(Page::text(
                StatusCode::NOT_FOUND,
                format!("the built-in proxy serves no {path}: run with -proxy envoy for it\n"),
            )),
        };
        page.unwrap_or_else(|refusal| refusal)
    }

    fn fail(&self, failed: bool) -> Page {
        self.failed.store(failed, Ordering::Relaxed);
        Page::ok("OK\n")
    }

    /// `/drain_listeners`: at once, or after the drain time.
    fn drain(self: &Arc<Self>, query: &Query) -> Result<Page, Page> {
        let (graceful, stays) = (query.has("graceful"), query.has("skip_exit"));
        if stays && !graceful {
            return Err(Page::bad("skip_exit requires graceful\n"));
        }
        let draining = match query.has("inboundonly") {
            true => Draining::Inbound,
            false => Draining::All,
        };
        if !graceful {
            self.built_in.drain(draining);
            return Ok(Page::ok("OK\n"));
        }
        let mut scheduled = self
            .scheduled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // One that is under way is not begun again: at most two tasks wait.
        if draining > *scheduled {
            *scheduled = draining;
            let admin = Arc::clone(self);
            self.spawner
                .spawn_until_stop("drain listeners", async move {
                    sleep(admin.drain_time).await;
                    admin.built_in.drain(draining);
                    if !stays {
                        (admin.quit)();
                    }
                });
        }
        Ok(Page::ok("OK\n"))
    }
}
