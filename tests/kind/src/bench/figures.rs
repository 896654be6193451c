//! Tables and statistics.

/// A series of measurements.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample(Vec<f64>);

impl Sample {
    pub(super) fn add(&mut self, value: f64) {
        let place = self.0.partition_point(|other| *other < value);
        self.0.insert(place, value);
    }

    /// The smallest value that is not exceeded by this percentage of all values.
    pub(super) fn percentile(&self, percent: usize) -> Option<f64> {
        let place = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(place).copied()
    }

    pub(super) fn median(&self) -> Option<f64> {
        self.percentile(50)
    }

    pub(super) fn least(&self) -> Option<f64> {
        self.0.first().copied()
    }

    pub(super) fn most(&self) -> Option<f64> {
        self.0.last().copied()
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

/// The head of a table.
pub(super) fn head(title: &str, columns: &[&str]) {
    println!("\n| {title} | {} |", columns.join(" | "));
    println!("|---|{}", "---:|".repeat(columns.len()));
}

/// A row; `-` for missing values.
pub(super) fn row(label: &str, values: &[Option<f64>], decimals: usize) {
    let cells = values.iter().map(|value| match value {
        Some(value) => format!(" {value:.decimals$} |"),
        None => " - |".to_owned(),
    });
    println!("| {label} |{}", cells.collect::<String>());
}
