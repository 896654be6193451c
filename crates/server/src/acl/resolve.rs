//! From a token to what it permits: its policies, those of its roles, and those that its identities
//! and templates stand for.
//!
//! What was computed is shared by everybody who asks with the same token, until a row that it was
//! made from changes ([`ReadTxn::shared`]). Nobody has to say which rows these are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use legate_model::acl::{Authorizer, DefaultPolicy, Policy, PolicyLink, Rules, Token};
use legate_store::ReadTxn;

use super::AclError;

/// How many tokens' rights are kept at least, for those who ask again. Twice as many at most.
const KEPT: usize = 4096;

/// What one token permits, or the policy that cannot be read.
type Resolved = Result<(Authorizer, Sources), String>;

/// The rules that an authorizer was made from. They are kept with it for other tokens that have
/// them too.
type Sources = Vec<Arc<Result<Rules, String>>>;

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
        let resolved = txn.shared("authorizer", accessor, |txn| {
            match txn.token_by_accessor(accessor) {
                Some(token) => self.resolve(txn, &token),
                None => Ok((Authorizer::deny_all(), Sources::new())),
            }
        });
        kept.keep(accessor, &resolved);
        match &*resolved {
            Ok((authorizer, _)) => Ok(authorizer.clone()),
            Err(reason) => Err(AclError::BrokenPolicy(reason.clone())),
        }
    }

    /// What a token without a row permits.
    pub(super) fn of_unstored(self, token: &Token) -> Authorizer {
        let parsed = token.own_policies().into_iter();
        let rules: Vec<Rules> = parsed.filter_map(|policy| policy.parsed().ok()).collect();
        Authorizer::new(&rules, self.default)
    }

    fn resolve(self, txn: &ReadTxn<'_>, token: &Token) -> Resolved {
        let mut sources = self.linked(txn, &token.policies);
        let mut own = token.own_policies();
        for link in &token.roles {
            if let Some(role) = txn.role(&link.id) {
                sources.extend(self.linked(txn, &role.policies));
                own.extend(role.own_policies());
            }
        }
        let own = own
            .iter()
            .filter(|policy| policy.is_valid_in(self.datacenter));
        sources.extend(own.map(|policy| Arc::new(parse(policy))));
        let rules: Result<Vec<&Rules>, &String> =
            sources.iter().map(|rules| (**rules).as_ref()).collect();
        let rules = rules.map_err(String::clone)?;
        Ok((Authorizer::new(rules, self.default), sources))
    }

    /// The rules of linked policies. A link that leads nowhere gives nothing.
    fn linked(self, txn: &ReadTxn<'_>, links: &[PolicyLink]) -> Sources {
        let valid = |link: &PolicyLink| {
            let policy = txn.policy(&link.id)?;
            let here = policy.is_valid_in(self.datacenter);
            let read = |txn: &ReadTxn<'_>| match txn.policy(&link.id) {
                Some(policy) => parse(&policy),
                None => Ok(Rules::default()),
            };
            here.then(|| txn.shared("rules", &link.id, read))
        };
        links.iter().filter_map(valid).collect()
    }
}

fn parse(policy: &Policy) -> Result<Rules, String> {
    let parsed = policy.parsed();
    parsed.map_err(|error| format!("policy {:?}: {error}", policy.name))
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
