//! Makes the rules of authorisation of their tree.

use std::collections::BTreeMap;

use super::parts;
use super::problem::Problem;
use super::tree::Node;
use crate::model::Rbac;
use crate::rbac::{Action, Pattern, Principal, Rules};

/// How deep principals may be nested.
const DEPTH: u32 = 8;
/// How many principals the rules of a filter may have.
const PRINCIPALS: usize = 10_000;

/// `RBAC.Action.DENY` and `LOG`.
const DENY: i32 = 1;
const LOG: i32 = 2;

/// Makes an RBAC filter. Without rules it allows everybody; with rules that have no policy, it allows nobody or, if
/// they deny, everybody.
pub(super) fn filter(node: &Node<'_>) -> Result<Rbac, Problem> {
    if node.choice("enforcement_type") != 0 {
        return Err(Problem::needs_envoy("CONTINUOUS").within("enforcement_type"));
    }
    Ok(Rbac {
        stat_prefix: parts::required(node, "stat_prefix")?.to_string(),
        rules: node.child("rules", rules)?,
    })
}

fn rules(node: &Node<'_>) -> Result<Rules, Problem> {
    let action = match node.choice("action") {
        DENY => Action::Deny,
        LOG => return Err(Problem::needs_envoy("LOG").within("action")),
        _ => Action::Allow,
    };
    let mut left = PRINCIPALS;
    let mut policies = BTreeMap::new();
    for (name, node) in node.pairs("policies") {
        let made = policy(node, &mut left);
        let made = made.map_err(|problem| problem.within(format_args!("policies[{name:?}]")))?;
        policies.insert(name.to_owned(), made);
    }
    Ok(Rules { action, policies })
}

fn policy(node: &Node<'_>, left: &mut usize) -> Result<Vec<Principal>, Problem> {
    let permissions = node.each("permissions", |permission| match permission.flag("any") {
        true => Ok(()),
        false => Err(Problem::invalid("any must be true")),
    })?;
    if permissions.is_empty() {
        return Err(Problem::invalid("value must contain at least 1 item(s)").within("permissions"));
    }
    some(node, "principals", |node| principal(node, 1, left))
}

/// The elements of a list that must not be empty.
fn some<'a>(
    node: &Node<'a>,
    name: &'static str,
    make: impl FnMut(&Node<'a>) -> Result<Principal, Problem>,
) -> Result<Vec<Principal>, Problem> {
    let made = node.each(name, make)?;
    if made.is_empty() {
        return Err(Problem::invalid("value must contain at least 1 item(s)").within(name));
    }
    Ok(made)
}

fn principal(node: &Node<'_>, depth: u32, left: &mut usize) -> Result<Principal, Problem> {
    if depth > DEPTH {
        return Err(Problem::needs_envoy(format!(
            "principals nested deeper than {DEPTH}"
        )));
    }
    *left = left
        .checked_sub(1)
        .ok_or_else(|| Problem::needs_envoy(format!("more than {PRINCIPALS} principals")))?;
    let mut set = |name| {
        node.child(name, |set| {
            some(set, "ids", |node| principal(node, depth + 1, left))
        })
    };
    if let Some(all) = set("and_ids")? {
        return Ok(Principal::All(all));
    }
    if let Some(one_of) = set("or_ids")? {
        return Ok(Principal::OneOf(one_of));
    }
    if let Some(not) = node.child("not_id", |node| principal(node, depth + 1, left))? {
        return Ok(Principal::Not(Box::new(not)));
    }
    if let Some(pattern) = node.child("authenticated", authenticated)? {
        return Ok(Principal::Uri(pattern));
    }
    if node.flag("any") {
        return Ok(Principal::Any);
    }
    Err(Problem::invalid(
        "a principal is required, and any must be true",
    ))
}

fn authenticated(node: &Node<'_>) -> Result<Pattern, Problem> {
    let pattern = node.child("principal_name", |name| {
        if name.has("exact") {
            return Err(Problem::needs_envoy("").within("exact"));
        }
        let pattern = name.child("safe_regex", |regex| {
            let text = parts::required(regex, "regex")?;
            Pattern::parse(&text).ok_or_else(|| {
                Problem::needs_envoy(format!("the regular expression {text}")).within("regex")
            })
        })?;
        pattern.ok_or_else(|| Problem::invalid("a pattern is required"))
    })?;
    pattern.ok_or_else(|| Problem::needs_envoy("anybody with a certificate"))
}
