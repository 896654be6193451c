//! Simplifies and checks the compiled graph: finds cycles, flattens nested splits, limits their number and drops nodes
//! without references.

use std::collections::BTreeSet;

use legate_model::{HeaderModifiers, Split};

use crate::chain::{NodeKind, Nodes, SplitStep};
use crate::error::ChainError;

/// Header changes of this many bytes count as one more part, because each part repeats the header changes of the outer
/// splits.
const HEADERS: usize = 100;

/// The maximum number of parts of all splitters of a chain, which limits the growth of nested splits.
const MAX_SPLITS: usize = 10_000;

/// The maximum number of parts that all routes of a chain refer to.
const MAX_ROUTED: usize = 100_000;

/// Refuses routes and splits that form a cycle.
pub(crate) fn check_cycles(nodes: &Nodes, start: &str) -> Result<(), ChainError> {
    // The path to the current node with the unvisited successors of each, and the nodes known to be on no cycle.
    let mut way: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut done = BTreeSet::new();
    let next = |key: &str| {
        nodes
            .get(key)
            .map_or_else(BTreeSet::new, |node| node.next())
    };
    let first: Vec<&str> = vec![start];
    way.push(("", first));
    while let Some((_, open)) = way.last_mut() {
        let Some(key) = open.pop() else {
            if let Some((key, _)) = way.pop() {
                done.insert(key);
            }
            continue;
        };
        if way.iter().any(|(on_the_way, _)| *on_the_way == key) {
            let keys = way.iter().skip(1).map(|(key, _)| *key).chain([key]);
            return Err(ChainError::Circle(keys.map(str::to_owned).collect()));
        }
        if !done.contains(key) {
            way.push((key, next(key).into_iter().rev().collect()));
        }
    }
    Ok(())
}

/// Replaces each split that refers to a splitter by the splits of that splitter. `splitters` holds their keys, each
/// after those that it refers to; there are no cycles at this point.
pub(crate) fn flatten_splits(
    nodes: &mut Nodes,
    splitters: &[String],
    chain: &str,
) -> Result<(), ChainError> {
    let mut all = 0;
    for key in splitters {
        let Some(NodeKind::Splitter(splits)) = nodes.get(key).map(|node| &node.kind) else {
            continue;
        };
        // Counted before any split is copied.
        all += splits
            .iter()
            .map(|split| parts(nodes, split))
            .sum::<usize>();
        if all > MAX_SPLITS {
            return Err(ChainError::TooManySplits {
                chain: chain.to_owned(),
                limit: MAX_SPLITS,
            });
        }
        let splits = splits.iter().flat_map(|split| flattened(nodes, split));
        let splits = splits.collect();
        if let Some(node) = nodes.get_mut(key) {
            node.kind = NodeKind::Splitter(splits);
        }
    }
    Ok(())
}

fn parts(nodes: &Nodes, split: &SplitStep) -> usize {
    let own = weight(split);
    match nodes.get(&split.next_node).map(|node| &node.kind) {
        Some(NodeKind::Splitter(inner)) => inner.iter().map(|inner| own - 1 + weight(inner)).sum(),
        _ => own,
    }
}

/// The number of parts that a split counts as.
fn weight(split: &SplitStep) -> usize {
    let Split {
        request_headers,
        response_headers,
        ..
    } = &split.definition;
    let headers = request_headers.iter().chain(response_headers);
    1 + headers.map(HeaderModifiers::bytes).sum::<usize>() / HEADERS
}

fn flattened(nodes: &Nodes, split: &SplitStep) -> Vec<SplitStep> {
    let next = nodes.get(&split.next_node).map(|node| &node.kind);
    let Some(NodeKind::Splitter(inner)) = next else {
        return vec![split.clone()];
    };
    let through = |inner: &SplitStep| SplitStep {
        definition: through(&split.definition, &inner.definition),
        // Rounded in Consul's order of operations, which affects the last digit.
        weight: (split.weight * inner.weight / 100.0 * 100.0).round() / 100.0,
        next_node: inner.next_node.clone(),
    };
    inner.iter().map(through).collect()
}

/// Merges a split into the split that refers to it. Requests pass the outer one first and responses pass it last; the
/// later header change wins.
fn through(outer: &Split, inner: &Split) -> Split {
    let both = |first: &Option<HeaderModifiers>, last: &Option<HeaderModifiers>| match (first, last)
    {
        (Some(first), Some(last)) => Some(first.then(last)),
        (one, other) => one.clone().or_else(|| other.clone()),
    };
    Split {
        request_headers: both(&outer.request_headers, &inner.request_headers),
        response_headers: both(&inner.response_headers, &outer.response_headers),
        ..inner.clone()
    }
}

/// Limits the parts of all routes together, because each route repeats the splits that it refers to.
pub(crate) fn check_routes(nodes: &Nodes, start: &str, chain: &str) -> Result<(), ChainError> {
    let Some(NodeKind::Router(steps)) = nodes.get(start).map(|node| &node.kind) else {
        return Ok(());
    };
    let parts = |next: &str| match nodes.get(next).map(|node| &node.kind) {
        Some(NodeKind::Splitter(splits)) => splits.iter().map(weight).sum(),
        _ => 1,
    };
    let all: usize = steps.iter().map(|step| parts(&step.next_node)).sum();
    if all <= MAX_ROUTED {
        return Ok(());
    }
    Err(ChainError::TooManySplits {
        chain: chain.to_owned(),
        limit: MAX_ROUTED,
    })
}

/// Drops the nodes that are not reachable from the start.
pub(crate) fn drop_unused(nodes: &mut Nodes, start: &str) {
    let mut used = BTreeSet::new();
    let mut open = vec![start.to_owned()];
    while let Some(key) = open.pop() {
        if let Some(node) = nodes.get(&key)
            && used.insert(key)
        {
            open.extend(node.next().into_iter().map(str::to_owned));
        }
    }
    nodes.retain(|key, _| used.contains(key));
}
