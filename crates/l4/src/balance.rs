//! Chooses a host for each connection of a cluster, and counts the connections of each host.
//!
//! The rules are Envoy's: each priority gets a share of the connections by how many of its hosts are healthy, and within
//! a priority the cluster's policy decides. Other than Envoy, it avoids hosts that this connection has tried, while
//! there are others. It dials nothing and has no clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use crate::model::{Address, Balancing, Cluster, Endpoint, Endpoints, Hosts};
use crate::outlier::{Counters, Detector, HostState};

/// A host of one [`Balancer`]. Never used again for another address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(u64);

/// A host that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its id, with which the connection is reported.
    pub id: HostId,
    /// Where to dial.
    pub address: Address,
}

/// Why no host was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoHost {
    /// The cluster has `max_connections` already (flag `UO`, `upstream_cx_overflow`).
    Overflow,
    /// The cluster dials `max_pending_requests` hosts already. To Envoy this is an attempt that failed (flag `URX`).
    Pending,
    /// No host may be used (flag `UH`, `upstream_cx_none_healthy`).
    NoneHealthy,
}

/// The number of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Membership {
    /// All (`membership_total`).
    pub total: usize,
    /// Healthy and not ejected (`membership_healthy`).
    pub healthy: usize,
}

/// A host, for the admin pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostStatus<'a> {
    /// Its id.
    pub id: HostId,
    /// Its address.
    pub address: &'a Address,
    /// Its priority.
    pub priority: usize,
    /// Its weight.
    pub weight: u32,
    /// Whether its endpoint is healthy.
    pub healthy: bool,
    /// Whether it is ejected.
    pub ejected: bool,
    /// Its connections, open and being dialled.
    pub active: u64,
}

/// The hosts of a cluster, and the state of their connections.
///
/// A connection is reported in this order: [`Self::pick`], [`Self::connecting`], then one of [`Self::failed`],
/// [`Self::abandoned`] and [`Self::connected`], and after the last one [`Self::closed`]. A host that was removed is
/// known until its last connection has ended; reports about unknown hosts do nothing.
#[derive(Debug)]
pub struct Balancer {
    balancing: Balancing,
    max_connections: u64,
    max_pending: u64,
    panic_threshold: u32,
    /// All hosts, also removed ones that have connections.
    hosts: HashMap<HostId, State>,
    by_address: HashMap<Address, HostId>,
    priorities: Vec<Priority>,
    outlier: Option<Detector>,
    /// The connections of the cluster, also those without a host.
    active: u64,
    /// Those of them that are being dialled.
    pending: u64,
    without_host: u64,
    next: u64,
    changes: u64,
}

#[derive(Debug)]
struct State {
    address: Address,
    priority: usize,
    weight: u32,
    healthy: bool,
    removed: bool,
    connecting: u64,
    open: u64,
    outlier: HostState,
}

impl State {
    fn active(&self) -> u64 {
        self.connecting + self.open
    }

    fn is_usable(&self) -> bool {
        self.healthy && !self.outlier.is_ejected()
    }
}

#[derive(Debug, Default)]
struct Priority {
    /// In the order of the endpoints.
    hosts: Vec<HostId>,
    /// Those that are chosen from: the healthy ones, or all in panic.
    usable: Vec<HostId>,
    healthy: usize,
    /// The share of the connections in percent.
    load: u32,
    /// Whether the usable hosts have one weight.
    even: bool,
    /// Made when it is needed first, and again after each change.
    turns: Option<Turns>,
}

impl Priority {
    fn membership(&self) -> Membership {
        Membership {
            total: self.hosts.len(),
            healthy: self.healthy,
        }
    }
}

impl Balancer {
    /// A balancer with the hosts that are in the cluster itself, if there are some.
    pub fn new(cluster: &Cluster) -> Self {
        let mut balancer = Self {
            balancing: cluster.balancing,
            max_connections: 0,
            max_pending: 0,
            panic_threshold: 0,
            hosts: HashMap::new(),
            by_address: HashMap::new(),
            priorities: Vec::new(),
            outlier: None,
            active: 0,
            pending: 0,
            without_host: 0,
            next: 0,
            changes: 0,
        };
        balancer.configure(cluster);
        balancer
    }

    /// Takes new settings of the same cluster, and keeps hosts and connections. Static hosts are updated.
    pub fn configure(&mut self, cluster: &Cluster) {
        self.balancing = cluster.balancing;
        self.max_connections = u64::from(cluster.max_connections);
        self.max_pending = u64::from(cluster.max_pending);
        self.panic_threshold = percent(cluster.panic_threshold);
        match (&mut self.outlier, &cluster.outlier_detection) {
            (Some(outlier), Some(settings)) => outlier.configure(settings.clone()),
            (outlier, settings) => {
                for host in self.hosts.values_mut() {
                    host.outlier = HostState::default();
                }
                *outlier = settings.clone().map(Detector::new);
            }
        }
        match &cluster.hosts {
            Hosts::Static(endpoints) => self.update(endpoints),
            _ => self.refresh(),
        }
    }

    /// Takes new endpoints. Hosts with the same address keep their state. Of endpoints with the same address, the first
    /// one counts.
    pub fn update(&mut self, endpoints: &Endpoints) {
        let mut seen = HashSet::new();
        let mut changed = false;
        self.priorities.clear();
        for (priority, endpoints) in endpoints.priorities.iter().enumerate() {
            let mut hosts = Vec::with_capacity(endpoints.len());
            for endpoint in endpoints {
                let (id, new) = self.add(endpoint, priority, &seen);
                if seen.insert(id) {
                    changed |= new;
                    hosts.push(id);
                }
            }
            self.priorities.push(Priority {
                hosts,
                ..Priority::default()
            });
        }
        for (id, host) in &mut self.hosts {
            if host.removed || seen.contains(id) {
                continue;
            }
            host.removed = true;
            changed = true;
            if let Some(outlier) = &mut self.outlier {
                outlier.forget(&mut host.outlier);
            }
        }
        let by_address = &mut self.by_address;
        self.hosts.retain(|_, host| {
            let keep = !host.removed || host.active() > 0;
            if !keep {
                by_address.remove(&host.address);
            }
            keep
        });
        self.changes += u64::from(changed);
        self.refresh();
    }

    /// The host of an endpoint, and whether it is new. What was seen already stays as it is.
    fn add(
        &mut self,
        endpoint: &Endpoint,
        priority: usize,
        seen: &HashSet<HostId>,
    ) -> (HostId, bool) {
        let known = self.by_address.get(&endpoint.address).copied();
        let id = known.unwrap_or(HostId(self.next));
        if known.is_none() {
            self.next += 1;
            self.by_address.insert(endpoint.address.clone(), id);
        }
        let host = self.hosts.entry(id).or_insert_with(|| State {
            address: endpoint.address.clone(),
            priority,
            weight: 1,
            healthy: false,
            // Until now it is no member.
            removed: true,
            connecting: 0,
            open: 0,
            outlier: HostState::default(),
        });
        let new = host.removed;
        if !seen.contains(&id) {
            host.priority = priority;
            host.weight = endpoint.weight.max(1);
            host.healthy = endpoint.healthy;
            host.removed = false;
        }
        (id, new)
    }

    /// Computes what follows from the hosts' states.
    fn refresh(&mut self) {
        for priority in &mut self.priorities {
            let hosts = priority.hosts.iter().copied();
            let usable = hosts.filter(|id| self.hosts.get(id).is_some_and(State::is_usable));
            priority.usable = usable.collect();
            priority.healthy = priority.usable.len();
            priority.turns = None;
        }
        let loads = loads(&self.priorities(), self.panic_threshold);
        for (priority, (load, panic)) in self.priorities.iter_mut().zip(loads) {
            priority.load = load;
            if panic {
                priority.usable.clone_from(&priority.hosts);
            }
            let mut weights = priority.usable.iter().filter_map(|id| self.hosts.get(id));
            let first = weights.next().map(|host| host.weight);
            priority.even = weights.all(|host| Some(host.weight) == first);
        }
    }

    /// Chooses a host. Those in `tried` are avoided while there are others. `random` returns uniform numbers.
    ///
    /// It counts nothing: the caller reports [`Self::connecting`] next.
    pub fn pick(
        &mut self,
        random: &mut impl FnMut() -> u64,
        tried: &[HostId],
    ) -> Result<Host, NoHost> {
        self.room()?;
        let loads = self.priorities.iter().map(|priority| priority.load);
        let first = choose(loads, random());
        let others = (0..self.priorities.len()).filter(|priority| *priority != first);
        let order: Vec<usize> = [first].into_iter().chain(others).collect();
        let host = self.pick_from(&order, random, tried)?;
        self.may_dial(host)
    }

    /// As [`Self::pick`], from one priority only, as [`aggregate`] has chosen it.
    pub fn pick_in(
        &mut self,
        priority: usize,
        random: &mut impl FnMut() -> u64,
        tried: &[HostId],
    ) -> Result<Host, NoHost> {
        self.room()?;
        let host = self.pick_from(&[priority], random, tried)?;
        self.may_dial(host)
    }

    fn room(&self) -> Result<(), NoHost> {
        match self.is_full() {
            true => Err(NoHost::Overflow),
            false => Ok(()),
        }
    }

    /// Whether another host may be dialled. As in Envoy, this is asked when there is one.
    fn may_dial(&self, host: Host) -> Result<Host, NoHost> {
        match self.pending >= self.max_pending {
            true => Err(NoHost::Pending),
            false => Ok(host),
        }
    }

    /// A host of the first of these priorities that has one that was not tried, or else has one.
    fn pick_from(
        &mut self,
        order: &[usize],
        random: &mut impl FnMut() -> u64,
        tried: &[HostId],
    ) -> Result<Host, NoHost> {
        let has = |priority: &Priority, tried: &[HostId]| {
            let mut usable = priority.usable.iter();
            usable.any(|id| !tried.contains(id))
        };
        for tried in [tried, &[]] {
            for index in order {
                let Some(priority) = self.priorities.get_mut(*index) else {
                    continue;
                };
                if !has(priority, tried) {
                    continue;
                }
                let mut candidates = Candidates {
                    hosts: &self.hosts,
                    priority,
                    tried,
                };
                let id = candidates.pick(self.balancing, random);
                if let Some((id, host)) = id.and_then(|id| Some((id, self.hosts.get(&id)?))) {
                    let address = host.address.clone();
                    return Ok(Host { id, address });
                }
            }
        }
        Err(NoHost::NoneHealthy)
    }

    /// A host is being dialled.
    pub fn connecting(&mut self, host: HostId) {
        if let Some(host) = self.hosts.get_mut(&host) {
            host.connecting += 1;
            self.active += 1;
            self.pending += 1;
        }
    }

    /// A host that was being dialled is connected.
    pub fn connected(&mut self, host: HostId, now: Duration) {
        let Some(host) = self.hosts.get_mut(&host) else {
            return;
        };
        if host.connecting > 0 {
            host.connecting -= 1;
            host.open += 1;
            self.pending = self.pending.saturating_sub(1);
        }
        if let Some(outlier) = &mut self.outlier
            && !host.removed
        {
            outlier.succeeded(&mut host.outlier, now);
        }
    }

    /// A host that was being dialled did not accept, or not in time. Returns whether it is ejected because of this.
    pub fn failed(
        &mut self,
        host: HostId,
        now: Duration,
        random: &mut impl FnMut() -> u64,
    ) -> bool {
        let total = self.membership().total;
        let state = self.hosts.get_mut(&host);
        let ejected = match (state, &mut self.outlier) {
            (Some(state), Some(outlier)) if !state.removed => {
                outlier.failed(&mut state.outlier, total, now, random)
            }
            _ => false,
        };
        if ejected {
            self.refresh();
        }
        self.abandoned(host);
        ejected
    }

    /// A host is no longer being dialled, because the client has left: neither a success nor a failure.
    pub fn abandoned(&mut self, host: HostId) {
        if self.ended(host, |host| &mut host.connecting) {
            self.pending = self.pending.saturating_sub(1);
        }
    }

    /// A connection to a host has ended.
    pub fn closed(&mut self, host: HostId) {
        let _ = self.ended(host, |host| &mut host.open);
    }

    /// Counts a connection down. Returns whether there was one.
    fn ended(&mut self, id: HostId, counter: impl Fn(&mut State) -> &mut u64) -> bool {
        let Some(host) = self.hosts.get_mut(&id) else {
            return false;
        };
        let count = counter(host);
        if *count == 0 {
            return false;
        }
        *count -= 1;
        self.active = self.active.saturating_sub(1);
        if host.removed && host.active() == 0 {
            self.by_address.remove(&host.address);
            self.hosts.remove(&id);
        }
        true
    }

    /// Counts a connection to an address that is no host of the cluster: for the original destination. Fails if there
    /// are `max_connections`. [`Self::release`] ends it.
    pub fn acquire(&mut self) -> Result<(), NoHost> {
        self.room()?;
        self.without_host += 1;
        self.active += 1;
        Ok(())
    }

    /// Ends what [`Self::acquire`] has begun.
    pub fn release(&mut self) {
        if self.without_host > 0 {
            self.without_host -= 1;
            self.active = self.active.saturating_sub(1);
        }
    }

    /// Ends ejections whose time is over, and ejects hosts that do worse than others. To be called at
    /// [`Self::next_tick`]; before, it does nothing.
    pub fn tick(&mut self, now: Duration) {
        let Some(outlier) = &mut self.outlier else {
            return;
        };
        let hosts = self.hosts.values_mut().filter(|host| !host.removed);
        if outlier.tick(now, hosts.map(|host| &mut host.outlier)) {
            self.refresh();
        }
    }

    /// When [`Self::tick`] has something to do; `None` if nothing, until the next connect.
    pub fn next_tick(&self) -> Option<Duration> {
        self.outlier.as_ref().and_then(Detector::next)
    }

    /// The number of hosts.
    pub fn membership(&self) -> Membership {
        let mut all = Membership::default();
        for priority in &self.priorities {
            all.total += priority.hosts.len();
            all.healthy += priority.healthy;
        }
        all
    }

    /// How often hosts came or went (`membership_change`).
    pub fn membership_changes(&self) -> u64 {
        self.changes
    }

    /// The number of hosts of each priority.
    pub fn priorities(&self) -> Vec<Membership> {
        self.priorities.iter().map(Priority::membership).collect()
    }

    /// The connections of the cluster, open and being dialled, those to removed hosts included.
    pub fn active(&self) -> u64 {
        self.active
    }

    /// Whether the cluster has `max_connections` (`circuit_breakers.default.cx_open`).
    pub fn is_full(&self) -> bool {
        self.active >= self.max_connections
    }

    /// Counters of the outlier detection; `None` without one.
    pub fn outlier(&self) -> Option<Counters> {
        self.outlier.as_ref().map(Detector::counters)
    }

    /// Every host but removed ones, by priority, for the admin pages.
    pub fn hosts(&self) -> impl Iterator<Item = HostStatus<'_>> {
        let all = self.priorities.iter().flat_map(|priority| &priority.hosts);
        all.filter_map(|id| {
            let host = self.hosts.get(id)?;
            Some(HostStatus {
                id: *id,
                address: &host.address,
                priority: host.priority,
                weight: host.weight,
                healthy: host.healthy,
                ejected: host.outlier.is_ejected(),
                active: host.active(),
            })
        })
    }
}

/// Chooses a cluster of an aggregate, and one of its priorities, as Envoy does: the priorities of all members form one
/// list. `members` has `None` for a cluster that does not exist. The host comes from [`Balancer::pick_in`] of the member
/// with the first number, and the priority with the second. `panic_threshold` is that of the aggregate.
pub fn aggregate(
    members: &[Option<&Balancer>],
    panic_threshold: f64,
    random: &mut impl FnMut() -> u64,
) -> Option<(usize, usize)> {
    let mut all = Vec::new();
    for (member, balancer) in members.iter().enumerate() {
        for (index, priority) in balancer
            .iter()
            .flat_map(|of| of.priorities.iter().enumerate())
        {
            // Priorities without hosts are left out.
            if !priority.hosts.is_empty() {
                all.push(((member, index), priority));
            }
        }
    }
    let memberships: Vec<Membership> = all.iter().map(|(_, of)| of.membership()).collect();
    let loads = loads(&memberships, percent(panic_threshold));
    let chosen = choose(loads.into_iter().map(|(load, _)| load), random());
    // A share of less than a percent is rounded to nothing, but serves if nothing else does.
    let chosen = all.get(chosen).filter(|(_, of)| !of.usable.is_empty());
    let chosen = chosen.or_else(|| all.iter().find(|(_, of)| !of.usable.is_empty()));
    chosen.map(|(at, _)| *at)
}

/// A share in percent, as Envoy rounds it.
fn percent(share: f64) -> u32 {
    share.clamp(0.0, 100.0).round() as u32
}

/// Hosts count for more than they are, so that a few unhealthy ones do not move connections to the next priority:
/// Envoy's `overprovisioning_factor`, in percent.
const OVERPROVISIONING: usize = 140;

/// For each priority the share of the connections in percent, and whether unhealthy hosts are used as well. The sum is
/// 100, if there are priorities.
///
/// Each priority takes what its healthy hosts can bear, and the rest goes to the next. If all together cannot bear
/// everything, their shares are scaled up.
fn loads(priorities: &[Membership], panic_threshold: u32) -> Vec<(u32, bool)> {
    let bears = |of: &Membership| match of.total {
        0 => 0,
        total => (OVERPROVISIONING * of.healthy / total).min(100),
    };
    let bears: Vec<usize> = priorities.iter().map(bears).collect();
    let sum = bears.iter().sum::<usize>().min(100);
    let in_panic = |of: &Membership| {
        let threshold = usize::try_from(panic_threshold).unwrap_or(100);
        sum < 100 && 100 * of.healthy < threshold * of.total.max(1)
    };
    let panic: Vec<bool> = priorities.iter().map(in_panic).collect();
    let total = priorities.iter().map(|of| of.total).sum::<usize>();
    let by_number = total > 0 && panic.iter().all(|panic| *panic);
    let mut left = 100;
    let share = |(of, bears): (&Membership, &usize)| {
        let share = match by_number {
            true => 100 * of.total / total,
            false => bears * 100 / sum.max(1),
        };
        let share = share.min(left);
        left -= share;
        share
    };
    let mut shares: Vec<usize> = priorities.iter().zip(&bears).map(share).collect();
    // What was lost by rounding goes to the first that serves; everything to the first of all if none does.
    let rest = 100 - shares.iter().sum::<usize>();
    let mut serving = priorities.iter().zip(&bears);
    let first = serving.position(|(of, bears)| *bears > 0 || (by_number && of.total > 0));
    let first = first.unwrap_or(0);
    if let Some(share) = shares.get_mut(first) {
        *share += rest;
    }
    let shares = shares
        .into_iter()
        .map(|share| u32::try_from(share).unwrap_or(0));
    shares.zip(panic).collect()
}

/// The priority that a random number falls on.
fn choose(loads: impl Iterator<Item = u32>, random: u64) -> usize {
    let at = random % 100;
    let mut sum = 0;
    let mut loads = loads.map(|load| {
        sum += u64::from(load);
        sum
    });
    loads.position(|sum| at < sum).unwrap_or(0)
}

/// The hosts that one connection may get.
struct Candidates<'a> {
    hosts: &'a HashMap<HostId, State>,
    priority: &'a mut Priority,
    tried: &'a [HostId],
}

impl Candidates<'_> {
    fn pick(&mut self, balancing: Balancing, random: &mut impl FnMut() -> u64) -> Option<HostId> {
        match balancing {
            Balancing::Random => self.at_random(random),
            Balancing::LeastRequest { choices } if self.priority.even => {
                let mut best = self.at_random(random)?;
                for _ in 1..choices {
                    let other = self.at_random(random)?;
                    if self.active(other) < self.active(best) {
                        best = other;
                    }
                }
                Some(best)
            }
            // With weights, as Envoy: in turn, where a host with connections waits longer.
            Balancing::LeastRequest { .. } => self.in_turn(true, random),
            Balancing::RoundRobin => self.in_turn(false, random),
        }
    }

    fn active(&self, host: HostId) -> u64 {
        self.hosts.get(&host).map_or(0, State::active)
    }

    /// Each with the same probability. Envoy's policy `RANDOM` ignores weights.
    fn at_random(&self, random: &mut impl FnMut() -> u64) -> Option<HostId> {
        let usable = &self.priority.usable;
        if self.tried.is_empty() {
            return usable.get(below(usable.len(), random())).copied();
        }
        let left = || usable.iter().filter(|id| !self.tried.contains(id));
        left().nth(below(left().count(), random())).copied()
    }

    fn in_turn(
        &mut self,
        by_connections: bool,
        random: &mut impl FnMut() -> u64,
    ) -> Option<HostId> {
        let hosts = self.hosts;
        let pause = |id: HostId| {
            let host = hosts.get(&id);
            let weight = host.map_or(1, |host| host.weight.max(1));
            let connections = match by_connections {
                true => host.map_or(0, State::active),
                false => 0,
            };
            Turns::ROUND / u128::from(weight) * u128::from(connections + 1)
        };
        let usable = &self.priority.usable;
        let turns = self
            .priority
            .turns
            .get_or_insert_with(|| Turns::new(usable, &pause, random));
        turns.next(self.tried, &pause)
    }
}

/// A number below this one, from a uniform number.
fn below(end: usize, random: u64) -> usize {
    let scaled = (u128::from(random) * end as u128) >> 64;
    usize::try_from(scaled).unwrap_or(0)
}

/// Hosts in turn: each has its next turn after a pause that is shorter the more weight it has (earliest deadline first).
#[derive(Debug)]
struct Turns {
    now: u128,
    /// The next turn of each host; the number keeps the order of equal ones.
    queue: BinaryHeap<Reverse<(u128, u64, HostId)>>,
    number: u64,
}

impl Turns {
    /// The pause of a host of weight 1.
    const ROUND: u128 = 1 << 64;

    /// The first turn of each host is somewhere in its pause, so that proxies, and threads of one, begin with different
    /// hosts.
    fn new(
        hosts: &[HostId],
        pause: &impl Fn(HostId) -> u128,
        random: &mut impl FnMut() -> u64,
    ) -> Self {
        let mut turns = Self {
            now: 0,
            queue: BinaryHeap::with_capacity(hosts.len()),
            number: 0,
        };
        for host in hosts {
            let part = u128::from(random() >> 32);
            turns.add((pause(*host) >> 32) * part, *host);
        }
        turns
    }

    fn add(&mut self, at: u128, host: HostId) {
        self.number += 1;
        self.queue.push(Reverse((at, self.number, host)));
    }

    /// The next host that was not tried. Those that are passed over keep their turn.
    fn next(&mut self, tried: &[HostId], pause: &impl Fn(HostId) -> u128) -> Option<HostId> {
        let mut passed = Vec::new();
        let found = loop {
            let Some(Reverse(turn)) = self.queue.pop() else {
                break None;
            };
            if !tried.contains(&turn.2) {
                break Some(turn);
            }
            passed.push(Reverse(turn));
        };
        self.queue.extend(passed);
        let (at, _, host) = found?;
        self.now = self.now.max(at);
        self.add(self.now + pause(host), host);
        Some(host)
    }
}

#[cfg(test)]
mod tests;
