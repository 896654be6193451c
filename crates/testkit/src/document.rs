//! Documents that tests run: parses them into executable steps, and compares outputs. Pure; a scenario runs the steps.
//!
//! - A block of `sh` is run. A block of `text` after it is its expected output.
//! - A block of `sh` after a paragraph that begins with `Not run by the tests: ` is not run; the paragraph
//!   has the reason.
//! - A block of `yaml` is an excerpt of a file in the repository.
//! - Any other block is an error, so that nothing is skipped by accident.

mod output;

pub use output::difference;

/// A document of which all or one section is run.
#[derive(Debug, Clone, Copy)]
pub struct Document {
    /// Its path in the repository.
    pub path: &'static str,
    /// Its content.
    pub text: &'static str,
    /// The heading of the section, such as `## Begin`; `None` for all.
    pub section: Option<&'static str>,
}

/// The beginning of a paragraph with the reason why the next block is not run.
const NOT_RUN: &str = "Not run by the tests: ";

/// The content of a document.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The reasons of blocks that are not run, one for each block.
    pub not_run: Vec<String>,
    /// Excerpts of files.
    pub excerpts: Vec<String>,
}

/// Commands run by one shell.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// The line number in the document.
    pub line: usize,
    /// The heading of its section, without `#`; empty before the first one below the title.
    pub section: String,
    /// The paragraph directly before it; empty if there is none.
    pub introduction: String,
    /// The lines of the block.
    pub commands: String,
    /// The expected output.
    pub shown: Option<String>,
}

impl Step {
    /// Whether it changes nothing, so that it may be repeated until the output is the expected one.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let commands = self.commands.replace("\\\n", " ");
        let asks = |command: &str| {
            let mut words = command.split_whitespace();
            words.any(|word| READS.contains(&word))
                && !WRITES.iter().any(|one| command.contains(one))
        };
        commands.lines().all(asks)
    }
}

/// A word of these is in every command that changes nothing.
const READS: [&str; 9] = [
    "get", "-status", "check", "list", "status", "read", "members", "watch", "curl",
];
/// And nothing of this.
const WRITES: [&str; 7] = [
    " run ",
    " write ",
    " delete ",
    " deregister ",
    " -X ",
    " -d ",
    "<<",
];

impl Document {
    /// Parses it.
    ///
    /// # Errors
    ///
    /// What is neither run nor explained, with the line number.
    pub fn parse(&self) -> Result<Content, String> {
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

fn parse(document: &str) -> Result<Content, String> {
    let mut content = Content::default();
    let mut lines = document.lines().enumerate();
    let mut section = "";
    // The paragraph before a block, and whether it directly follows the previous block.
    let mut paragraph = String::new();
    let mut after_step = false;
    while let Some((index, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            section = line.strip_prefix("## ").unwrap_or(section);
            if line.starts_with('#') {
                paragraph.clear();
            } else if !line.trim().is_empty() {
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
        let wrong = |what: &str| Err(format!("line {number}: {what}"));
        let mut block = String::new();
        loop {
            match lines.next() {
                Some((_, "```")) => break,
                Some((_, line)) => block += &format!("{line}\n"),
                None => return wrong("the block has no end"),
            }
        }
        let before = std::mem::take(&mut paragraph).trim().to_owned();
        let reason = before.strip_prefix(NOT_RUN).map(str::to_owned);
        let shows_output = std::mem::replace(&mut after_step, false);
        match (language, reason) {
            ("sh", Some(reason)) if reason.len() > 20 => content.not_run.push(reason),
            ("sh", Some(_)) => return wrong("it is not said why"),
            (_, Some(_)) => return wrong("only blocks of sh are run"),
            ("sh", None) => {
                after_step = true;
                content.steps.push(Step {
                    line: number,
                    section: section.to_owned(),
                    introduction: before,
                    commands: block,
                    shown: None,
                });
            }
            ("text", None) => match content.steps.last_mut() {
                Some(step) if shows_output => step.shown = Some(block),
                _ => return wrong("no commands stand before this output"),
            },
            ("yaml", None) => content.excerpts.push(block),
            ("", None) => return wrong("the block names no language"),
            (other, None) => return wrong(&format!("{other} is neither run nor explained")),
        }
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(commands: &str) -> Step {
        Step {
            line: 1,
            section: String::new(),
            introduction: String::new(),
            commands: commands.to_owned(),
            shown: None,
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
            section: "B".to_owned(),
            ..step("b\n")
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
        let expected = Content {
            steps: vec![
                Step {
                    line: 3,
                    introduction: "Text.".to_owned(),
                    shown: Some("its output\n".to_owned()),
                    ..step("one\n")
                },
                Step {
                    line: 24,
                    introduction: "Then:".to_owned(),
                    ..step("three\nfour\n")
                },
            ],
            not_run: vec!["it takes a computer that nobody has.".to_owned()],
            excerpts: vec!["a: 1\n".to_owned()],
        };
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn blocks_with_side_effects_are_not_repeated() {
        let is_read_only = |commands: &str| step(commands).is_read_only();
        for commands in [
            "kubectl get pods",
            "kubectl exec web -- \\\n  app get http://api/\nkubectl get pods | grep x",
            "legate check",
            "legate peering read -name consul\nconsul peering list",
            "curl -s http://10.0.0.1:8080/",
        ] {
            assert!(is_read_only(commands), "{commands}");
        }
        for commands in [
            "kubectl apply --filename x",
            "kubectl rollout restart deployment/api\nkubectl get pods",
            "kubectl exec web -- app load http://api/",
            "kubectl run x -- get http://api/",
            "legate config write - <<EOF\nKind = \"list\"\nEOF",
            "consul config read -kind a -name b | legate config write -",
            "consul services deregister -id check",
            "legate peering delete -name read",
            "curl -X PUT http://127.0.0.1:8500/v1/agent/reload",
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
            assert!(error.contains(why), "{text}: {error}");
        }
        // A reason applies to the block directly after it.
        let text = "Not run by the tests: it takes a computer.\n\nMore.\n\n```sh\na\n```\n";
        assert_eq!(parse(text).unwrap().steps.len(), 1);
    }
}
