//! Prints docs/kubernetes-annotations.md. A test compares the two.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let page = legate_kubernetes::annotations::reference();
    std::io::stdout().write_all(page.as_bytes())
}
