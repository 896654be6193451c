//! The results of tests in the output of a Go test program that runs with `-test.v=test2json`, and the assertions
//! of testify that failed.

use std::collections::BTreeMap;

/// The assertions that are kept of a test, and the length of their texts.
const ASSERTIONS: usize = 3;
const LENGTH: usize = 400;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// It was started and has not ended.
    None,
    Passed,
    Failed,
    Skipped,
}

/// The results of the tests below one, by name. Their own parts are not listed.
#[derive(Default)]
pub(super) struct Verdicts {
    tests: BTreeMap<String, Verdict>,
    /// The failed assertions of each test; those of the test above all have no name.
    assertions: BTreeMap<String, Vec<String>>,
    /// The text of a failed assertion before its test is read, and the test of the last one if that is kept.
    assertion: Option<String>,
    asserting: Option<String>,
}

impl Verdicts {
    /// Reads a line. Returns the test whose verdict it is, and the time that it took.
    pub(super) fn read<'a>(&mut self, line: &'a str) -> Option<(&'a str, Verdict, &'a str)> {
        // Behind this character the line is not output of tests.
        let Some((_, line)) = line.rsplit_once('\u{16}') else {
            self.read_assertion(line);
            return None;
        };
        let (what, rest) = line.trim_start().split_once(": ").unwrap_or((line, ""));
        let verdict = match what {
            "--- PASS" => Verdict::Passed,
            "--- FAIL" => Verdict::Failed,
            "--- SKIP" => Verdict::Skipped,
            _ => {
                let test = line.strip_prefix("=== RUN")?.trim();
                self.tests.insert(name(test)?.to_owned(), Verdict::None);
                return None;
            }
        };
        let (test, took) = rest.trim().split_once(" (")?;
        let test = name(test)?;
        self.tests.insert(test.to_owned(), verdict);
        Some((test, verdict, took.trim_end_matches(')')))
    }

    /// Reads a line of testify's report of a failed assertion: the name of a field, or nothing in further lines of
    /// it, and its value.
    fn read_assertion(&mut self, line: &str) {
        let columns = line.trim_start_matches(' ').strip_prefix('\t');
        let Some((field, value)) = columns.and_then(|columns| columns.split_once('\t')) else {
            return;
        };
        match field.trim() {
            "Error:" => self.assertion = Some(value.trim().to_owned()),
            "" => add(self.assertion.as_mut(), value),
            "Test:" => {
                let test = value.trim().split('/').nth(1).unwrap_or_default();
                let kept = self.assertions.entry(test.to_owned()).or_default();
                let assertion = self.assertion.take();
                let assertion = assertion.filter(|_| kept.len() < ASSERTIONS);
                self.asserting = assertion.as_ref().map(|_| test.to_owned());
                kept.extend(assertion);
            }
            "Messages:" => {
                let test = self.asserting.take();
                let kept = test.and_then(|test| self.assertions.get_mut(&test));
                add(kept.and_then(|kept| kept.last_mut()), value);
            }
            _ => {}
        }
    }

    /// The first failed assertions of a test, or outside of all tests if the name is empty.
    pub(super) fn assertions(&self, test: &str) -> &[String] {
        self.assertions.get(test).map_or(&[], Vec::as_slice)
    }

    /// The tests with this verdict.
    pub(super) fn with(&self, verdict: Verdict) -> Vec<&str> {
        let with = self.tests.iter().filter(|(_, found)| **found == verdict);
        with.map(|(name, _)| name.as_str()).collect()
    }
}

/// Adds a line to the text of an assertion.
fn add(assertion: Option<&mut String>, line: &str) {
    if let Some(text) = assertion.filter(|text| text.len() < LENGTH) {
        text.push(' ');
        text.extend(line.trim().chars().take(LENGTH));
    }
}

/// The part of a name behind the first, if there are two.
fn name(test: &str) -> Option<&str> {
    let (_, name) = test.split_once('/')?;
    (!name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_those_of_whole_tests() {
        let mut verdicts = Verdicts::default();
        let output = "\u{16}=== RUN   TestAll\n\u{16}=== RUN   TestAll/A\n    a.go:1: --- FAIL: TestAll/C (1s)\n\
                      \u{16}=== RUN   TestAll/A/part\n\u{16}    --- FAIL: TestAll/A/part (0.50s)\n\
                      text\u{16}--- FAIL: TestAll/A (1.50s)\n\u{16}=== RUN   TestAll/B\n\
                      \u{16}--- PASS: TestAll/B (0.00s)\n\u{16}=== RUN   TestAll/D\n\
                      \u{16}=== NAME  TestAll/E\n\u{16}=== RUN   TestAll/F\n\
                      \u{16}--- SKIP: TestAll/F (0.00s)\n\u{16}--- FAIL: TestAll (3.00s)\n";
        let ended = output.lines().filter_map(|line| verdicts.read(line));
        let ended: Vec<_> = ended.collect();
        let expected = [
            ("A", Verdict::Failed, "1.50s"),
            ("B", Verdict::Passed, "0.00s"),
            ("F", Verdict::Skipped, "0.00s"),
        ];
        assert_eq!(ended, expected);
        assert_eq!(verdicts.with(Verdict::None), ["D"]);
        assert_eq!(verdicts.with(Verdict::Failed), ["A"]);
    }

    #[test]
    fn assertions_belong_to_tests() {
        let report = |test: &str, message: &str| {
            format!(
                "    helpers.go:108: \n        \tError Trace:\tx.go:1\n        \t            \t\t\ty.go:2\n        \
                 \tError:      \tReceived unexpected error:\n        \t            \ttoo late\n        \
                 \tTest:       \t{test}\n        \tMessages:   \t{message}\n    helpers.go:9: text\ta\n"
            )
        };
        let mut verdicts = Verdicts::default();
        for text in [
            report("TestAll/A/part", "no address"),
            report("TestAll", "no class"),
            report("TestAll/A", &"long ".repeat(LENGTH)),
            report("TestAll/A", ""),
            report("TestAll/A", "one more"),
        ] {
            for line in text.lines() {
                verdicts.read(line);
            }
        }
        let text = "Received unexpected error: too late";
        assert_eq!(verdicts.assertions(""), [format!("{text} no class")]);
        let [first, long, last] = verdicts.assertions("A") else {
            panic!("the first three are kept");
        };
        assert_eq!(*first, format!("{text} no address"));
        assert!(long.len() < 2 * LENGTH + text.len());
        assert_eq!(last.trim_end(), text);
        assert_eq!(verdicts.assertions("B"), [""; 0]);
    }
}
