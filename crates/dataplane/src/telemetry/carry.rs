//! Keeps Envoy's counters from going back when one Envoy hands over to the next. Values in, values
//! out, without IO; [`super::hand_over`] reads and asks.
//!
//! An Envoy that takes over from another one counts from zero. To each counter, and to buckets, sums
//! and counts of histograms, is added what was shown of it for the one before. Everything else stays
//! as it is, and so does every byte of a page to which nothing is added.
//!
//! **Who answers decides what is added**, not when it is noticed that another Envoy serves: each page
//! is read over a connection that was asked for the epoch of the Envoy at its other end. A page of the
//! older one that is read while the hand-over is prepared, or later over a connection that was open
//! already, adds to what is carried on whatever it shows. So whoever reads pages one after another
//! never sees a value go back.
//!
//! **How far totals may be off.** An Envoy hands on to its successor what it has counted since its last
//! flush, and nothing of its histograms. With R the moment of the last page of the old Envoy that was
//! read, L its last flush before the new one took its admin interface, M the last time that the new one
//! fetched what the old one counted, and E the end of the old one, a total is
//!
//! * too high by what the old one counted from L to R, which it hands on although it was read, or
//! * too low by what it counted from R to L, which it never hands on, and
//! * too low by what it counted from M to E: requests of connections that were draining.
//!
//! The first and the last are at most the length of Envoy's flush interval, 5 s by default, and the first
//! is made small by reading right after a flush; the second is less than what the new one takes to start.
//! Histograms are never too high, and too low by what was measured between the last flush that a page of
//! the old one showed and E.
//!
//! A counter that Envoy has removed and made again begins anew, as it does for who reads Envoy itself: a
//! value below the last one of the same Envoy gets nothing added any more. Values are exact up to 2⁵³.
//! Series are told apart by 64 bits of a keyed hash of name and labels: of 100,000 series two are alike
//! once in four billion times.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::line::{Line, Metadata, Sample};

/// How many series are carried on at most, 24 bytes each. Others begin anew.
pub(super) const SERIES: usize = 100_000;

/// What is added to a series.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    series: u64,
    offset: f64,
    /// The highest value of the Envoy that counts now, from pages that were read to their end.
    last: f64,
}

/// In the order of the series. Without those to which nothing is added.
type Table = Arc<[Row]>;

/// What is added to the pages of the Envoy that serves, and what will be to those of the next.
/// Copies share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Offsets {
    state: Arc<Mutex<State>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the tables.
    generation: u64,
    /// Whose table it is, once it has said so.
    epoch: Option<u32>,
    table: Table,
    /// Set while another Envoy may take over.
    next: Option<Next>,
    /// Counts the pages that were begun.
    pages: u64,
    /// Whether it was told that there are too many series.
    told: bool,
}

#[derive(Debug, Default)]
struct Next {
    table: Table,
    /// The last page that was begun when something was put into the table.
    page: u64,
}

impl Offsets {
    /// For a connection that stands: what is added to its page where that is certain. Otherwise
    /// who is at its other end has to be asked, and [`Offsets::answered_by`] tells.
    ///
    /// Nothing has to be asked before the first hand-over: no other Envoy can have accepted it.
    pub(super) fn connected(&self) -> Option<Carrying> {
        let mut state = self.state();
        let sure = state.epoch.is_none();
        sure.then(|| self.carrying(&mut state))
    }

    /// What is added to the page of the Envoy with this epoch. Nothing can be said of the page of
    /// one that has handed over by now.
    pub(super) fn answered_by(&self, epoch: u32) -> Option<Carrying> {
        let mut state = self.state();
        state.answered_by(epoch).then(|| self.carrying(&mut state))
    }

    /// The same, and another Envoy may take over from this one. To be called before the other is
    /// started; the page has to be asked for afterwards.
    pub(super) fn handing_over(&self, epoch: u32) -> Option<Carrying> {
        let mut state = self.state();
        if !state.answered_by(epoch) {
            return None;
        }
        state.next.get_or_insert_default();
        Some(self.carrying(&mut state))
    }

    /// A process with this epoch is about to be started. When none runs beside it, or when this
    /// epoch has answered already and so was lost, counting begins anew.
    pub(super) fn starting(&self, epoch: u32) {
        let mut state = self.state();
        if epoch == 0 || state.epoch == Some(epoch) {
            *state = State {
                // Pages that are on their way know nothing of what begins.
                generation: state.generation + 2,
                pages: state.pages,
                told: state.told,
                ..State::default()
            };
        }
    }

    fn carrying(&self, state: &mut State) -> Carrying {
        state.pages += 1;
        Carrying {
            offsets: self.clone(),
            generation: state.generation,
            page: state.pages,
            seen: vec![f64::NAN; state.table.len()],
            table: Arc::clone(&state.table),
            recording: state.next.is_some(),
            recorded: Vec::new(),
            full: false,
            family: String::new(),
            kind: Kind::Other,
            bucket: (String::new(), 0.0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the Envoy with this epoch is the newest that has answered.
    fn answered_by(&mut self, epoch: u32) -> bool {
        match self.epoch {
            Some(known) if epoch < known => return false,
            Some(known) if epoch > known => {
                self.generation += 1;
                self.table = self.next.take().unwrap_or_default().table;
            }
            _ => {}
        }
        self.epoch = Some(epoch);
        true
    }

    /// Whether pages of that generation have to be known to the next one.
    fn records(&self, generation: u64) -> bool {
        (self.generation == generation && self.next.is_some()) || self.generation == generation + 1
    }

    /// Takes what a page has shown.
    fn publish(&mut self, page: &mut Carrying) {
        let recorded = std::mem::take(&mut page.recorded);
        let mut full = page.full;
        if self.generation == page.generation {
            if !page.table.is_empty() {
                self.table = seen(&self.table, page);
            }
            if let Some(next) = &mut self.next
                && !recorded.is_empty()
            {
                // What was shown later counts, also where a counter has begun anew.
                let later = page.page > next.page;
                next.table = lift(&next.table, recorded, later, &mut full);
                next.page = self.pages;
            }
        } else if self.generation == page.generation + 1 && !recorded.is_empty() {
            self.table = lift(&self.table, recorded, false, &mut full);
        }
        if full && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                target: "metrics",
                limit = SERIES,
                "Envoy has more series than are carried on over a hot restart; the rest begin anew"
            );
        }
    }
}

/// The table with the values of a page, without the series that began anew.
fn seen(table: &Table, page: &Carrying) -> Table {
    let mut values = page.table.iter().zip(&page.seen).peekable();
    let rows = table.iter().filter_map(|row| {
        while values.next_if(|(of, _)| of.series < row.series).is_some() {}
        match values.next_if(|(of, _)| of.series == row.series) {
            Some((of, value)) if *value < of.last => None,
            // Not a number: it was not on the page.
            Some((_, value)) => Some(Row {
                last: row.last.max(*value),
                ..*row
            }),
            None => Some(*row),
        }
    });
    rows.collect()
}

/// The table with what a page has shown: the higher value counts, or the `later` one.
fn lift(table: &Table, mut recorded: Vec<(u64, f64)>, later: bool, full: &mut bool) -> Table {
    recorded.sort_unstable_by_key(|(series, _)| *series);
    recorded.dedup_by(|again, first| {
        let same = again.0 == first.0;
        if same {
            first.1 = first.1.max(again.1);
        }
        same
    });
    let mut room = SERIES.saturating_sub(table.len());
    let mut rows = Vec::with_capacity(table.len() + recorded.len().min(room));
    let mut old = table.iter().peekable();
    for (series, shown) in recorded {
        while let Some(row) = old.next_if(|row| row.series < series) {
            rows.push(*row);
        }
        if let Some(row) = old.next_if(|row| row.series == series) {
            let offset = if later { shown } else { row.offset.max(shown) };
            rows.push(Row { offset, ..*row });
        } else if room > 0 {
            room -= 1;
            rows.push(Row {
                series,
                offset: shown,
                last: 0.0,
            });
        } else {
            *full = true;
        }
    }
    rows.extend(old);
    rows.into()
}

/// What the values of a family mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    /// Histograms and summaries.
    Distribution,
    /// Its values may go back by themselves.
    Other,
}

/// Goes through one page of an Envoy. What it has shown is known to others when it is dropped,
/// which has to be before the reader has the whole page.
#[derive(Debug)]
pub(super) struct Carrying {
    offsets: Offsets,
    generation: u64,
    page: u64,
    table: Table,
    /// The values on this page, in the order of the table.
    seen: Vec<f64>,
    recording: bool,
    recorded: Vec<(u64, f64)>,
    full: bool,
    /// The family whose samples follow: Envoy's are never apart.
    family: String,
    kind: Kind,
    /// Labels of the last bucket without its bound, and what was added to it.
    bucket: (String, f64),
}

impl Carrying {
    /// More of the page has arrived. A hand-over may be prepared by now.
    pub(super) fn look(&mut self) {
        self.recording = self.recording || self.offsets.state().records(self.generation);
    }

    /// What has to be shown in place of the value of a line, where that is something else.
    pub(super) fn line(&mut self, line: &Line<'_>) -> Option<f64> {
        match line {
            Line::Metadata {
                what: Metadata::Type,
                family,
                text,
            } => self.family(family, text),
            Line::Sample(sample) => return self.value(sample),
            Line::Metadata { .. } | Line::Nothing | Line::End => {}
        }
        None
    }

    /// The samples of this family follow.
    fn family(&mut self, family: &str, kind: &str) {
        self.family.clear();
        self.family.push_str(family);
        self.kind = match kind {
            "counter" => Kind::Counter,
            "histogram" | "summary" => Kind::Distribution,
            _ => Kind::Other,
        };
    }

    fn value(&mut self, sample: &Sample<'_>) -> Option<f64> {
        if !self.recording && self.table.is_empty() {
            return None;
        }
        let suffix = sample.name.strip_prefix(self.family.as_str())?;
        match (self.kind, suffix) {
            (Kind::Counter, "" | "_total") => {}
            (Kind::Distribution, "_bucket" | "_sum" | "_count") => {}
            _ => return None,
        }
        let value: f64 = sample.value.parse().ok()?;
        if !value.is_finite() || value < 0.0 {
            return None;
        }
        let series = self.offsets.hasher.hash_one(sample.series);
        let found = self.offset(series, value);
        let offset = match suffix {
            "_bucket" => self.bucket(sample.series, found),
            _ => found.unwrap_or_default(),
        };
        let shown = value + offset;
        if self.recording && shown > 0.0 {
            match self.recorded.len() < SERIES {
                true => self.recorded.push((series, shown)),
                false => self.full = true,
            }
        }
        (offset > 0.0).then_some(shown)
    }

    /// What the table adds to a series, which has this value.
    fn offset(&mut self, series: u64, value: f64) -> Option<f64> {
        let row = self
            .table
            .binary_search_by_key(&series, |row| row.series)
            .ok()?;
        let (row, seen) = (self.table.get(row)?, self.seen.get_mut(row)?);
        *seen = value;
        // Below what pages showed that were complete when this one began: it was made again.
        Some(if value < row.last { 0.0 } else { row.offset })
    }

    /// What is added to a bucket: never less than to the one below it. A bound that is new in this
    /// Envoy is not in the table.
    fn bucket(&mut self, series: &str, found: Option<f64>) -> f64 {
        let labels = series.rfind("le=\"").map_or(series, |at| &series[..at]);
        if self.bucket.0 != labels {
            self.bucket.0.clear();
            self.bucket.0.push_str(labels);
            self.bucket.1 = 0.0;
        }
        let added = match found {
            Some(0.0) => 0.0,
            found => found.unwrap_or_default().max(self.bucket.1),
        };
        self.bucket.1 = added;
        added
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        let offsets = self.offsets.clone();
        offsets.state().publish(self);
    }
}

#[cfg(test)]
mod tests;
