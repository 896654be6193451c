//! Cases as data: documents of users in `tests/golden/<case>/documents.json`, and all resources of
//! the proxy in `resources.json`. `UPDATE_GOLDEN=1` rewrites the latter.

pub(crate) mod documents;
pub(crate) mod envoy;
mod state;
pub(crate) mod written;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use legate_resources::Generator;
use serde_json::Value;

use documents::Documents;

/// The minimum number of cases.
const CASES: usize = 300;

/// A case.
pub(crate) struct Case {
    pub(crate) name: String,
    folder: PathBuf,
}

pub(crate) fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = fs::read_dir(&folder).unwrap();
    let mut all: Vec<Case> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| Case {
            name: entry.file_name().into_string().unwrap(),
            folder: entry.path(),
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl Case {
    pub(crate) fn documents(&self) -> Documents {
        let text = fs::read(self.folder.join("documents.json")).unwrap();
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// All resources of the proxy.
    pub(crate) fn resources(&self) -> Result<Value, String> {
        let snapshot = self.documents().snapshot();
        let snapshot = snapshot.map_err(|refused| format!("{}: {}", self.name, refused.0))?;
        let set = Generator::new().generate(&snapshot, None);
        Ok(written::document(&set))
    }

    fn golden(&self) -> PathBuf {
        self.folder.join("resources.json")
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the environment says whether to compare or to write"
)]
fn is_update() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

#[test]
fn documents_become_these_resources() {
    let mut wrong = Vec::new();
    for case in cases() {
        let made = match case.resources() {
            Ok(made) => written::text(&made),
            Err(refused) => {
                wrong.push(refused);
                continue;
            }
        };
        if is_update() {
            fs::write(case.golden(), made).unwrap();
            continue;
        }
        let golden = fs::read_to_string(case.golden()).unwrap_or_default();
        let different = golden.lines().zip(made.lines()).find(|(a, b)| a != b);
        match different {
            Some((golden, made)) => wrong.push(format!(
                "{}: resources.json has\n  {golden}\nand is to have\n  {made}",
                case.name
            )),
            None if golden != made => wrong.push(format!("{}: one is longer", case.name)),
            None => {}
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\nsee the difference after UPDATE_GOLDEN=1",
        wrong.join("\n")
    );
}

#[test]
fn there_are_enough_cases_and_each_has_a_description() {
    let all = cases();
    assert!(all.len() >= CASES, "{} cases", all.len());
    let mut seen = BTreeSet::new();
    for case in &all {
        let about = case.documents().about;
        assert!(about.ends_with('.'), "{}: {about:?}", case.name);
        assert!(
            seen.insert(about),
            "{} says what another one says",
            case.name
        );
        let files = fs::read_dir(&case.folder).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["documents.json", "resources.json"], "{}", case.name);
    }
}
