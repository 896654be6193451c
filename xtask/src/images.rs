//! The images of this repository, as shared by the Dockerfile, its check in `cargo xtask tidy` and the
//! clusters of `cargo xtask kind`.

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
