//! The images of this repository, as shared by the Dockerfile, its check in `cargo xtask tidy` and the
//! clusters of `cargo xtask kind`; and `cargo xtask images`, which measures them without docker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::envoy;
use crate::workspace::{Workspace, run};

/// The script that separates a program from its symbols.
const STRIP: &str = "images/strip";

/// An image.
pub(crate) struct Image {
    /// Its name, which is also that of its Dockerfile stage and program.
    pub(crate) name: &'static str,
    /// The crate of the program.
    pub(crate) package: &'static str,
    /// The build profile.
    pub(crate) profile: &'static str,
    /// The script that installs programs into it; `None` if it has only one program.
    pub(crate) layout: Option<&'static str>,
}

/// All images.
pub(crate) const IMAGES: [Image; 4] = [DATAPLANE, SERVER, KUBERNETES, EXAMPLE];

/// A sidecar, with its Envoy.
pub(crate) const DATAPLANE: Image = Image {
    name: "legate-dataplane",
    package: "legate-dataplane",
    profile: "sidecar",
    layout: Some("images/dataplane/layout"),
};

/// A server.
pub(crate) const SERVER: Image = Image {
    name: "legate-server",
    package: "legate-server",
    profile: "release",
    layout: None,
};

/// The operator, which also redirects the traffic of pods.
pub(crate) const KUBERNETES: Image = Image {
    name: "legate-k8s",
    package: "legate-kubernetes",
    profile: "release",
    layout: Some("images/k8s/layout"),
};

/// The application of the tutorial.
pub(crate) const EXAMPLE: Image = Image {
    name: "legate-example",
    package: "legate-example",
    profile: "release",
    layout: None,
};

/// User and group of each image, numeric because Kubernetes can only verify that numeric users are not
/// root.
pub(crate) const USER: &str = "100:100";

/// The path of an image's program.
pub(crate) fn program(name: &str) -> String {
    format!("/usr/local/bin/{name}")
}

/// Puts a program without symbols in the folder, and its symbols next to it. Returns its path.
pub(crate) fn stripped(
    workspace: &Workspace,
    built: &Path,
    folder: &Path,
) -> anyhow::Result<PathBuf> {
    let mut strip = Command::new(workspace.root.join(STRIP));
    run(strip.arg(built).arg(folder)).context("strip and objcopy (Debian: binutils)")?;
    let name = built.file_name().context("a program has a name")?;
    Ok(folder.join(name))
}

/// Builds the programs as the Dockerfile does, and prints the sizes of what the images add to their base images.
pub(crate) fn measure(workspace: &Workspace) -> anyhow::Result<()> {
    let folder = workspace.target.join("images");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut rows = Vec::new();
    for image in IMAGES {
        let options = ["--profile", image.profile, "--package", image.package];
        let mut build = workspace.cargo(&["build", "--locked"]);
        run(build.args(options))?;
        let built = workspace.target.join(image.profile).join(image.name);
        let program = stripped(workspace, &built, &folder.join("programs"))?;
        let content = content(workspace, &image, &program, &folder.join(image.name))?;
        let sizes = [
            fs::metadata(&built)?.len(),
            fs::metadata(&program)?.len(),
            fs::metadata(program.with_added_extension("debug"))?.len(),
            content,
        ];
        rows.push(row(image.name, sizes));
    }
    println!("| image | program as built | program in the image | symbols | files in the image |");
    println!("|---|--:|--:|--:|--:|");
    println!("{}", rows.join("\n"));
    Ok(())
}

/// The size of all files of an image on top of its base.
fn content(
    workspace: &Workspace,
    image: &Image,
    program: &Path,
    root: &Path,
) -> anyhow::Result<u64> {
    let Some(script) = image.layout else {
        return Ok(fs::metadata(program)?.len());
    };
    let mut layout = Command::new(workspace.root.join(script));
    layout.arg(program);
    if image.name == DATAPLANE.name {
        layout.arg(envoy::get(workspace)?);
    }
    run(layout.arg(root)).context(
        "this requires root, setcap, nft and iptables (Debian: libcap2-bin nftables iptables)",
    )?;
    size(root)
}

/// The size of all regular files below a folder.
fn size(folder: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            sum += size(&entry.path())?;
        } else if metadata.is_file() {
            sum += metadata.len();
        }
    }
    Ok(sum)
}

/// A row of the table, with sizes in MB.
fn row(name: &str, sizes: [u64; 4]) -> String {
    let cells = sizes.map(|bytes| {
        let tenths = (bytes + 50_000) / 100_000;
        format!("{}.{} MB", tenths / 10, tenths % 10)
    });
    format!("| `{name}` | {} |", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded() {
        let expected = "| `x` | 0.0 MB | 0.1 MB | 51.3 MB | 341.0 MB |";
        assert_eq!(
            row("x", [49_999, 50_000, 51_349_999, 341_000_000]),
            expected
        );
    }

    /// A shipped program is smaller than what was built, and debuggers find its symbols.
    #[test]
    fn symbols_are_beside_the_stripped_program() {
        let folder = std::env::temp_dir().join(format!("legate-strip-{}", std::process::id()));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(STRIP);
        let built = std::env::current_exe().unwrap();
        run(Command::new(script).arg(&built).arg(&folder)).unwrap();
        let program = folder.join(built.file_name().unwrap());
        let symbols = program.with_added_extension("debug");
        let length = |path: &Path| fs::metadata(path).unwrap().len();
        assert!(length(&program) * 2 < length(&built));
        assert!(length(&symbols) > length(&built) / 4);
        let link = symbols.file_name().unwrap().as_encoded_bytes();
        let bytes = fs::read(&program).unwrap();
        assert!(bytes.windows(link.len()).any(|part| part == link));
        let mut list = Command::new(&program);
        run(list
            .args(["--list", "sizes_are"])
            .stdout(std::process::Stdio::null()))
        .unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
