//! Sorts lists by network distance, from nodes' coordinates.

use legate_store::ReadTxn;

/// Alias for the node of the responding server (`?near=_agent`).
pub(crate) const AGENT: &str = "_agent";

/// Sorts by distance from `origin`. Items of nodes without a coordinate come last, in their original order. If
/// `origin` has no coordinate, the order is unchanged.
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
        // In nanoseconds, Consul's precision.
        place.map_or(u64::MAX, |place| {
            (origin.coord.distance(&place.coord) * 1e9) as u64
        })
    });
}
