//! From a token to what it permits: its policies, those of its roles, and those that its identities
//! and templates stand for.
//!
//! Each policy says what it says in its own tenancy, whatever the token's is. A token of a namespace has
//! the defaults of that namespace besides, which decide where nothing else of it does.
//!
//! What was computed is shared by everybody who asks with the same token, until a row that it was
//! made from changes ([`ReadTxn::shared`]). Nobody has to say which rows these are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use legate_model::Tenancy;
use legate_model::acl::{
    Authorizer, DefaultPolicy, InvalidRules, Policy, PolicyLink, Role, RoleLink, Rules, Token,
};
use legate_store::ReadTxn;

use super::error::AclError;
use super::tenants;

/// How many tokens' rights are kept at least, for those who ask again. Twice as many at most.
const KEPT: usize = 4096;

/// What one token permits, or the policy that cannot be read.
type Resolved = Result<(Authorizer, Sources), String>;

/// The rules that an authorizer was made from, each with the tenancy of its policy. They are kept with it
/// for other tokens that have them too.
type Sources = Vec<(Tenancy, Arc<Result<Rules, String>>)>;

/// Keeps what was resolved lately.
#[derive(Default)]
pub(super) struct Kept(Mutex<Generations>);

/// Two generations: what is asked for moves to the young one, and when that is full the old one is
/// dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<String, Arc<Resolved>>,
    old: HashMap<String, Arc<Resolved>>,
}

impl Kept {
    fn keep(&self, accessor: &str, resolved: &Arc<Resolved>) {
        // Nothing that can panic happens under the lock.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.young.get(accessor);
        if known.is_some_and(|known| Arc::ptr_eq(known, resolved)) {
            return;
        }
        if kept.young.len() >= KEPT {
            kept.old = std::mem::take(&mut kept.young);
        }
        let entry = (accessor.to_owned(), Arc::clone(resolved));
        kept.young.extend([entry]);
    }
}

/// Where and under which default a token is judged.
#[derive(Clone, Copy)]
pub(super) struct Setting<'c> {
    pub(super) datacenter: &'c str,
    pub(super) default: DefaultPolicy,
}

impl Setting<'_> {
    /// What a stored token permits.
    ///
    /// # Errors
    /// [`AclError::BrokenPolicy`] when a policy cannot be read: what it denies is not known, so that
    /// nothing is permitted.
    pub(super) fn of_stored(
        self,
        txn: &ReadTxn<'_>,
        token: &Token,
        kept: &Kept,
    ) -> Result<Authorizer, AclError> {
        // By the public id: names of shared results are no place for secrets, and are folded.
        let accessor = &token.accessor_id;
        let tenancy = token.tenancy();
        let resolved = txn.in_tenancy(&tenancy, |txn| {
            txn.shared("authorizer", accessor, |txn| {
                match txn.token_by_accessor(accessor) {
                    Some(token) => self.resolve(txn, &token),
                    None => Ok((Authorizer::deny_all(), Sources::new())),
                }
            })
        });
        kept.keep(&place(&tenancy, accessor), &resolved);
        match &*resolved {
            Ok((authorizer, _)) => Ok(authorizer.clone()),
            Err(reason) => Err(AclError::BrokenPolicy(reason.clone())),
        }
    }

    /// What a token without a row permits.
    pub(super) fn of_unstored(self, token: &Token) -> Authorizer {
        let parsed = token.own_policies().into_iter();
        let rules: Vec<Rules> = parsed
            .filter_map(|policy| policy.parsed_template().ok())
            .collect();
        Authorizer::new(&rules, self.default)
    }

    /// What a token permits, looked at in its tenancy.
    fn resolve(self, txn: &ReadTxn<'_>, token: &Token) -> Resolved {
        let mut sources = self.linked(txn, &token.policies);
        sources.extend(self.own(&token.tenancy(), token.own_policies()));
        sources.extend(rules_elsewhere(
            &token.tenancy(),
            token.rules_elsewhere(self.datacenter),
        ));
        sources.extend(self.of_roles(txn, &token.roles));
        let direct = sources.len();
        let (policies, roles) = tenants::namespace_defaults(txn);
        // They are of the namespace `default`, whichever of that name there are in the token's own.
        txn.in_tenancy(&txn.tenancy().of_partition(), |txn| {
            sources.extend(self.linked(txn, &policies));
            sources.extend(self.of_roles(txn, &roles));
        });
        let rules: Result<Vec<(&Tenancy, &Rules)>, &String> = sources
            .iter()
            .map(|(tenancy, rules)| Ok((tenancy, (**rules).as_ref()?)))
            .collect();
        let rules = rules.map_err(String::clone)?;
        let (direct, defaults) = rules.split_at(direct);
        let authorizer = Authorizer::with_defaults(
            direct.iter().copied(),
            defaults.iter().copied(),
            self.default,
        );
        Ok((authorizer, sources))
    }

    /// The rules of linked policies. A link that leads nowhere gives nothing.
    fn linked(self, txn: &ReadTxn<'_>, links: &[PolicyLink]) -> Sources {
        let valid = |link: &PolicyLink| {
            let policy = txn.linked_policy(&link.id, "")?;
            if !policy.is_valid_in(self.datacenter) {
                return None;
            }
            let tenancy = policy.tenancy();
            let read = |txn: &ReadTxn<'_>| match txn.policy(&link.id) {
                Some(policy) => parse(&policy),
                None => Ok(Rules::default()),
            };
            let rules = txn.in_tenancy(&tenancy, |txn| txn.shared("rules", &link.id, read));
            Some((tenancy, rules))
        };
        links.iter().filter_map(valid).collect()
    }

    /// The rules of linked roles: of their policies, and of what they may be.
    fn of_roles(self, txn: &ReadTxn<'_>, links: &[RoleLink]) -> Sources {
        let of = |role: Arc<Role>| {
            let tenancy = role.tenancy();
            let mut sources = txn.in_tenancy(&tenancy, |txn| self.linked(txn, &role.policies));
            sources.extend(self.own(&tenancy, role.own_policies()));
            sources.extend(rules_elsewhere(
                &tenancy,
                role.rules_elsewhere(self.datacenter),
            ));
            sources
        };
        let roles = links
            .iter()
            .filter_map(|link| txn.linked_role(&link.id, ""));
        roles.flat_map(of).collect()
    }

    /// The rules of what a token or role may be.
    fn own(self, tenancy: &Tenancy, policies: Vec<Policy>) -> Sources {
        let valid = |policy: &Policy| policy.is_valid_in(self.datacenter);
        let policies = policies.into_iter().filter(valid);
        let source = |policy: Policy| {
            let rules = said_by(&policy, policy.parsed_template());
            (tenancy.clone(), Arc::new(rules))
        };
        policies.map(source).collect()
    }
}

fn rules_elsewhere(tenancy: &Tenancy, rules: Option<Rules>) -> Sources {
    let source = |rules| (tenancy.clone(), Arc::new(Ok(rules)));
    rules.map(source).into_iter().collect()
}

/// What a token is kept under: accessor ids are unique in their tenancy.
fn place(tenancy: &Tenancy, accessor: &str) -> String {
    match tenancy.is_default() {
        true => accessor.to_owned(),
        false => format!("{}/{}/{accessor}", tenancy.partition, tenancy.namespace),
    }
}

fn parse(policy: &Policy) -> Result<Rules, String> {
    said_by(policy, policy.parsed())
}

fn said_by(policy: &Policy, parsed: Result<Rules, InvalidRules>) -> Result<Rules, String> {
    parsed.map_err(|error| format!("policy {:?}: {error}", policy.name))
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
