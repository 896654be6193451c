//! The counters of the built-in proxy, with Envoy's names. Every value is atomic: data threads write, admin pages read.
//!
//! It formats nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A number that only grows, until it is reset.
#[derive(Debug, Default)]
pub(super) struct Counter {
    total: AtomicU64,
    /// What the total was at the last reset. A counter that was reset is still one that was used.
    reset: AtomicU64,
}

impl Counter {
    pub(super) fn inc(&self) {
        self.add(1);
    }

    pub(super) fn add(&self, count: u64) {
        self.total.fetch_add(count, Ordering::Relaxed);
    }

    /// Takes over a total that is counted elsewhere.
    pub(super) fn set(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        let total = self.total.load(Ordering::Relaxed);
        total.saturating_sub(self.reset.load(Ordering::Relaxed))
    }

    fn reset(&self) {
        self.reset
            .store(self.total.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn is_used(&self) -> bool {
        self.total.load(Ordering::Relaxed) > 0
    }
}

/// A number that grows and shrinks.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    value: AtomicI64,
    used: AtomicBool,
}

impl Gauge {
    pub(super) fn inc(&self) {
        self.value.fetch_add(1, Ordering::Relaxed);
        self.touch();
    }

    pub(super) fn dec(&self) {
        self.value.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.value.store(value, Ordering::Relaxed);
        self.touch();
    }

    pub(super) fn get(&self) -> u64 {
        u64::try_from(self.value.load(Ordering::Relaxed)).unwrap_or_default()
    }

    fn touch(&self) {
        // Threads that only read share the cache line.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether values of a scope exist.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    pub(super) fn set(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of Envoy's buckets, in milliseconds. The last bucket has no bound.
pub(super) const BOUNDS: [f64; 19] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1_000.0,
    2_500.0,
    5_000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// Durations in Envoy's buckets.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    /// The sum in microseconds.
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, duration: Duration) {
        let millis = duration.as_secs_f64() * 1000.0;
        let bucket = BOUNDS.partition_point(|bound| *bound < millis);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum.fetch_add(micros, Ordering::Relaxed);
    }

    /// The number of durations up to each bound, and of all of them.
    pub(super) fn cumulative(&self) -> [u64; BOUNDS.len() + 1] {
        let mut total = 0;
        self.buckets.each_ref().map(|bucket| {
            total += bucket.load(Ordering::Relaxed);
            total
        })
    }

    /// The sum of all durations, in milliseconds.
    pub(super) fn sum(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64 / 1000.0
    }
}

/// A value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Counter(u64),
    Gauge(u64),
    Histogram(&'a Histogram),
}

/// A value with what is known of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) value: Value<'a>,
    /// Whether it was written since the start (`usedonly`).
    pub(super) used: bool,
}

/// A kind of value, as the macro below lists it.
trait Stat {
    fn read(&self) -> Reading<'_>;
    fn reset(&self) {}
}

impl Stat for Counter {
    fn read(&self) -> Reading<'_> {
        Reading {
            value: Value::Counter(self.get()),
            used: self.is_used(),
        }
    }

    fn reset(&self) {
        Counter::reset(self);
    }
}

impl Stat for Gauge {
    fn read(&self) -> Reading<'_> {
        Reading {
            value: Value::Gauge(self.get()),
            used: self.used.load(Ordering::Relaxed),
        }
    }
}

impl Stat for Histogram {
    fn read(&self) -> Reading<'_> {
        let [.., count] = self.cumulative();
        Reading {
            value: Value::Histogram(self),
            used: count > 0,
        }
    }
}

/// A scope with its values. Those with an `if` exist only while this flag of the scope is set.
macro_rules! stats {
    (
        $(#[$doc:meta])*
        $name:ident ($($flag:ident),*) {
            $($field:ident: $kind:ident = $text:literal $(if $condition:ident)?,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(super) struct $name {
            $(pub(super) $flag: Flag,)*
            $(pub(super) $field: $kind,)*
        }

        impl Scope for $name {
            fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'static str, Reading<'a>)) {
                $(
                    if true $(&& self.$condition.get())? {
                        visit($text, Stat::read(&self.$field));
                    }
                )*
            }

            fn reset(&self) {
                $(Stat::reset(&self.$field);)*
            }
        }
    };
}

/// Values below one prefix.
pub(super) trait Scope {
    /// Passes each value with its name below the prefix.
    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'static str, Reading<'a>));

    /// Sets counters to zero.
    fn reset(&self);
}

stats! {
    /// Below `listener.<address>.`
    ListenerStats (tls) {
        cx_total: Counter = "downstream_cx_total",
        cx_active: Gauge = "downstream_cx_active",
        cx_destroy: Counter = "downstream_cx_destroy",
        cx_length: Histogram = "downstream_cx_length_ms",
        cx_overflow: Counter = "downstream_cx_overflow",
        no_chain: Counter = "no_filter_chain_match",
        inspect_timeout: Counter = "downstream_pre_cx_timeout",
        handshake: Counter = "ssl.handshake" if tls,
        session_reused: Counter = "ssl.session_reused" if tls,
        connection_error: Counter = "ssl.connection_error" if tls,
        no_certificate: Counter = "ssl.fail_verify_no_cert" if tls,
        verify_error: Counter = "ssl.fail_verify_error" if tls,
        verify_san: Counter = "ssl.fail_verify_san" if tls,
    }
}

stats! {
    /// Below `tcp.<prefix>.`
    TcpStats () {
        cx_total: Counter = "downstream_cx_total",
        no_route: Counter = "downstream_cx_no_route",
        rx_bytes: Counter = "downstream_cx_rx_bytes_total",
        tx_bytes: Counter = "downstream_cx_tx_bytes_total",
        idle_timeout: Counter = "idle_timeout",
        max_duration: Counter = "max_downstream_connection_duration",
        upstream_flush_total: Counter = "upstream_flush_total",
    }
}

stats! {
    /// Below `<prefix>.rbac.`
    RbacStats () {
        allowed: Counter = "allowed",
        denied: Counter = "denied",
    }
}

stats! {
    /// Below `connection_limit.<prefix>.`
    LimitStats () {
        active: Gauge = "active_connections",
        limited: Counter = "limited_connections",
    }
}

stats! {
    /// Below `cluster.<name>.`
    ClusterStats (tls, outlier) {
        cx_total: Counter = "upstream_cx_total",
        cx_active: Gauge = "upstream_cx_active",
        connect_fail: Counter = "upstream_cx_connect_fail",
        connect_timeout: Counter = "upstream_cx_connect_timeout",
        attempts_exceeded: Counter = "upstream_cx_connect_attempts_exceeded",
        overflow: Counter = "upstream_cx_overflow",
        none_healthy: Counter = "upstream_cx_none_healthy",
        destroy: Counter = "upstream_cx_destroy",
        destroy_local: Counter = "upstream_cx_destroy_local",
        destroy_remote: Counter = "upstream_cx_destroy_remote",
        rx_bytes: Counter = "upstream_cx_rx_bytes_total",
        tx_bytes: Counter = "upstream_cx_tx_bytes_total",
        connect: Histogram = "upstream_cx_connect_ms",
        length: Histogram = "upstream_cx_length_ms",
        update_attempt: Counter = "update_attempt",
        update_success: Counter = "update_success",
        update_failure: Counter = "update_failure",
        membership_change: Counter = "membership_change",
        membership_total: Gauge = "membership_total",
        membership_healthy: Gauge = "membership_healthy",
        cx_open: Gauge = "circuit_breakers.default.cx_open",
        ejections_active: Gauge = "outlier_detection.ejections_active" if outlier,
        ejections_enforced: Counter = "outlier_detection.ejections_enforced_total" if outlier,
        ejections_detected: Counter = "outlier_detection.ejections_detected_consecutive_5xx" if outlier,
        ejections_detected_rate: Counter = "outlier_detection.ejections_detected_success_rate" if outlier,
        ejections_enforced_rate: Counter = "outlier_detection.ejections_enforced_success_rate" if outlier,
        ejections_overflow: Counter = "outlier_detection.ejections_overflow" if outlier,
        handshake: Counter = "ssl.handshake" if tls,
        session_reused: Counter = "ssl.session_reused" if tls,
        connection_error: Counter = "ssl.connection_error" if tls,
        no_certificate: Counter = "ssl.fail_verify_no_cert" if tls,
        verify_error: Counter = "ssl.fail_verify_error" if tls,
        verify_san: Counter = "ssl.fail_verify_san" if tls,
    }
}

stats! {
    /// Below `legate_l4.`: of the proxy itself.
    OwnStats () {
        policy_closes: Counter = "policy_closes",
        drained: Counter = "drained",
        accept_pauses: Counter = "accept_pauses",
        connections: Gauge = "connections",
    }
}

/// Scopes of one type by the middle part of their names.
type Scopes<T> = Mutex<BTreeMap<String, Arc<T>>>;

/// All values.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) own: OwnStats,
    listeners: Scopes<ListenerStats>,
    tcp: Scopes<TcpStats>,
    rbac: Scopes<RbacStats>,
    limits: Scopes<LimitStats>,
    clusters: Scopes<ClusterStats>,
}

impl Stats {
    pub(super) fn listener(&self, name: &str) -> Arc<ListenerStats> {
        get(&self.listeners, name)
    }

    pub(super) fn tcp(&self, prefix: &str) -> Arc<TcpStats> {
        get(&self.tcp, prefix)
    }

    pub(super) fn rbac(&self, prefix: &str) -> Arc<RbacStats> {
        get(&self.rbac, prefix)
    }

    pub(super) fn limit(&self, prefix: &str) -> Arc<LimitStats> {
        get(&self.limits, prefix)
    }

    pub(super) fn cluster(&self, name: &str) -> Arc<ClusterStats> {
        get(&self.clusters, name)
    }

    /// Passes every value with the three parts of its name in Envoy: prefix, scope and value, such as `cluster.`,
    /// `local_app` and `.upstream_cx_total`.
    pub(super) fn visit(&self, visit: &mut dyn FnMut(Group, &str, &'static str, Reading<'_>)) {
        each(&self.clusters, Group::Cluster, visit);
        each(&self.limits, Group::ConnectionLimit, visit);
        each(&self.listeners, Group::Listener, visit);
        each(&self.rbac, Group::Rbac, visit);
        each(&self.tcp, Group::Tcp, visit);
        self.own
            .visit(&mut |name, value| visit(Group::Own, "", name, value));
    }

    /// Sets all counters to zero.
    pub(super) fn reset(&self) {
        reset(&self.clusters);
        reset(&self.limits);
        reset(&self.listeners);
        reset(&self.rbac);
        reset(&self.tcp);
        self.own.reset();
    }

    /// Forgets scopes that nothing uses any more, as Envoy does with those of removed clusters and listeners.
    pub(super) fn forget_unused(&self) {
        forget(&self.clusters);
        forget(&self.limits);
        forget(&self.listeners);
        forget(&self.rbac);
        forget(&self.tcp);
    }
}

/// What the values of a scope belong to. It decides how a name is made of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// `cluster.<scope>.<value>`
    Cluster,
    /// `connection_limit.<scope>.<value>`
    ConnectionLimit,
    /// `listener.<scope>.<value>`
    Listener,
    /// `<scope>.rbac.<value>`
    Rbac,
    /// `tcp.<scope>.<value>`
    Tcp,
    /// `legate_l4.<value>`
    Own,
}

fn get<T: Default>(scopes: &Scopes<T>, name: &str) -> Arc<T> {
    let name = sanitized(name);
    let mut scopes = scopes.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(scope) = scopes.get(&*name) {
        return Arc::clone(scope);
    }
    Arc::clone(scopes.entry(name.into_owned()).or_default())
}

/// A name as Envoy has it in statistics (its `sanitizeStatsName`): without colons, and dots at the ends.
fn sanitized(name: &str) -> Cow<'_, str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let name = name.strip_prefix('.').unwrap_or(name);
    if !name.contains([':', '\0']) {
        return Cow::Borrowed(name);
    }
    let name = name.replace("://", "_").replace(":/", "_");
    Cow::Owned(name.replace([':', '\0'], "_"))
}

fn each<T: Scope>(
    scopes: &Scopes<T>,
    group: Group,
    visit: &mut dyn FnMut(Group, &str, &'static str, Reading<'_>),
) {
    let scopes = scopes.lock().unwrap_or_else(PoisonError::into_inner);
    for (scope, values) in &*scopes {
        values.visit(&mut |name, value| visit(group, scope, name, value));
    }
}

fn reset<T: Scope>(scopes: &Scopes<T>) {
    let scopes = scopes.lock().unwrap_or_else(PoisonError::into_inner);
    scopes.values().for_each(|values| values.reset());
}

fn forget<T>(scopes: &Scopes<T>) {
    let mut scopes = scopes.lock().unwrap_or_else(PoisonError::into_inner);
    scopes.retain(|_, values| Arc::strong_count(values) > 1);
}
