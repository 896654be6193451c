//! Maps this cluster's objects to namespaces and partitions of the mesh. Pure.
//!
//! The mapping depends on flags alone: users who can annotate a pod cannot choose another tenant for it.

use clap::Args;
use legate_model::{DEFAULT_TENANCY, TenancyName};

/// The flags for the tenants of pods and resources. Each can also be set in the environment:
/// `LEGATE_K8S_` and the flag's name in capitals, with `_` for `-`.
#[derive(Debug, Clone, Default, Args)]
pub struct TenancyFlags {
    /// Partition of the mesh that this cluster belongs to. Default: default.
    #[arg(long, env = "LEGATE_K8S_PARTITION", value_name = "NAME", value_parser = one)]
    pub partition: Option<TenancyName>,

    /// Namespace of the mesh for all pods and resources of this cluster. Default: namespaces are not
    /// used.
    #[arg(long, env = "LEGATE_K8S_DESTINATION_NAMESPACE", value_name = "NAME", value_parser = one,
        conflicts_with = "mirror_namespaces")]
    pub destination_namespace: Option<TenancyName>,

    /// Create a namespace of the mesh for each Kubernetes namespace, with the same name after this
    /// prefix.
    #[arg(long, env = "LEGATE_K8S_MIRROR_NAMESPACES", value_name = "PREFIX", value_parser = prefix,
        num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub mirror_namespaces: Option<String>,

    /// ACL policy for all tokens of the namespaces created here, which lets them discover services of
    /// other namespaces. Default: none.
    #[arg(
        long,
        env = "LEGATE_K8S_CROSS_NAMESPACE_ACL_POLICY",
        value_name = "NAME"
    )]
    pub cross_namespace_acl_policy: Option<String>,
}

/// Parses the name of exactly one namespace or partition.
fn one(text: &str) -> Result<TenancyName, String> {
    let name: TenancyName = text
        .parse()
        .map_err(|error: legate_model::InvalidTenancyName| error.to_string())?;
    match name.is_empty() || name.is_every() {
        true => Err("exactly one name is required".to_owned()),
        false => Ok(name),
    }
}

/// Parses a prefix of names.
fn prefix(text: &str) -> Result<String, String> {
    one(&format!("{text}x"))?;
    Ok(text.to_ascii_lowercase())
}

/// The mapping of this cluster's objects to tenants of the mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenants {
    namespaces: Option<Namespaces>,
    partition: Option<String>,
    policy: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Namespaces {
    /// One namespace for all objects.
    One(String),
    /// One namespace for each Kubernetes namespace.
    Mirrored {
        /// The prefix of their names.
        prefix: String,
    },
}

impl Tenants {
    /// The mapping that the flags define.
    #[must_use]
    pub fn of(flags: &TenancyFlags) -> Tenants {
        let text = |name: &TenancyName| name.as_str().to_owned();
        let one = flags.destination_namespace.as_ref().map(text);
        let mirrored = flags.mirror_namespaces.clone();
        Tenants {
            namespaces: mirrored
                .map(|prefix| Namespaces::Mirrored { prefix })
                .or(one.map(Namespaces::One)),
            // Servers without partitions accept the default one, too.
            partition: (flags.partition.as_ref().map(text)).filter(|name| name != DEFAULT_TENANCY),
            policy: flags.cross_namespace_acl_policy.clone(),
        }
    }

    /// Whether namespaces of the mesh are used. If not, requests name none.
    #[must_use]
    pub fn has_namespaces(&self) -> bool {
        self.namespaces.is_some()
    }

    /// The prefix of mirrored namespaces; `None` if namespaces are not mirrored.
    #[must_use]
    pub fn mirror_prefix(&self) -> Option<&str> {
        match &self.namespaces {
            Some(Namespaces::Mirrored { prefix }) => Some(prefix),
            _ => None,
        }
    }

    /// The mesh's namespace for objects of a Kubernetes namespace; `None` if namespaces are not used.
    #[must_use]
    pub fn namespace(&self, kubernetes: &str) -> Option<String> {
        self.namespaces.as_ref().map(|namespaces| match namespaces {
            Namespaces::One(name) => name.clone(),
            Namespaces::Mirrored { prefix } => format!("{prefix}{kubernetes}"),
        })
    }

    /// The namespace for partition-wide objects; `None` if namespaces are not used.
    #[must_use]
    pub fn default_namespace(&self) -> Option<String> {
        self.has_namespaces().then(|| DEFAULT_TENANCY.to_owned())
    }

    /// The namespace of the auth method for pods; `None` if namespaces are not used. If they are
    /// mirrored, the method determines the namespace of each token.
    #[must_use]
    pub fn login_namespace(&self) -> Option<&str> {
        self.namespaces.as_ref().map(|namespaces| match namespaces {
            Namespaces::One(name) => name.as_str(),
            Namespaces::Mirrored { .. } => DEFAULT_TENANCY,
        })
    }

    /// The partition, if it is not the default one.
    #[must_use]
    pub fn partition(&self) -> Option<&str> {
        self.partition.as_deref()
    }

    /// The default ACL policy of the namespaces created here.
    #[must_use]
    pub fn cross_namespace_policy(&self) -> Option<&str> {
        self.policy.as_deref().filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        flags: TenancyFlags,
    }

    fn tenants(flags: &[&str]) -> Result<Tenants, clap::Error> {
        let program = Program::try_parse_from([&["program"], flags].concat())?;
        Ok(Tenants::of(&program.flags))
    }

    #[test]
    fn without_flags_no_tenant_is_named() {
        let none = tenants(&[]).unwrap();
        assert_eq!(none, Tenants::default());
        assert_eq!(none.namespace("shop"), None);
        assert_eq!((none.login_namespace(), none.partition()), (None, None));
        let default = tenants(&["--partition=default"]).unwrap();
        assert_eq!(default, none);
    }

    #[test]
    fn namespaces_are_one_or_mirrored() {
        let one = tenants(&["--destination-namespace=mesh", "--partition=east"]).unwrap();
        assert_eq!(one.namespace("shop").as_deref(), Some("mesh"));
        assert_eq!(one.login_namespace(), Some("mesh"));
        assert_eq!(one.partition(), Some("east"));
        let mirrored = tenants(&["--mirror-namespaces="]).unwrap();
        assert_eq!(tenants(&["--mirror-namespaces"]).unwrap(), mirrored);
        assert_eq!(mirrored.namespace("shop").as_deref(), Some("shop"));
        assert_eq!(mirrored.login_namespace(), Some("default"));
        let prefixed = tenants(&["--mirror-namespaces=k8s-"]).unwrap();
        assert_eq!(prefixed.namespace("shop").as_deref(), Some("k8s-shop"));
    }

    #[test]
    fn invalid_names_are_refused() {
        for flags in [
            &["--partition=*"][..],
            &["--destination-namespace=a.b"],
            &["--mirror-namespaces=-a"],
            &["--mirror-namespaces", "--destination-namespace=a"],
        ] {
            assert!(tenants(flags).is_err(), "{flags:?}");
        }
    }
}
