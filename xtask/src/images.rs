//! The images that this repository makes: what the Dockerfile, its check in `cargo xtask tidy` and the
//! clusters of `cargo xtask kind` have to agree on.

/// One image.
pub(crate) struct Image {
    /// Its name, which is that of its stage in the Dockerfile and of its program.
    pub(crate) name: &'static str,
    /// The crate with the program.
    pub(crate) package: &'static str,
    /// The profile it is built with.
    pub(crate) profile: &'static str,
    /// The script that puts programs into it; without one there is only the one program.
    pub(crate) layout: Option<&'static str>,
}

/// All of them.
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

/// What serves Kubernetes, and redirects the traffic of pods.
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

/// User and group of each. Numbers, because Kubernetes can tell from numbers only that it is not root.
pub(crate) const USER: &str = "100:100";

/// Where the program of an image is.
pub(crate) fn program(name: &str) -> String {
    format!("/usr/local/bin/{name}")
}
