//! The order of rules, and the weights of backends.

use std::cmp::{Ordering, Reverse};

use crate::matching::{Match, PathMatch};
use crate::rule::WeightedBackend;

/// Orders conditions so that the more specific one is tried first: the longer path, then more
/// headers, then more parameters. Among equals, a whole path precedes an expression and that the
/// beginning of a path, and a method precedes none. Sort with a stable order, in which the rules of
/// older routes come first.
pub fn by_specificity(a: &Match, b: &Match) -> Ordering {
    let key = |one: &Match| {
        let kind = match one.path {
            PathMatch::Exact(_) => 2,
            PathMatch::Regex(_) => 1,
            PathMatch::Prefix(_) | PathMatch::Segments(_) => 0,
        };
        Reverse((
            one.path.text().len(),
            one.headers.len(),
            one.query.len(),
            kind,
            one.method.is_some(),
        ))
    };
    key(a).cmp(&key(b))
}

/// Sets weights from numbers of any size, so that their sum fits in 32 bits and no backend with a
/// share is left without one. Backends without a share are removed.
pub fn spread(backends: Vec<(i64, WeightedBackend)>) -> Vec<WeightedBackend> {
    let mut kept: Vec<_> = backends
        .into_iter()
        .filter(|(weight, _)| *weight > 0)
        .collect();
    let sum: u128 = kept
        .iter()
        .map(|(weight, _)| u128::from(weight.unsigned_abs()))
        .sum();
    // Rounding up adds at most one for each backend.
    let limit = u128::from(u32::MAX) - kept.len() as u128;
    let divisor = sum.div_ceil(limit).max(1);
    let weighted = kept.drain(..).map(|(weight, backend)| {
        let weight = u128::from(weight.unsigned_abs()).div_ceil(divisor);
        WeightedBackend {
            weight: u32::try_from(weight).unwrap_or(u32::MAX),
            ..backend
        }
    });
    weighted.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::matching::{TextMatch, ValueMatch};
    use crate::rule::Target;

    fn matched(path: PathMatch, headers: usize, method: bool) -> Match {
        let header = ValueMatch {
            name: "x".to_owned(),
            value: TextMatch::Present,
        };
        Match {
            path,
            method: method.then(|| "GET".to_owned()),
            headers: vec![header; headers],
            query: Vec::new(),
        }
    }

    #[test]
    fn the_more_specific_condition_is_first() {
        let exact = |text: &str| PathMatch::Exact(text.to_owned());
        let prefix = |text: &str| PathMatch::Prefix(text.to_owned());
        let ordered = [
            matched(prefix("/abc"), 0, false),
            matched(prefix("/ab"), 1, false),
            matched(exact("/ab"), 0, false),
            matched(prefix("/ab"), 0, true),
            matched(prefix("/ab"), 0, false),
            matched(prefix("/"), 3, true),
        ];
        let mut sorted = ordered.clone();
        sorted.reverse();
        sorted.sort_by(by_specificity);
        assert_eq!(sorted, ordered);
    }

    proptest! {
        #[test]
        fn every_backend_keeps_a_share(weights in prop::collection::vec(any::<i64>(), 0..20)) {
            let backend = || WeightedBackend::only(Target::Answer(500));
            let given: Vec<_> = weights.iter().map(|weight| (*weight, backend())).collect();
            let spread = spread(given);
            let wanted = weights.iter().filter(|weight| **weight > 0).count();
            prop_assert_eq!(spread.len(), wanted);
            prop_assert!(spread.iter().all(|one| one.weight > 0));
            let sum: u64 = spread.iter().map(|one| u64::from(one.weight)).sum();
            prop_assert!(sum <= u64::from(u32::MAX));
        }
    }

    #[test]
    fn small_weights_stay_as_they_are() {
        let backend = |weight| (weight, WeightedBackend::only(Target::Answer(500)));
        let spread = spread(vec![backend(3), backend(0), backend(1)]);
        let weights: Vec<_> = spread.iter().map(|one| one.weight).collect();
        assert_eq!(weights, [3, 1]);
    }
}
