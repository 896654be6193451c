//! Parses documents that are run, such as `docs/kubernetes.md`, into executable steps, and compares outputs. Pure;
//! `scenarios::tutorial` runs them.
//!
//! - A block of `sh` is run. A block of `text` after it is its expected output.
//! - A block of `sh` after a paragraph that begins with [`NOT_RUN`] is not run; the paragraph has the
//!   reason.
//! - A block of `yaml` is an excerpt of a file in the repository.
//! - Any other block is an error, so that nothing is skipped by accident.

mod output;

use anyhow::{bail, ensure};

pub(crate) use output::difference;

/// A document of which all or one section is run.
pub(crate) struct Document {
    /// Its path in the repository.
    pub(crate) path: &'static str,
    text: &'static str,
    /// The heading of the section.
    section: Option<&'static str>,
}

/// The tutorial.
pub(crate) const TUTORIAL: Document = Document {
    path: "docs/kubernetes.md",
    text: include_str!("../../../../docs/kubernetes.md"),
    section: None,
};

/// The way to a Gateway of the Gateway API.
pub(crate) const GATEWAY_API: Document = Document {
    path: "docs/gateways-kubernetes.md",
    text: include_str!("../../../../docs/gateways-kubernetes.md"),
    section: Some("## From nothing to HTTPS"),
};

/// The beginning of a paragraph with the reason why the next block is not run.
const NOT_RUN: &str = "Not run by the tests: ";

/// The content of a document.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tutorial {
    /// The steps in order.
    pub(crate) steps: Vec<Step>,
    /// The reasons of blocks that are not run, one for each block.
    not_run: Vec<String>,
    /// Excerpts of files.
    excerpts: Vec<String>,
}

/// Commands run by one shell.
#[derive(Debug, PartialEq)]
pub(crate) struct Step {
    /// The line number in the document.
    pub(crate) line: usize,
    pub(crate) commands: String,
    /// The expected output.
    pub(crate) shown: Option<String>,
}

impl Step {
    /// Whether it changes nothing, so that it may be repeated until the output is the expected one.
    pub(crate) fn is_read_only(&self) -> bool {
        let commands = self.commands.replace("\\\n", " ");
        let asks = |command: &str| {
            let mut words = command.split_whitespace();
            command.starts_with("legate ")
                || words.any(|word| ["get", "-status"].contains(&word))
                    && !command.contains(" run ")
        };
        commands.lines().all(asks)
    }
}

impl Document {
    /// Parses it; errors include the line number.
    pub(crate) fn parse(&self) -> anyhow::Result<Tutorial> {
        let Some(section) = self.section else {
            return parse(self.text);
        };
        let mut inside = false;
        // The other lines are empty, so that those of the section keep their numbers.
        let lines = self.text.lines().map(|line| {
            if line.starts_with("## ") {
                inside = line == section;
            }
            format!("{}\n", if inside { line } else { "" })
        });
        parse(&lines.collect::<String>())
    }
}

fn parse(document: &str) -> anyhow::Result<Tutorial> {
    let mut tutorial = Tutorial::default();
    let mut lines = document.lines().enumerate();
    // The paragraph before a block, and whether it directly follows the previous block.
    let mut paragraph = String::new();
    let mut after_step = false;
    while let Some((index, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            if !line.trim().is_empty() {
                after_step = false;
                paragraph += line;
                paragraph.push(' ');
            } else if lines
                .clone()
                .next()
                .is_some_and(|(_, next)| !next.starts_with("```"))
            {
                paragraph.clear();
            }
            continue;
        };
        let number = index + 1;
        let mut block = String::new();
        loop {
            match lines.next() {
                Some((_, "```")) => break,
                Some((_, line)) => block += &format!("{line}\n"),
                None => bail!("line {number}: the block has no end"),
            }
        }
        let reason = paragraph.trim().strip_prefix(NOT_RUN).map(str::to_owned);
        paragraph.clear();
        let shows_output = std::mem::replace(&mut after_step, false);
        match (language, reason) {
            ("sh", Some(reason)) => {
                ensure!(reason.len() > 20, "line {number}: it is not said why");
                tutorial.not_run.push(reason);
            }
            (_, Some(_)) => bail!("line {number}: only blocks of sh are run"),
            ("sh", None) => {
                after_step = true;
                tutorial.steps.push(Step {
                    line: number,
                    commands: block,
                    shown: None,
                });
            }
            ("text", None) => match tutorial.steps.last_mut() {
                Some(step) if shows_output => step.shown = Some(block),
                _ => bail!("line {number}: no commands stand before this output"),
            },
            ("yaml", None) => tutorial.excerpts.push(block),
            ("", None) => bail!("line {number}: the block names no language"),
            (other, None) => bail!("line {number}: {other} is neither run nor explained"),
        }
    }
    Ok(tutorial)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Files of the repository that documents may quote.
    fn files() -> Vec<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folders = [
            "examples/kubernetes",
            "examples/kubernetes/gateway-api",
            "tests/chart",
        ];
        let entries = folders.map(|folder| fs::read_dir(root.join(folder)).unwrap());
        let paths = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|is| is == "yaml"))
            .collect()
    }

    #[test]
    fn the_documents_can_be_run() {
        let files: Vec<String> = files()
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        for (document, at_least, not_run) in [(TUTORIAL, 10, 3), (GATEWAY_API, 3, 1)] {
            let tutorial = document.parse().unwrap();
            let shown = tutorial.steps.iter().filter(|step| step.shown.is_some());
            assert!(shown.count() >= at_least, "{tutorial:?}");
            assert!(tutorial.not_run.len() <= not_run, "{:?}", tutorial.not_run);
            for excerpt in &tutorial.excerpts {
                let known = files.iter().any(|file| file.contains(excerpt));
                assert!(known, "no file has this in it:\n{excerpt}");
            }
        }
    }

    #[test]
    fn a_section_keeps_its_line_numbers() {
        let document = Document {
            path: "",
            text: "# A\n\n```\n```\n\n## B\n\n```sh\nb\n```\n\n## C\n\n```\n```\n",
            section: Some("## B"),
        };
        let expected = Step {
            line: 8,
            commands: "b\n".to_owned(),
            shown: None,
        };
        assert_eq!(document.parse().unwrap().steps, [expected]);
    }

    #[test]
    fn blocks_are_run_shown_or_explained() {
        let text = "\
Text.

```sh
one
```

```text
its output
```

Not run by the tests: it takes a computer
that nobody has.

```sh
two
```

```yaml
a: 1
```

Then:

```sh
three
four
```
";
        let expected = Tutorial {
            steps: vec![
                Step {
                    line: 3,
                    commands: "one\n".to_owned(),
                    shown: Some("its output\n".to_owned()),
                },
                Step {
                    line: 24,
                    commands: "three\nfour\n".to_owned(),
                    shown: None,
                },
            ],
            not_run: vec!["it takes a computer that nobody has.".to_owned()],
            excerpts: vec!["a: 1\n".to_owned()],
        };
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn blocks_with_side_effects_are_not_repeated() {
        let is_read_only = |commands: &str| {
            let step = Step {
                line: 1,
                commands: commands.to_owned(),
                shown: None,
            };
            step.is_read_only()
        };
        for commands in [
            "kubectl get pods",
            "kubectl exec web -- \\\n  app get http://api/\nkubectl get pods | grep x",
            "legate check",
        ] {
            assert!(is_read_only(commands), "{commands}");
        }
        for commands in [
            "kubectl apply --filename x",
            "kubectl rollout restart deployment/api\nkubectl get pods",
            "kubectl exec web -- app load http://api/",
            "kubectl run x -- get http://api/",
        ] {
            assert!(!is_read_only(commands), "{commands}");
        }
    }

    #[test]
    fn blocks_that_cannot_be_run_are_refused() {
        for (text, why) in [
            ("```\na\n```\n", "names no language"),
            ("```bash\na\n```\n", "bash"),
            ("```sh again\na\n```\n", "sh again"),
            ("  ```console\n  a\n  ```\n", "no end"),
            ("```sh\na\n", "no end"),
            ("```text\na\n```\n", "no commands"),
            (
                "```sh\na\n```\n\nIt prints:\n\n```text\na\n```\n",
                "no commands",
            ),
            ("```yaml\na\n```\n\n```text\na\n```\n", "no commands"),
            (
                "Not run by the tests: no.\n\n```sh\na\n```\n",
                "not said why",
            ),
            (
                "Not run by the tests: it is a picture of something.\n\n```yaml\na\n```\n",
                "only blocks of sh",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
        // A reason applies to the block directly after it.
        let text = "Not run by the tests: it takes a computer.\n\nMore.\n\n```sh\na\n```\n";
        assert_eq!(parse(text).unwrap().steps.len(), 1);
    }
}
