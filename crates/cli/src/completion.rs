//! Shell completions and man pages, generated from the commands.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

#[derive(Args)]
pub(crate) struct Options {
    /// The shell: bash, elvish, fish, powershell or zsh
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct Man {
    /// The folder
    folder: PathBuf,
}

/// Prints the completion script of `command` for a shell, for the name under which the program was started.
///
/// # Errors
///
/// If standard output is closed.
pub(crate) fn run(
    options: &Options,
    mut command: Command,
    program: &OsStr,
) -> anyhow::Result<ExitCode> {
    let name = Path::new(program).file_name().unwrap_or(program);
    let mut out = Vec::new();
    clap_complete::generate(
        options.shell,
        &mut command,
        name.to_string_lossy(),
        &mut out,
    );
    output::raw(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a man page for each command of `command`.
///
/// # Errors
///
/// If the folder is not writable.
pub(crate) fn man(options: &Man, command: Command) -> anyhow::Result<ExitCode> {
    let folder = &options.folder;
    let failed = || format!("cannot write pages to {}", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(command, folder).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// Installs or uninstalls completions in the configuration of the user's shells.
///
/// # Errors
///
/// If a file of the user cannot be read or written.
pub(crate) fn install(program: &OsStr, home: &Path, on: bool) -> anyhow::Result<ExitCode> {
    let name = Path::new(program).file_name().unwrap_or(program);
    let name = name.to_string_lossy();
    for (file, shell) in [(".bashrc", "bash"), (".zshrc", "zsh")] {
        let path = home.join(file);
        let failed = || format!("cannot change {}", path.display());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(failed),
        };
        let changed = changed(&text, &format!("source <({name} completion {shell})"), on);
        if changed != text {
            std::fs::write(&path, changed).with_context(failed)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The text with or without the line.
fn changed(text: &str, line: &str, on: bool) -> String {
    let kept = text.lines().filter(|known| *known != line);
    let mut lines: Vec<&str> = kept.collect();
    if on {
        lines.push(line);
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_added_once() {
        let text = changed("a\n", "x", true);
        assert_eq!(text, "a\nx\n");
        assert_eq!(changed(&text, "x", true), text);
        assert_eq!(changed(&text, "x", false), "a\n");
    }
}
