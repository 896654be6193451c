//! The rules of a policy: what may be done with which names.
//!
//! A rule is about all names of a resource, those that start with a prefix, or one name. It permits
//! up to an access level, or denies. Which rule decides is said in [`crate::acl::Authorizer`].

use std::fmt;

use crate::hcl::{self, Node};

/// How far a rule goes. In the order in which one takes precedence over another for the same names:
/// what is denied anywhere is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Looking at one.
    Read,
    /// Reading, and listing what there is. Keys only.
    List,
    /// Everything.
    Write,
    /// Nothing.
    Deny,
}

impl Access {
    /// Consul reads the names without regard to case.
    fn parse(text: &str) -> Option<Self> {
        [Access::Read, Access::List, Access::Write, Access::Deny]
            .into_iter()
            .find(|access| access.as_str().eq_ignore_ascii_case(text))
    }

    /// The name in rules.
    pub const fn as_str(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::List => "list",
            Access::Write => "write",
            Access::Deny => "deny",
        }
    }

    /// Whether a rule of this level permits what asks for `wanted`.
    pub const fn permits(self, wanted: Access) -> bool {
        match (self, wanted) {
            (Access::Write, _) | (Access::Read, Access::Read) => true,
            (Access::List, Access::Read | Access::List) => true,
            (Access::Read | Access::List | Access::Deny, _) => false,
        }
    }
}

/// What rules are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are those of rules")]
pub enum Resource {
    Acl,
    Agent,
    Event,
    /// The intentions of which a service is the destination. Written inside rules of services.
    Intention,
    Key,
    Keyring,
    Mesh,
    Node,
    Operator,
    Peering,
    Query,
    Service,
    Session,
}

impl Resource {
    /// All of them.
    pub const ALL: [Resource; 13] = [
        Resource::Acl,
        Resource::Agent,
        Resource::Event,
        Resource::Intention,
        Resource::Key,
        Resource::Keyring,
        Resource::Mesh,
        Resource::Node,
        Resource::Operator,
        Resource::Peering,
        Resource::Query,
        Resource::Service,
        Resource::Session,
    ];

    /// The name in rules, permissions and questions.
    pub const fn as_str(self) -> &'static str {
        match self {
            Resource::Acl => "acl",
            Resource::Agent => "agent",
            Resource::Event => "event",
            Resource::Intention => "intention",
            Resource::Key => "key",
            Resource::Keyring => "keyring",
            Resource::Mesh => "mesh",
            Resource::Node => "node",
            Resource::Operator => "operator",
            Resource::Peering => "peering",
            Resource::Query => "query",
            Resource::Service => "service",
            Resource::Session => "session",
        }
    }

    /// Whether rules of it are about names. The others are about all of it.
    pub const fn has_names(self) -> bool {
        !matches!(
            self,
            Resource::Acl
                | Resource::Keyring
                | Resource::Mesh
                | Resource::Operator
                | Resource::Peering
        )
    }

    /// The resource with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which names a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Names {
    /// All there is, of a resource without names.
    All,
    /// This one.
    Exact(String),
    /// Those that start with this, which may be empty.
    Prefix(String),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// What it is about.
    pub resource: Resource,
    /// Which of them.
    pub names: Names,
    /// How far it goes.
    pub access: Access,
    /// How far it goes for the intentions of these services. Without, reading and writing the
    /// services is reading their intentions. For services only.
    pub intentions: Option<Access>,
}

/// The rules of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Rules that cannot be accepted. The texts begin as Consul's do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRules(String);

impl Rules {
    /// Reads rules in HCL or JSON. An empty text has none.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`] says where the text cannot be read, or which rule is not one. Resources and
    /// fields that do not exist are refused: a rule that is not applied is no rule.
    pub fn parse(text: &str) -> Result<Self, InvalidRules> {
        let unreadable = |reason: &dyn fmt::Display| {
            InvalidRules(format!("Failed to parse ACL rules: {reason}"))
        };
        let fields = hcl::parse(text).map_err(|error| unreadable(&error))?;
        let mut rules = Vec::new();
        for (name, node) in fields {
            add(&mut rules, &name.to_ascii_lowercase(), node)?;
        }
        Ok(Self(rules))
    }

    /// The rules, as they were written.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
}

impl FromIterator<Rule> for Rules {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        Self(rules.into_iter().collect())
    }
}

fn already_set(name: &str) -> InvalidRules {
    InvalidRules(format!(
        "Failed to parse ACL rules: The argument {name:?} was already set. Each argument can only be \
         defined once"
    ))
}

/// Adds what stands behind one name at the top of a text.
fn add(rules: &mut Vec<Rule>, name: &str, node: Node) -> Result<(), InvalidRules> {
    let (stem, prefix) = match name.strip_suffix("_prefix") {
        Some(stem) => (stem, true),
        None => (name, false),
    };
    if stem == "identity" {
        // Consul takes them and makes no use of them since 1.20.
        return Ok(());
    }
    let unknown = || {
        InvalidRules(format!(
            "Failed to parse ACL rules: {name:?} is not a resource that rules can be about"
        ))
    };
    let resource = Resource::parse(stem)
        .filter(|resource| *resource != Resource::Intention)
        .filter(|resource| !prefix || resource.has_names())
        .ok_or_else(unknown)?;
    if resource.has_names() {
        for (segment, bodies) in objects(name, node)? {
            for body in bodies_of(name, &segment, bodies)? {
                rules.push(named_rule(name, resource, prefix, &segment, body)?);
            }
        }
        return Ok(());
    }
    let Node::Text(text) = node else {
        return Err(InvalidRules(format!(
            "Invalid {name} policy: it must be \"read\", \"write\" or \"deny\""
        )));
    };
    if rules.iter().any(|rule| rule.resource == resource) {
        return Err(already_set(name));
    }
    if text.is_empty() {
        return Ok(());
    }
    rules.push(Rule {
        resource,
        names: Names::All,
        access: level(&text, false)
            .ok_or_else(|| InvalidRules(format!("Invalid {name} policy: {text:?}")))?,
        intentions: None,
    });
    Ok(())
}

/// The access level that a text stands for, of those that the resource has.
fn level(text: &str, list: bool) -> Option<Access> {
    Access::parse(text).filter(|access| list || *access != Access::List)
}

/// The names that stand behind a resource. JSON may write an object as a list of objects.
fn objects(name: &str, node: Node) -> Result<Vec<(String, Node)>, InvalidRules> {
    let bad = || {
        InvalidRules(format!(
            "Failed to parse ACL rules: {name} needs a name and a block: {name} \"web\" {{ policy = \
             \"read\" }}"
        ))
    };
    match node {
        Node::Object(fields) => Ok(fields),
        Node::List(items) => {
            let mut all = Vec::new();
            for item in items {
                match item {
                    Node::Object(fields) => all.extend(fields),
                    _ => return Err(bad()),
                }
            }
            Ok(all)
        }
        Node::Text(_) | Node::Scalar(_) => Err(bad()),
    }
}

/// The blocks of one name.
fn bodies_of(
    name: &str,
    segment: &str,
    node: Node,
) -> Result<Vec<Vec<(String, Node)>>, InvalidRules> {
    let bad = || {
        InvalidRules(format!(
            "Failed to parse ACL rules: {name} {segment:?} needs a block: {{ policy = \"read\" }}"
        ))
    };
    let block = |node| match node {
        Node::Object(fields) => Ok(fields),
        _ => Err(bad()),
    };
    match node {
        Node::List(items) => items.into_iter().map(block).collect(),
        other => Ok(vec![block(other)?]),
    }
}

/// The rule of one block.
fn named_rule(
    name: &str,
    resource: Resource,
    prefix: bool,
    segment: &str,
    body: Vec<(String, Node)>,
) -> Result<Rule, InvalidRules> {
    let (mut policy, mut intentions) = (None, None);
    for (field, node) in body {
        let known = match field.to_ascii_lowercase().as_str() {
            "policy" => &mut policy,
            "intentions" if resource == Resource::Service => &mut intentions,
            _ => {
                return Err(InvalidRules(format!(
                    "Failed to parse ACL rules: {name} {segment:?} has no field {field:?}"
                )));
            }
        };
        let Node::Text(text) = node else {
            return Err(InvalidRules(format!(
                "Failed to parse ACL rules: {field:?} of {name} {segment:?} is no text"
            )));
        };
        if known.replace(text).is_some() {
            return Err(already_set(&field));
        }
    }
    let lists = resource == Resource::Key;
    let text = policy.unwrap_or_default();
    let access = level(&text, lists).ok_or_else(|| {
        InvalidRules(format!(
            "Invalid {name} policy: the policy of {segment:?} is {text:?}; it must be \"read\", \
             {}\"write\" or \"deny\"",
            if lists { "\"list\", " } else { "" }
        ))
    })?;
    let intentions = match intentions.filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(level(&text, false).ok_or_else(|| {
            InvalidRules(format!(
                "Invalid {name} intentions policy: that of {segment:?} is {text:?}; it must be \
                 \"read\", \"write\" or \"deny\""
            ))
        })?),
    };
    let names = match prefix {
        true => Names::Prefix(segment.to_owned()),
        false => Names::Exact(segment.to_owned()),
    };
    Ok(Rule {
        resource,
        names,
        access,
        intentions,
    })
}

#[cfg(test)]
mod tests;
