//! Resolves a token to its permissions: the rules of its policies, of its roles, and of its identities and
//! templated policies.
//!
//! Rules apply in the tenancy of their policy, not in the token's. A token in a namespace also gets that
//! namespace's defaults, which apply where none of the token's own rules match.
//!
//! Results are cached and shared by all requests with the token, until a row that they were computed from
//! changes ([`ReadTxn::shared`] tracks these rows).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use legate_model::Tenancy;
use legate_model::acl::{
    Authorizer, DefaultPolicy, InvalidRules, Policy, PolicyLink, Role, RoleLink, Rules, Token,
};
use legate_store::ReadTxn;

use super::error::AclError;
use super::tenants;

/// Minimum number of tokens whose permissions are cached; the maximum is twice as many.
const KEPT: usize = 4096;

/// The permissions of a token, or the error of a policy that cannot be parsed.
type Resolved = Result<(Authorizer, Sources), String>;

/// The rules that an authorizer was built from, with their tenancies. Held here so that other tokens with the
/// same policies can share them.
type Sources = Vec<(Tenancy, Arc<Result<Rules, String>>)>;

/// A cache of recently resolved tokens.
#[derive(Default)]
pub(super) struct Kept(Mutex<Generations>);

/// Two generations: entries in use move to the young one; when it is full, the old one is dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<String, Arc<Resolved>>,
    old: HashMap<String, Arc<Resolved>>,
}

impl Kept {
    fn keep(&self, accessor: &str, resolved: &Arc<Resolved>) {
        // No code under the lock can panic.
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

/// The context of a resolution: datacenter and default policy.
#[derive(Clone, Copy)]
pub(super) struct Setting<'c> {
    pub(super) datacenter: &'c str,
    pub(super) default: DefaultPolicy,
}

impl Setting<'_> {
    /// The permissions of a stored token.
    ///
    /// # Errors
    /// [`AclError::BrokenPolicy`] if a policy cannot be parsed. Its denials are unknown, so nothing is
    /// permitted.
    pub(super) fn of_stored(
        self,
        txn: &ReadTxn<'_>,
        token: &Token,
        kept: &Kept,
    ) -> Result<Authorizer, AclError> {
        // Keyed by accessor id: keys of shared results are case-insensitive and must not contain secrets.
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

    /// The permissions of a token that is not stored.
    pub(super) fn of_unstored(self, token: &Token) -> Authorizer {
        let parsed = token.own_policies().into_iter();
        let rules: Vec<Rules> = parsed
            .filter_map(|policy| policy.parsed_template().ok())
            .collect();
        Authorizer::new(&rules, self.default)
    }

    /// The permissions of a token. `txn` must be in the token's tenancy.
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
        // The defaults link to policies and roles of the namespace `default`, even if the token's namespace has
        // others of the same name.
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

    /// The rules of linked policies. Dangling links are skipped.
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

    /// The rules of linked roles: of their policies, identities and templated policies.
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

    /// The rules of identities and templated policies of a token or role.
    fn own(self, tenancy: &Tenancy, policies: Vec<Policy>) -> Sources {
        let valid = |policy: &Policy| policy.is_valid_in(self.datacenter);
        let policies = policies.into_iter().filter(valid);
        let source = |policy: Policy| {
            let rules = with_policy_name(&policy, policy.parsed_template());
            (tenancy.clone(), Arc::new(rules))
        };
        policies.map(source).collect()
    }
}

fn rules_elsewhere(tenancy: &Tenancy, rules: Option<Rules>) -> Sources {
    let source = |rules| (tenancy.clone(), Arc::new(Ok(rules)));
    rules.map(source).into_iter().collect()
}

/// The cache key of a token. Accessor ids are unique within a tenancy.
fn place(tenancy: &Tenancy, accessor: &str) -> String {
    match tenancy.is_default() {
        true => accessor.to_owned(),
        false => format!("{}/{}/{accessor}", tenancy.partition, tenancy.namespace),
    }
}

fn parse(policy: &Policy) -> Result<Rules, String> {
    with_policy_name(policy, policy.parsed())
}

fn with_policy_name(policy: &Policy, parsed: Result<Rules, InvalidRules>) -> Result<Rules, String> {
    parsed.map_err(|error| format!("policy {:?}: {error}", policy.name))
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
