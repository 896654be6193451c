//! The root file system of the image, built once for all scenarios by the script of the Dockerfile.
//!
//! Apart from the programs it has the parts of the base image that they need (the C library, no
//! shell), and empty files and folders as mount points.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use legate_testkit::envoy;

/// The devices of every container.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// The CA bundle of the base image.
pub(crate) const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The mount point of the injector's volume.
pub(crate) const VOLUME: &str = "/consul/connect-inject";
/// The mount point of a gateway's id in the chart.
pub(crate) const GATEWAY_VOLUME: &str = "/consul/service";
/// A shell for scenarios with a script as address command. The image has none.
pub(crate) const SHELL: &str = "/test/sh";

/// The folder. It is kept for inspection after a failure and replaced by the next run.
pub(crate) fn image() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image");
        if root.exists() {
            fs::remove_dir_all(&root).expect("what an earlier run left can be removed");
        }
        lay_out(&root);
        root
    })
}

fn lay_out(root: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/dataplane/layout");
    let program = envoy::workspace_binary("legate-dataplane");
    let envoy = envoy::binary();
    let mut command = Command::new(script);
    let done = command.arg(&program).arg(&envoy).arg(root).output();
    let done = done.expect("the layout script can be started");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "images/dataplane/layout: {}: {said}\nit needs root's rights and setcap (Debian: apt-get install libcap2-bin)",
        done.status
    );
    for program in [&program, &envoy, Path::new("/bin/sh")] {
        for library in libraries(program) {
            let copy = inside(root, &library);
            fs::create_dir_all(copy.parent().expect("a library is in a folder"))
                .expect("folders can be made");
            fs::copy(&library, copy).expect("a library can be copied");
        }
    }
    let devices = DEVICES.map(|device| format!("/dev/{device}"));
    let files = devices.iter().map(String::as_str).chain([CA_BUNDLE, SHELL]);
    for file in files {
        let file = inside(root, Path::new(file));
        fs::create_dir_all(file.parent().expect("a file is in a folder"))
            .expect("folders can be made");
        fs::write(file, "").expect("files can be made");
    }
    for folder in ["/proc", "/dev/shm", VOLUME, GATEWAY_VOLUME] {
        fs::create_dir_all(inside(root, Path::new(folder))).expect("folders can be made");
    }
    // As container runtimes do; Envoy opens large bootstrap documents by this path.
    symlink("/proc/self/fd", inside(root, Path::new("/dev/fd"))).expect("a link can be made");
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).expect("the root is ours");
}

/// A path of the container, from outside.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The shared libraries of a program, including the loader.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let found = Command::new("ldd").arg(program).output();
    let found = found.expect("ldd (Debian: libc-bin) can be started");
    let found = String::from_utf8_lossy(&found.stdout);
    assert!(
        !found.contains("not found"),
        "{}: {found}",
        program.display()
    );
    let paths = found
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'));
    paths.map(PathBuf::from).collect()
}

/// All files below a folder, with attributes that change on a write.
pub(crate) fn contents(folder: &Path) -> BTreeMap<PathBuf, (u64, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)
            .expect("folders can be read")
            .flatten()
        {
            let path = entry.path();
            let data = fs::symlink_metadata(&path).expect("it is there");
            if data.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path, (data.size(), data.mtime(), data.mtime_nsec()));
        }
    }
    found
}
