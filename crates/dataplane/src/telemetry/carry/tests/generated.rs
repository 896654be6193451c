//! Envoys that count, flush, hand over, die and crash in any order, while two readers and the
//! supervisor read their pages in any order: nobody sees a value go back, and in the end everything
//! is as far from what was counted as the module says.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::*;
use crate::telemetry::Format;
use crate::telemetry::merge::Merge;

/// Two counters and a histogram.
const SERIES: usize = 3;
const HISTOGRAM: usize = 2;
const NAMES: [&str; SERIES] = ["a{x=\"y\"}", "b{}", "h_count{}"];

/// An Envoy, as far as its counters go.
#[derive(Debug, Clone, Default)]
struct Envoy {
    epoch: u32,
    values: [u64; SERIES],
    /// What was flushed; the rest is handed on.
    flushed: [u64; SERIES],
    /// What had been flushed when another one took the admin interface over.
    left: [u64; SERIES],
    /// The highest values that somebody has read.
    read: [u64; SERIES],
    dead: bool,
}

impl Envoy {
    fn page(&self) -> String {
        let [a, b, h] = self.values;
        let (sum, gauge) = (h * 3, 7 - self.epoch.min(7));
        format!(
            "# TYPE a counter\na{{x=\"y\"}} {a}\n# TYPE g gauge\ng{{}} {gauge}\n# TYPE b counter\n\
             b{{}} {b}\n# TYPE h histogram\nh_bucket{{le=\"1\"}} {h}\nh_bucket{{le=\"+Inf\"}} {h}\n\
             h_sum{{}} {sum}\nh_count{{}} {h}\n"
        )
    }
}

impl Envoy {
    /// This much of a page with these values has been read.
    fn arrived(&mut self, out: &[u8], values: &[u64; SERIES]) -> String {
        let text = String::from_utf8(out.to_vec()).unwrap();
        for ((read, value), name) in self.read.iter_mut().zip(values).zip(NAMES) {
            if text.contains(name) {
                *read = (*read).max(*value);
            }
        }
        text
    }
}

/// What is read of one page.
struct Reading {
    of: usize,
    merge: Option<Merge>,
    /// What was rendered, and how much of it has arrived.
    page: Option<(String, [u64; SERIES])>,
    half: bool,
    out: Vec<u8>,
}

#[derive(Debug, Clone)]
enum Step {
    Count(usize, usize, u64),
    Flush,
    Read(usize),
    HandOver,
    Start,
    TakeOver,
    Fetch,
    End,
    Die,
    Crash,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2usize, 0..SERIES, 1..100u64).prop_map(|(who, what, by)| Step::Count(who, what, by)),
        2 => Just(Step::Flush),
        8 => (0..2usize).prop_map(Step::Read),
        5 => Just(Step::HandOver),
        2 => Just(Step::Start),
        2 => Just(Step::TakeOver),
        2 => Just(Step::Fetch),
        1 => Just(Step::End),
        1 => Just(Step::Die),
    ]
}

struct World {
    offsets: Offsets,
    envoys: Vec<Envoy>,
    serving: usize,
    /// One that has been started and not become the only one yet.
    child: Option<usize>,
    /// Whose the admin interface is.
    admin: Option<usize>,
    /// Whether the supervisor has read the counters of the one that serves.
    prepared: bool,
    readers: [(Option<Reading>, HashMap<String, f64>); 2],
    supervisor: Option<Reading>,
    /// The first Envoy since counting began anew, unless what became of its counters is lost.
    first: Option<usize>,
}

impl World {
    fn new() -> World {
        World {
            offsets: Offsets::default(),
            envoys: vec![Envoy::default()],
            serving: 0,
            child: None,
            admin: Some(0),
            prepared: false,
            readers: Default::default(),
            supervisor: None,
            first: Some(0),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Count(who, what, by) => {
                let who = [Some(self.serving), self.child][who];
                if let Some(envoy) = who.and_then(|who| self.envoys.get_mut(who)) {
                    envoy.values[what] += by;
                }
            }
            Step::Flush => {
                // One without the admin interface has stopped to flush.
                if let Some(admin) = self.admin {
                    self.envoys[admin].flushed = self.envoys[admin].values;
                }
            }
            Step::Read(reader) => self.read(reader)?,
            Step::HandOver => self.hand_over(),
            Step::Start => self.start(),
            Step::TakeOver => {
                if self.child.is_some() && self.admin == Some(self.serving) {
                    self.admin = self.child;
                    let parent = &mut self.envoys[self.serving];
                    parent.left = parent.flushed;
                }
            }
            Step::Fetch => {
                if let Some(child) = self.child.filter(|_| self.admin == self.child) {
                    for what in 0..HISTOGRAM {
                        let parent = &mut self.envoys[self.serving];
                        let fresh = parent.values[what] - parent.flushed[what];
                        parent.flushed[what] = parent.values[what];
                        self.envoys[child].values[what] += fresh;
                    }
                }
            }
            Step::End => {
                if let Some(child) = self.child.filter(|_| self.admin == self.child) {
                    self.cut(self.serving)?;
                    self.envoys[self.serving].dead = true;
                    (self.serving, self.child, self.prepared) = (child, None, false);
                }
            }
            Step::Die => self.die(),
            Step::Crash => self.crash(),
        }
        Ok(())
    }

    /// Pages end with their Envoy; what has arrived is shown.
    fn cut(&mut self, of: usize) -> Result<(), TestCaseError> {
        for (reading, before) in &mut self.readers {
            if let Some(reading) = reading.take_if(|reading| reading.of == of)
                && let Some((_, values)) = &reading.page
            {
                let text = self.envoys[of].arrived(&reading.out, values);
                World::compare(before, &text)?;
            }
        }
        Ok(())
    }

    /// The next step of somebody who reads; the values when it was the last one.
    fn advance(
        reading: &mut Option<Reading>,
        envoys: &mut [Envoy],
        admin: Option<usize>,
        ask: impl FnOnce(u32) -> Option<Carrying>,
    ) -> Option<String> {
        let Some(now) = reading else {
            *reading = admin.map(|of| Reading {
                of,
                merge: None,
                page: None,
                half: false,
                out: Vec::new(),
            });
            return None;
        };
        let envoy = &mut envoys[now.of];
        let Some(merge) = &mut now.merge else {
            match ask(envoy.epoch).filter(|_| !envoy.dead) {
                Some(carrying) => {
                    let merge = now.merge.insert(Merge::new(Format::Text));
                    merge.begin(Format::Text);
                    merge.carry(carrying);
                }
                None => *reading = None,
            }
            return None;
        };
        let Some((page, values)) = &now.page else {
            now.page = Some((envoy.page(), envoy.values));
            return None;
        };
        let (first, second) = page.split_at(page.len() / 2);
        if !std::mem::replace(&mut now.half, true) {
            merge.push(first.as_bytes(), &mut now.out).unwrap();
            return None;
        }
        merge.push(second.as_bytes(), &mut now.out).unwrap();
        merge.end(&mut now.out).unwrap();
        let text = envoy.arrived(&now.out, values);
        *reading = None;
        Some(text)
    }

    fn read(&mut self, reader: usize) -> Result<(), TestCaseError> {
        let (reading, before) = &mut self.readers[reader];
        let offsets = &self.offsets;
        let ask = |epoch| offsets.connected().or_else(|| offsets.answered_by(epoch));
        match World::advance(reading, &mut self.envoys, self.admin, ask) {
            Some(text) => World::compare(before, &text),
            None => Ok(()),
        }
    }

    /// Nothing on a page may be lower than it was on the ones before.
    fn compare(before: &mut HashMap<String, f64>, text: &str) -> Result<(), TestCaseError> {
        for line in text.lines() {
            let Some((series, value)) = line.split_once(' ').filter(|_| !line.starts_with('#'))
            else {
                continue;
            };
            let value: f64 = value.parse().unwrap();
            let before = before.insert(series.to_owned(), value).unwrap_or_default();
            prop_assert!(
                before <= value || series.starts_with("g{"),
                "{series} goes back from {before} to {value}"
            );
        }
        Ok(())
    }

    fn hand_over(&mut self) {
        if self.child.is_some() || self.admin != Some(self.serving) {
            return;
        }
        let offsets = &self.offsets;
        let ask = |epoch| offsets.handing_over(epoch);
        let read = World::advance(&mut self.supervisor, &mut self.envoys, self.admin, ask);
        self.prepared = self.prepared || read.is_some();
    }

    fn start(&mut self) {
        if self.child.is_some() || !self.prepared || self.supervisor.is_some() {
            return;
        }
        let epoch = self.envoys[self.serving].epoch + 1;
        let lost = self.offsets.state().epoch == Some(epoch);
        self.offsets.starting(epoch);
        if lost {
            self.begin_anew();
        }
        self.child = Some(self.envoys.len());
        self.envoys.push(Envoy {
            epoch,
            ..Envoy::default()
        });
    }

    /// The one that starts fails. Its counters are lost with it, and perhaps what was fetched.
    fn die(&mut self) {
        let Some(child) = self.child.take() else {
            return;
        };
        self.envoys[child].dead = true;
        if self.admin == Some(child) {
            // The other one serves on, and nobody can ask it any more.
            self.admin = None;
            self.first = None;
        }
        for (reading, _) in &mut self.readers {
            reading.take_if(|reading| reading.of == child);
        }
    }

    fn crash(&mut self) {
        self.offsets.starting(0);
        self.begin_anew();
        self.supervisor = None;
        let new = self.envoys.len();
        self.envoys.push(Envoy::default());
        (self.serving, self.child, self.admin) = (new, None, Some(new));
        (self.prepared, self.first) = (false, Some(new));
    }

    /// Readers know by its values that something has begun anew.
    fn begin_anew(&mut self) {
        self.readers = Default::default();
        self.first = None;
    }

    /// The last page, and how it has to be.
    fn finish(mut self) -> Result<(), TestCaseError> {
        for reader in 0..2 {
            while self.readers[reader].0.is_some() {
                self.read(reader)?;
            }
        }
        if self.admin.is_none() {
            return Ok(());
        }
        let reader = 1;
        loop {
            self.read(reader)?;
            if self.readers[reader].0.is_none() {
                break;
            }
        }
        let (Some(first), Some(last)) = (self.first, self.admin) else {
            return Ok(());
        };
        for (what, series) in NAMES.into_iter().enumerate() {
            let shown = self.readers[reader].1[series];
            // Those that served, one after another.
            let chain: Vec<&Envoy> = (self.envoys[first..=last].iter().enumerate())
                .filter(|(at, envoy)| {
                    let next = self.envoys[first..=last][at + 1..].iter();
                    next.clone().all(|next| next.epoch > envoy.epoch)
                })
                .map(|(_, envoy)| envoy)
                .collect();
            let (newest, older) = chain.split_last().unwrap();
            let read: u64 = older.iter().map(|envoy| envoy.read[what]).sum();
            prop_assert_eq!(shown, as_float(read + newest.values[what]));
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn as_float(count: u64) -> f64 {
    count as f64
}

/// What is too high and too low for one Envoy that has handed over, as the module says.
fn bound(envoy: &Envoy, what: usize) -> (u64, u64) {
    let (read, left) = (envoy.read[what], envoy.left[what]);
    let (flushed, end) = (envoy.flushed[what], envoy.values[what]);
    match what {
        HISTOGRAM => (0, end - read),
        _ => (
            read.saturating_sub(left),
            left.saturating_sub(read) + (end - flushed),
        ),
    }
}

proptest! {
    #[test]
    fn nothing_goes_back_whatever_happens(
        steps in proptest::collection::vec(
            prop_oneof![60 => steps(), 1 => Just(Step::Crash)], 0..250),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step)?;
        }
        world.finish()?;
    }

    #[test]
    fn totals_are_within_the_bound(
        steps in proptest::collection::vec(
            steps().prop_filter("nobody dies", |step| !matches!(step, Step::Die)), 0..250),
    ) {
        let mut world = World::new();
        let mut counted = [0; SERIES];
        for step in &steps {
            let before: u64 = world.envoys.iter().map(|envoy| envoy.values.iter().sum::<u64>()).sum();
            world.step(step)?;
            let after: u64 = world.envoys.iter().map(|envoy| envoy.values.iter().sum::<u64>()).sum();
            if let Step::Count(_, what, _) = step {
                counted[*what] += after - before;
            }
        }
        for reader in 0..2 {
            while world.readers[reader].0.is_some() {
                world.read(reader)?;
            }
        }
        while { world.read(0)?; world.readers[0].0.is_some() } {}
        let last = world.admin.unwrap();
        for (what, series) in NAMES.into_iter().enumerate() {
            let bounds = world.envoys[..last].iter().map(|envoy| bound(envoy, what));
            let (high, low) = bounds.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            // One that starts and does not answer yet counts, and shows nothing.
            let unseen: u64 = world.envoys[last + 1..].iter().map(|envoy| envoy.values[what]).sum();
            let (shown, total) = (world.readers[0].1[series], counted[what] - unseen);
            prop_assert!(shown <= as_float(total + high), "{series}: {shown}, {total} and {high}");
            prop_assert!(shown + as_float(low) >= as_float(total), "{series}: {shown}, {total}, {low}");
        }
    }
}
