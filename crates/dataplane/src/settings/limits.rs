//! Settings that are understood and have no effect. One that would silently do nothing where
//! someone relies on it has to be refused instead; there is none at present.

use super::table::Item;
use super::values::Values;

/// What was set and has no effect, and what happens instead.
const WITHOUT_EFFECT: [(Item, &str); 1] = [(
    Item::PromRetentionTime,
    "metrics stay visible as long as the process runs",
)];

/// One warning for each setting that was given and has no effect.
pub(super) fn warnings(values: &Values) -> Vec<String> {
    WITHOUT_EFFECT
        .iter()
        .filter(|(item, _)| values.given(*item))
        .map(|(item, instead)| {
            format!(
                "-{} has no effect in this version: {instead}",
                item.setting().flag
            )
        })
        .collect()
}
