//! Prints the reference of all settings: the content of `docs/settings.md`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(legate_dataplane::settings::reference().as_bytes())
}
