//! Thresholds of consecutive results that change a check's status. Consul's `success_before_passing`,
//! `failures_before_warning` and `failures_before_critical`.

use legate_model::{CheckStatus, CheckType};

/// Consecutive results of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Count {
    successes: u32,
    failures: u32,
}

impl Default for Count {
    /// Starts above both thresholds, so that the first result of a check takes effect immediately.
    fn default() -> Self {
        Self {
            successes: u32::MAX,
            failures: u32::MAX,
        }
    }
}

impl Count {
    /// Counts a result. Returns the new status, or `None` if the status remains unchanged. A warning
    /// counts as a success.
    pub(crate) fn result(&mut self, of: &CheckType, result: CheckStatus) -> Option<CheckStatus> {
        if result != CheckStatus::Critical {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            return (self.successes >= of.success_before_passing).then_some(result);
        }
        self.successes = 0;
        self.failures = self.failures.saturating_add(1);
        let until_warning = match of.failures_before_warning {
            0 => of.failures_before_critical,
            own => own,
        };
        if self.failures >= of.failures_before_critical {
            Some(CheckStatus::Critical)
        } else if self.failures >= until_warning {
            Some(CheckStatus::Warning)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CheckStatus::{Critical, Passing, Warning};

    fn statuses(of: &CheckType, results: &[CheckStatus]) -> Vec<Option<CheckStatus>> {
        let mut count = Count::default();
        results
            .iter()
            .map(|result| count.result(of, *result))
            .collect()
    }

    #[test]
    fn without_thresholds_every_result_takes_effect() {
        let results = [Passing, Critical, Warning, Critical];
        let seen = statuses(&CheckType::default(), &results);
        assert_eq!(seen, results.map(Some));
    }

    #[test]
    fn thresholds_count_consecutive_results() {
        let of = CheckType {
            success_before_passing: 2,
            failures_before_warning: 2,
            failures_before_critical: 3,
            ..CheckType::default()
        };
        assert_eq!(
            statuses(
                &of,
                &[
                    Passing, Critical, Critical, Critical, Passing, Critical, Passing, Passing
                ]
            ),
            [
                Some(Passing),
                None,
                Some(Warning),
                Some(Critical),
                None,
                None,
                None,
                Some(Passing)
            ]
        );
        let of = CheckType {
            failures_before_critical: 2,
            ..CheckType::default()
        };
        let results = [Critical, Passing, Critical, Critical];
        assert_eq!(
            statuses(&of, &results),
            [Some(Critical), Some(Passing), None, Some(Critical)]
        );
    }
}
