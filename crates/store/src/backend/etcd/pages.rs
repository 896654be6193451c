//! Divides a range of keys into pages. Pure: ranges out, answers in.
//!
//! etcd counts all keys of a requested range, not only those that it returns. Whoever reads a large
//! range in pages with a limit therefore waits for a number of steps that grows with the square of
//! the number of keys. So each request has a range that contains about as many keys as a page.
//!
//! A range is a subtree of the binary tree of keys: the keys that share their first bits with the
//! position, up to the end of the subtree. How many bits they share is its depth. An answer tells
//! how many keys a range contains. If there are many more than a page, the rest of it is divided:
//! the next range is deeper. If there are few, the next one is less deep, by steps that double. All
//! ranges that contain the position and have keys left are remembered with the number of these keys,
//! so that keys are counted at most once at each depth.

use super::api::KeyValue;

/// What is left of a range of keys.
#[derive(Debug)]
pub(super) struct Pages {
    /// The number of keys of a page.
    page: u64,
    /// The first key that was not read.
    from: Vec<u8>,
    /// The ranges that contain it and have keys left, each within the one before.
    ranges: Vec<Range>,
    /// The depth of the next range.
    depth: usize,
    /// How much less deep the next range is, after one with few keys.
    step: usize,
}

#[derive(Debug)]
struct Range {
    /// Its end, exclusive.
    to: Vec<u8>,
    depth: usize,
    /// The number of its keys that were not read. Initially more than any range has.
    left: u64,
}

impl Pages {
    /// The pages of a range, with at most so many keys each.
    pub(super) fn new((from, to): (Vec<u8>, Vec<u8>), page: u32) -> Self {
        let depth = shared_bits(&from, &to);
        Self {
            page: page.into(),
            from,
            ranges: vec![Range {
                to,
                depth,
                left: u64::MAX,
            }],
            depth,
            step: 1,
        }
    }

    /// The next range to request, with the number of keys of a page as the limit.
    pub(super) fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let rest = self.ranges.last()?;
        let is_known = rest.left < u64::MAX;
        if is_known && rest.left > 4 * self.page {
            self.depth = self.depth.max(rest.depth + 1);
            let end = end_of_subtree(&self.from, self.depth);
            if let Some(to) = end.filter(|to| *to < rest.to) {
                self.ranges.push(Range {
                    to,
                    depth: self.depth,
                    left: u64::MAX,
                });
            }
        }
        let range = self.ranges.last()?;
        Some((self.from.clone(), range.to.clone()))
    }

    /// The keys that were returned for [`Self::next`], and the number of keys in its range.
    pub(super) fn read(&mut self, keys: &[KeyValue], count: i64) {
        let read = keys.len() as u64;
        let Some((range, around)) = self.ranges.split_last_mut() else {
            return;
        };
        for outer in around {
            outer.left = outer.left.saturating_sub(read);
        }
        range.left = u64::try_from(count).unwrap_or(0).saturating_sub(read);
        if let [first, .., last] | [first @ last] = keys
            && range.left > 0
        {
            self.from = [&last.key[..], &[0]].concat();
            let pages = (range.left / self.page).max(1);
            let even = range.depth + pages.ilog2() as usize;
            // At least these keys are within the subtree of the bits that they share.
            self.depth = even.max(shared_bits(&first.key, &last.key));
            self.step = 1;
            return;
        }
        range.left = 0;
        while let Some(read) = self.ranges.pop_if(|range| range.left == 0) {
            self.from = read.to;
        }
        match self.ranges.last() {
            Some(rest) if read < self.page / 4 => {
                let least = rest.depth + 1;
                let next = self.depth.checked_sub(self.step);
                let next = next.filter(|next| *next > least);
                self.depth = next.unwrap_or(usize::midpoint(least, self.depth));
                self.step *= 2;
            }
            _ => self.step = 1,
        }
    }
}

/// The number of bits that two keys share at their beginning.
fn shared_bits(a: &[u8], b: &[u8]) -> usize {
    let bytes = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    match (a.get(bytes), b.get(bytes)) {
        (Some(a), Some(b)) => 8 * bytes + (a ^ b).leading_zeros() as usize,
        _ => 8 * bytes,
    }
}

/// The end of the keys that share the first bits of a key. `None` if no key follows them.
fn end_of_subtree(key: &[u8], bits: usize) -> Option<Vec<u8>> {
    let mut end = key.to_vec();
    end.resize(bits.div_ceil(8), 0);
    let ignored = 8 * end.len() - bits;
    let mut add = 1_u8 << ignored;
    if let Some(last) = end.last_mut() {
        *last &= u8::MAX << ignored;
    }
    while let Some(last) = end.pop() {
        if let Some(sum) = last.checked_add(add) {
            end.push(sum);
            return Some(end);
        }
        add = 1;
    }
    None
}

#[cfg(test)]
mod tests;
