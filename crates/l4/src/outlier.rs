//! Ejects hosts of a cluster to which connects fail, as Envoy's outlier detection does for TCP, where each connect that
//! fails or takes too long counts as a gateway failure, and thus as a 5xx: hosts to which several in a row fail, and
//! those to which far more fail than to others.
//!
//! It keeps no list of hosts: `balance` has one, with a `HostState` for each.

use std::time::Duration;

use crate::model::OutlierDetection;

/// So many hosts need a rate of success before one is compared with the others (`success_rate_minimum_hosts`).
const RATED_HOSTS: usize = 5;
/// So many connects in an interval give a host a rate of success (`success_rate_request_volume`).
const RATED_CONNECTS: u32 = 100;
/// So many standard deviations below the mean of all rates, a host is ejected (`success_rate_stdev_factor`).
const DEVIATIONS: f64 = 1.9;

/// Counters and gauges, with the names that Envoy has for them below `outlier_detection.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Hosts that are ejected now (`ejections_active`).
    pub ejections_active: u64,
    /// Ejections (`ejections_enforced_total`, `ejections_enforced_consecutive_5xx`).
    pub ejections_enforced_total: u64,
    /// Rows of failures, with and without an ejection (`ejections_detected_consecutive_5xx`,
    /// `ejections_consecutive_5xx`).
    pub ejections_detected_consecutive_5xx: u64,
    /// Hosts with a low rate of success (`ejections_detected_success_rate`).
    pub ejections_detected_success_rate: u64,
    /// Ejections because of that (`ejections_enforced_success_rate`).
    pub ejections_enforced_success_rate: u64,
    /// Ejections, and those that were left to chance and did not happen (`ejections_total`).
    pub ejections_total: u64,
    /// Ejections that did not happen because too many hosts were ejected (`ejections_overflow`).
    pub ejections_overflow: u64,
}

/// What is known of one host.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostState {
    /// Failures since the last success.
    failures: u32,
    /// Connects in this interval, and those of them that did not fail.
    connects: u32,
    successes: u32,
    /// When it was ejected, if it is.
    ejected: Option<Duration>,
    /// When its last ejection ended.
    returned: Option<Duration>,
    /// How often it was ejected lately: the factor of the ejection's length.
    ejections: u32,
}

impl HostState {
    pub(crate) fn is_ejected(&self) -> bool {
        self.ejected.is_some()
    }

    /// The share of connects in this interval that did not fail, if there were enough.
    fn success_rate(&self) -> Option<f64> {
        let rated = !self.is_ejected() && self.connects >= RATED_CONNECTS;
        rated.then(|| f64::from(self.successes) / f64::from(self.connects))
    }
}

/// Outlier detection of one cluster.
#[derive(Debug)]
pub(crate) struct Detector {
    settings: OutlierDetection,
    counters: Counters,
    /// When hosts are looked at next; `None` if there is nothing to look at.
    next: Option<Duration>,
}

impl Detector {
    pub(crate) fn new(settings: OutlierDetection) -> Self {
        Self {
            settings,
            counters: Counters::default(),
            next: None,
        }
    }

    pub(crate) fn configure(&mut self, settings: OutlierDetection) {
        self.settings = settings;
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        self.next
    }

    /// A connect to a host succeeded.
    pub(crate) fn succeeded(&mut self, host: &mut HostState, now: Duration) {
        host.failures = 0;
        if self.settings.success_rate {
            host.successes = host.successes.saturating_add(1);
            self.count(host, now);
        }
    }

    fn count(&mut self, host: &mut HostState, now: Duration) {
        host.connects = host.connects.saturating_add(1);
        let next = self.sweep_after(now);
        self.next.get_or_insert(next);
    }

    /// A connect to a host failed; `total` is the number of hosts. Returns whether the host was ejected now.
    pub(crate) fn failed(
        &mut self,
        host: &mut HostState,
        total: usize,
        now: Duration,
        random: &mut impl FnMut() -> u64,
    ) -> bool {
        host.failures = host.failures.saturating_add(1);
        if self.settings.success_rate {
            self.count(host, now);
        }
        if host.is_ejected() || host.failures != self.settings.consecutive_failures {
            return false;
        }
        host.failures = 0;
        self.counters.ejections_detected_consecutive_5xx += 1;
        let ejected = self.may_eject(total) && random() % 100 < u64::from(self.settings.enforcing);
        if ejected {
            self.eject(host, now);
        }
        ejected
    }

    /// Whether another host may be ejected. Counts both.
    fn may_eject(&mut self, total: usize) -> bool {
        let counters = &mut self.counters;
        let ejected = u128::from(counters.ejections_active) + 1;
        let most = u128::from(self.settings.max_ejection_percent.min(100));
        let first = self.settings.always_eject_one && counters.ejections_active == 0;
        if !first && 100 * ejected > most * total as u128 {
            counters.ejections_overflow += 1;
            return false;
        }
        counters.ejections_total += 1;
        true
    }

    fn eject(&mut self, host: &mut HostState, now: Duration) {
        self.counters.ejections_active += 1;
        self.counters.ejections_enforced_total += 1;
        host.ejected = Some(now);
        let length = self.settings.base_ejection.saturating_mul(host.ejections);
        if length < self.settings.max_ejection + self.settings.base_ejection {
            host.ejections += 1;
        }
        let next = self.sweep_after(now);
        self.next.get_or_insert(next);
    }

    /// A host was removed, or is new.
    pub(crate) fn forget(&mut self, host: &mut HostState) {
        if host.is_ejected() {
            self.counters.ejections_active = self.counters.ejections_active.saturating_sub(1);
        }
        *host = HostState::default();
    }

    /// Looks at all hosts if it is time to. Returns whether one was ejected, or the ejection of one has ended.
    pub(crate) fn tick<'a>(
        &mut self,
        now: Duration,
        hosts: impl Iterator<Item = &'a mut HostState>,
    ) -> bool {
        if self.next.is_none_or(|next| now < next) {
            return false;
        }
        let mut hosts: Vec<&mut HostState> = hosts.collect();
        let mut changed = false;
        for host in &mut hosts {
            changed |= self.look_at(host, now);
        }
        changed |= self.compare(&mut hosts, now);
        let more = hosts
            .iter()
            .any(|host| host.is_ejected() || host.ejections > 0);
        self.next = more.then(|| self.sweep_after(now));
        changed
    }

    /// Ejects hosts to which far more connects failed in this interval than to others, and begins the next one. Returns
    /// whether there were any.
    fn compare(&mut self, hosts: &mut [&mut HostState], now: Duration) -> bool {
        let rates: Vec<f64> = hosts
            .iter()
            .filter_map(|host| host.success_rate())
            .collect();
        let enough = self.settings.success_rate && rates.len() >= RATED_HOSTS;
        let threshold = enough.then(|| {
            let count = rates.len() as f64;
            let mean = rates.iter().sum::<f64>() / count;
            let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / count;
            mean - DEVIATIONS * variance.sqrt()
        });
        let total = hosts.len();
        let mut changed = false;
        for host in hosts {
            let rate = host.success_rate();
            let low = rate.zip(threshold).is_some_and(|(rate, low)| rate < low);
            (host.connects, host.successes) = (0, 0);
            if low {
                self.counters.ejections_detected_success_rate += 1;
                if self.may_eject(total) {
                    self.counters.ejections_enforced_success_rate += 1;
                    self.eject(host, now);
                    changed = true;
                }
            }
        }
        changed
    }

    /// Ends a host's ejection if it is long enough. Returns whether it did.
    fn look_at(&mut self, host: &mut HostState, now: Duration) -> bool {
        if let Some(since) = host.ejected {
            let length = self.settings.base_ejection.saturating_mul(host.ejections);
            if now.saturating_sub(since) < length.min(self.settings.max_ejection) {
                return false;
            }
            host.ejected = None;
            host.failures = 0;
            host.returned = Some(now);
            self.counters.ejections_active = self.counters.ejections_active.saturating_sub(1);
            return true;
        }
        let returned = host.returned.map(|returned| now.saturating_sub(returned));
        if returned.is_some_and(|since| since >= self.settings.interval) {
            host.ejections = host.ejections.saturating_sub(1);
        }
        false
    }

    /// The next multiple of the interval.
    fn sweep_after(&self, now: Duration) -> Duration {
        let interval = self.settings.interval.max(Duration::from_millis(1));
        let done = now.as_nanos() / interval.as_nanos();
        interval.saturating_mul(u32::try_from(done + 1).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> OutlierDetection {
        OutlierDetection {
            consecutive_failures: 5,
            enforcing: 100,
            interval: Duration::from_secs(10),
            base_ejection: Duration::from_secs(30),
            max_ejection: Duration::from_secs(300),
            max_ejection_percent: 10,
            always_eject_one: true,
            success_rate: false,
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fail(detector: &mut Detector, host: &mut HostState, times: u32, now: u64) -> bool {
        (0..times).any(|_| detector.failed(host, 3, at(now), &mut || 0))
    }

    /// When the ejection ends, with sweeps at each interval from this second on.
    fn until_return(detector: &mut Detector, host: &mut HostState) -> u64 {
        loop {
            let next = detector.next().unwrap();
            if detector.tick(next, [&mut *host].into_iter()) {
                return next.as_secs();
            }
        }
    }

    #[test]
    fn ejects_after_failures_in_a_row() {
        let mut detector = Detector::new(settings());
        let mut host = HostState::default();
        assert!(!fail(&mut detector, &mut host, 4, 0));
        detector.succeeded(&mut host, at(0));
        assert!(!fail(&mut detector, &mut host, 4, 0));
        assert_eq!(detector.next(), None);
        assert!(fail(&mut detector, &mut host, 1, 3));
        assert!(host.is_ejected());
        let expected = Counters {
            ejections_active: 1,
            ejections_enforced_total: 1,
            ejections_detected_consecutive_5xx: 1,
            ejections_total: 1,
            ..Counters::default()
        };
        assert_eq!(detector.counters(), expected);
        assert_eq!(detector.next(), Some(at(10)));
        // A second one is too many.
        let mut other = HostState::default();
        assert!(!fail(&mut detector, &mut other, 5, 3));
        assert_eq!(detector.counters().ejections_overflow, 1);
        // From 3 to 33, seen at 40.
        assert_eq!(until_return(&mut detector, &mut host), 40);
        assert_eq!(detector.counters().ejections_active, 0);
    }

    #[test]
    fn ejections_become_longer_and_shorter_again() {
        let mut detector = Detector::new(settings());
        let mut host = HostState::default();
        let mut lengths = Vec::new();
        let mut now = 0;
        for _ in 0..12 {
            assert!(fail(&mut detector, &mut host, 5, now));
            let end = until_return(&mut detector, &mut host);
            lengths.push(end - now);
            now = end;
        }
        assert_eq!(
            lengths,
            [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300, 300]
        );
        // Each interval without an ejection takes back one, then there is nothing more to do.
        let mut sweeps = 0;
        while let Some(next) = detector.next() {
            assert!(!detector.tick(next, [&mut host].into_iter()));
            sweeps += 1;
        }
        assert_eq!(sweeps, 11);
        assert!(fail(&mut detector, &mut host, 5, 10_000));
        assert_eq!(until_return(&mut detector, &mut host), 10_030);
    }

    #[test]
    fn share_and_chance() {
        let mut few = settings();
        few.always_eject_one = false;
        let mut detector = Detector::new(few);
        assert!(!fail(&mut detector, &mut HostState::default(), 5, 0));
        let ten = (0..5).any(|_| detector.failed(&mut HostState::default(), 10, at(0), &mut || 0));
        assert!(!ten, "each time another host");
        let mut host = HostState::default();
        assert!((0..5).any(|_| detector.failed(&mut host, 10, at(0), &mut || 0)));
        let mut rarely = settings();
        rarely.enforcing = 1;
        let mut detector = Detector::new(rarely);
        let mut host = HostState::default();
        let ejected = (0..5).any(|_| detector.failed(&mut host, 10, at(0), &mut || 1));
        assert!(!ejected);
        assert_eq!(detector.counters().ejections_total, 1);
        assert!(fail(&mut detector, &mut host, 5, 0));
        let mut never = settings();
        never.consecutive_failures = 0;
        let mut detector = Detector::new(never);
        assert!(!fail(&mut detector, &mut HostState::default(), 100, 0));
    }

    /// Connects in the first interval, of which so many fail, each followed by a success.
    fn connects(detector: &mut Detector, host: &mut HostState, count: u32, failures: u32) {
        for n in 0..count {
            if n < 2 * failures && n % 2 == 0 {
                detector.failed(host, 6, at(1), &mut || 0);
            } else {
                detector.succeeded(host, at(1));
            }
        }
    }

    #[test]
    fn ejects_hosts_to_which_far_more_connects_fail_than_to_others() {
        let settings = OutlierDetection {
            success_rate: true,
            ..settings()
        };
        // The number of hosts, the connects of each, the failures of the last one and of each other one, and whether
        // the last one is ejected.
        for (count, each, last, others, ejected) in [
            (6, 100, 40, 0, true),
            (5, 100, 1, 0, true),
            (6, 100, 40, 2, true),
            (6, 100, 0, 0, false),
            (6, 100, 20, 20, false),
            (6, 99, 40, 0, false),
            (4, 1000, 400, 0, false),
        ] {
            let mut detector = Detector::new(settings.clone());
            let mut hosts = vec![HostState::default(); count];
            for (n, host) in hosts.iter_mut().enumerate() {
                let failures = if n == count - 1 { last } else { others };
                connects(&mut detector, host, each, failures);
            }
            assert_eq!(detector.next(), Some(at(10)));
            let case = format!("{count} {each} {last} {others}");
            assert_eq!(detector.tick(at(10), hosts.iter_mut()), ejected, "{case}");
            let states: Vec<bool> = hosts.iter().map(HostState::is_ejected).collect();
            assert_eq!(states[count - 1], ejected, "{case}");
            assert!(!states[..count - 1].contains(&true), "{case}");
            let counters = detector.counters();
            assert_eq!(counters.ejections_enforced_success_rate, u64::from(ejected));
            assert_eq!(counters.ejections_enforced_total, u64::from(ejected));
            // The next interval begins with nothing.
            assert!(!detector.tick(at(20), hosts.iter_mut()), "{case}");
            let next = ejected.then(|| at(30));
            assert_eq!(detector.next(), next, "{case}");
        }
    }

    #[test]
    fn only_connects_count_that_were_made_while_hosts_were_compared() {
        let off = settings();
        let on = OutlierDetection {
            success_rate: true,
            ..settings()
        };
        let mut hosts = vec![HostState::default(); 5];
        let mut detector = Detector::new(off.clone());
        connects(&mut detector, &mut hosts[0], 10_000, 0);
        assert_eq!(detector.next(), None);
        detector.configure(on);
        for host in &mut hosts {
            connects(&mut detector, host, 100, 0);
        }
        assert!(!detector.tick(at(10), hosts.iter_mut()));
        // Switched off in the middle of an interval.
        for (n, host) in hosts.iter_mut().enumerate() {
            connects(&mut detector, host, 100, if n == 0 { 40 } else { 0 });
        }
        detector.configure(off);
        assert!(!detector.tick(at(20), hosts.iter_mut()));
    }

    #[test]
    fn removed_hosts_are_not_counted() {
        let mut detector = Detector::new(settings());
        let mut host = HostState::default();
        assert!(fail(&mut detector, &mut host, 5, 0));
        detector.forget(&mut host);
        assert_eq!(detector.counters().ejections_active, 0);
        assert!(!detector.tick(at(10), [&mut host].into_iter()));
        assert_eq!(detector.next(), None);
    }
}
