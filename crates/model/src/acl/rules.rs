//! The rules of a policy.
//!
//! A rule applies to a whole resource, to names with a prefix, or to one name. It grants an access
//! level or denies access. It is valid in the policy's namespace, or in those of the block around it.
//! [`crate::acl::Authorizer`] defines the precedence of rules.

use std::fmt;

use crate::acl::resource::{Access, Names, Resource};
use crate::acl::scope::{Scope, Tenants};
use crate::hcl::{self, Node};
use crate::tenancy::Tenancy;

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// The resource.
    pub resource: Resource,
    /// The names that it applies to.
    pub names: Names,
    /// The access level.
    pub access: Access,
    /// Access level for the intentions of these services; for services only. If unset, reading or
    /// writing the services permits reading their intentions.
    pub intentions: Option<Access>,
    /// The tenancies in which it is valid.
    pub scope: Scope,
}

/// The rules of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Rules that were refused. The texts start as Consul's do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRules(String);

impl Rules {
    /// Parses rules in HCL or JSON. An empty text has no rules.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`] locates the syntax error or names the invalid rule. Unknown resources and
    /// fields are refused, since a rule that is silently ignored would be dangerous.
    pub fn parse(text: &str) -> Result<Self, InvalidRules> {
        let unreadable = |reason: &dyn fmt::Display| {
            InvalidRules(format!("Failed to parse ACL rules: {reason}"))
        };
        let fields = hcl::parse(text).map_err(|error| unreadable(&error))?;
        let mut rules = Vec::new();
        for (name, node) in fields {
            add(
                &mut rules,
                &Scope::default(),
                &name.to_ascii_lowercase(),
                node,
            )?;
        }
        Ok(Self(rules))
    }

    /// Checks that a policy of this tenancy may contain these rules. Rules of a namespace must not
    /// apply to other namespaces, nor those of a partition to other partitions. Rules about resources
    /// of the whole mesh or partition are only permitted in the `default` namespace.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`] names the first refused rule.
    pub fn check_within(&self, own: &Tenancy) -> Result<(), InvalidRules> {
        self.iter().try_for_each(|rule| rule.check_within(own))
    }

    /// Drops the rules that a policy of this tenancy may not contain.
    #[must_use]
    pub(crate) fn permitted_within(self, own: &Tenancy) -> Self {
        let permitted = |rule: &Rule| rule.check_within(own).is_ok();
        self.0.into_iter().filter(permitted).collect()
    }

    /// Rules that permit reading every service in every namespace of the policy's partition.
    pub(crate) fn reading_services_of_every_namespace() -> Self {
        let everywhere = Scope::everywhere();
        Self(vec![Rule {
            resource: Resource::Service,
            names: Names::Prefix(String::new()),
            access: Access::Read,
            intentions: None,
            scope: Scope {
                partitions: Tenants::Own,
                ..everywhere
            },
        }])
    }

    /// Extends rules outside of blocks to every namespace.
    #[must_use]
    pub(crate) fn and_everywhere(self) -> Self {
        let everywhere = |rule: &Rule| Rule {
            scope: Scope::everywhere(),
            ..rule.clone()
        };
        let own = self.iter().filter(|rule| rule.scope == Scope::default());
        let everywhere: Vec<Rule> = own.map(everywhere).collect();
        Self(self.0.into_iter().chain(everywhere).collect())
    }

    /// The rules, in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
}

impl Rule {
    fn check_within(&self, own: &Tenancy) -> Result<(), InvalidRules> {
        let refuse = |what: &str| {
            Err(InvalidRules(format!(
                "Invalid {} policy: {what}",
                self.resource
            )))
        };
        let Scope {
            partitions,
            namespaces,
        } = &self.scope;
        let names_namespaces = *namespaces != Tenants::Own;
        let is_tenants = matches!(self.resource, Resource::Namespace | Resource::Partition);
        if !own.is_default_namespace() && (names_namespaces || is_tenants) {
            return refuse(
                "a policy of another namespace than \"default\" applies to its own namespace only: \
                 remove the blocks of namespaces and partitions",
            );
        }
        let foreign = match partitions {
            Tenants::Own => self.resource == Resource::Partition,
            Tenants::Exact(name) => **name != *own.partition,
            Tenants::Prefix(_) => true,
        };
        if !own.is_default_partition() && foreign {
            return refuse(
                "a policy of another partition than \"default\" applies to its own partition only: \
                 remove the blocks of other partitions",
            );
        }
        let main = Tenancy::default();
        if self.resource.is_of_mesh() && !self.scope.holds_in(own, &main) {
            return refuse(
                "it belongs to the whole mesh: only rules of the partition and namespace \"default\" can \
                 apply to it",
            );
        }
        let writes_nodes = self.resource == Resource::Node && self.access == Access::Write;
        if (self.resource.is_of_partition() || writes_nodes)
            && !namespaces.include(&own.namespace, &main.namespace)
        {
            return refuse(
                "it belongs to the whole partition: only rules of the namespace \"default\" can apply to \
                 it, except for reading nodes",
            );
        }
        Ok(())
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

/// Adds the rules of one top-level name of a text, or of one inside a namespace or partition block.
fn add(rules: &mut Vec<Rule>, scope: &Scope, name: &str, node: Node) -> Result<(), InvalidRules> {
    let (stem, prefix) = match name.strip_suffix("_prefix") {
        Some(stem) => (stem, true),
        None => (name, false),
    };
    if stem == "identity" {
        // Accepted and ignored, as by Consul since 1.20.
        return Ok(());
    }
    let unknown = || {
        InvalidRules(format!(
            "Failed to parse ACL rules: {name:?} is not a resource of rules"
        ))
    };
    let resource = Resource::parse(stem)
        .filter(|resource| *resource != Resource::Intention)
        .filter(|resource| !prefix || resource.has_names())
        .ok_or_else(unknown)?;
    if resource.has_names() {
        for (segment, bodies) in objects(name, node)? {
            for body in bodies_of(name, &segment, bodies)? {
                let block = Block {
                    name,
                    resource,
                    prefix,
                    segment: &segment,
                };
                match resource {
                    Resource::Namespace | Resource::Partition => {
                        add_tenants(rules, scope, block, body)?;
                    }
                    _ => rules.push(named_rule(scope, block, body)?),
                }
            }
        }
        return Ok(());
    }
    let Node::Text(text) = node else {
        return Err(InvalidRules(format!(
            "Invalid {name} policy: it must be \"read\", \"write\" or \"deny\""
        )));
    };
    let same = |rule: &Rule| rule.resource == resource && rule.scope == *scope;
    if rules.iter().any(same) {
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
        scope: scope.clone(),
    });
    Ok(())
}

/// A labelled block: `service_prefix "web" {`.
#[derive(Clone, Copy)]
struct Block<'t> {
    name: &'t str,
    resource: Resource,
    prefix: bool,
    segment: &'t str,
}

impl Block<'_> {
    fn names(self) -> Names {
        match self.prefix {
            true => Names::Prefix(self.segment.to_owned()),
            false => Names::Exact(self.segment.to_owned()),
        }
    }
}

/// Adds the rules in a namespace or partition block, and the rule about the namespace or partition
/// itself.
fn add_tenants(
    rules: &mut Vec<Rule>,
    around: &Scope,
    block: Block<'_>,
    body: Vec<(String, Node)>,
) -> Result<(), InvalidRules> {
    let segment = block.segment.to_ascii_lowercase();
    let block = Block {
        segment: &segment,
        ..block
    };
    let Some(scope) = around.of_block(block.resource, &block.names()) else {
        return Err(InvalidRules(format!(
            "Failed to parse ACL rules: {} {segment:?} is in a block that cannot contain it: only \
             blocks of partitions can contain blocks, which must be of namespaces",
            block.name
        )));
    };
    let mut policy = Vec::new();
    for (field, node) in body {
        match field.to_ascii_lowercase().as_str() {
            "policy" => policy.push((field, node)),
            name => add(rules, &scope, name, node)?,
        }
    }
    if !policy.is_empty() {
        rules.push(named_rule(
            &around.of_tenants(block.resource),
            block,
            policy,
        )?);
    }
    Ok(())
}

/// Parses an access level; `list` permits that level as well.
fn level(text: &str, list: bool) -> Option<Access> {
    Access::parse(text).filter(|access| list || *access != Access::List)
}

/// The labelled objects of a resource. JSON may encode an object as a list of objects.
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

/// The bodies of the blocks with one name.
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

/// Parses the rule of one block.
fn named_rule(
    scope: &Scope,
    block: Block<'_>,
    body: Vec<(String, Node)>,
) -> Result<Rule, InvalidRules> {
    let Block {
        name,
        resource,
        segment,
        ..
    } = block;
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
                "Failed to parse ACL rules: {field:?} of {name} {segment:?} is not text"
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
    Ok(Rule {
        resource,
        names: block.names(),
        access,
        intentions,
        scope: scope.clone(),
    })
}

#[cfg(test)]
mod tests;
