//! Lists in the order of the distance from a node, by the coordinates that nodes have.

use legate_store::ReadTxn;

/// What stands for the node of the server that answers.
pub(crate) const AGENT: &str = "_agent";

/// Puts the nearest first. Items of nodes without a coordinate come last, in the order they had; from
/// a node without one there is no order at all.
pub(crate) fn sort_from<T>(
    state: &ReadTxn<'_>,
    origin: &str,
    items: &mut [T],
    node: impl Fn(&T) -> &str,
) {
    let Some(origin) = state.coordinate(origin) else {
        return;
    };
    items.sort_by_cached_key(|item| {
        let place = state.coordinate(node(item));
        // In nanoseconds, as precisely as Consul compares.
        place.map_or(u64::MAX, |place| {
            (origin.coord.distance(&place.coord) * 1e9) as u64
        })
    });
}
