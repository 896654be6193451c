//! Tables with one column per program, and the ratio of the first to the second.
#![expect(clippy::print_stdout, reason = "tables are the result of a benchmark")]

use crate::program::Program;

/// One table.
#[derive(Debug)]
pub struct Table<'a> {
    programs: &'a [Program],
    decimals: usize,
}

impl<'a> Table<'a> {
    /// Starts a table for values with this many decimals.
    #[must_use]
    pub fn new(title: &str, programs: &'a [Program], decimals: usize) -> Table<'a> {
        let names = programs
            .iter()
            .map(|program| format!(" {} |", program.name));
        let ratio = if programs.len() == 2 { " ratio |" } else { "" };
        println!("\n| {title} |{}{ratio}", names.collect::<String>());
        let columns = programs.len() + usize::from(!ratio.is_empty());
        println!("|---|{}", "---:|".repeat(columns));
        Table { programs, decimals }
    }

    /// One value per program; `None` if there is none.
    pub fn row(&self, label: &str, values: &[Option<f64>]) {
        self.precise_row(label, values, self.decimals);
    }

    /// The same with a different number of decimals.
    pub fn precise_row(&self, label: &str, values: &[Option<f64>], decimals: usize) {
        let cells = values.iter().map(|value| match value {
            Some(value) => format!(" {value:.decimals$} |"),
            None => " - |".to_owned(),
        });
        let ratio = match values {
            [Some(first), Some(second)] if *second > 0.0 => format!(" {:.2} |", first / second),
            _ if self.programs.len() == 2 => " - |".to_owned(),
            _ => String::new(),
        };
        println!("| {label} |{}{ratio}", cells.collect::<String>());
    }

    /// The median of the values measured for each program.
    pub fn medians(&self, label: &str, values: &[Vec<f64>]) {
        let medians: Vec<_> = values.iter().map(|values| median(values)).collect();
        self.row(label, &medians);
    }

    /// The maximum of the values measured for each program.
    pub fn largest(&self, label: &str, values: &[Vec<f64>]) {
        let largest = |values: &Vec<f64>| values.iter().copied().reduce(f64::max);
        self.row(label, &values.iter().map(largest).collect::<Vec<_>>());
    }
}

/// The median; the upper one of an even number of values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
