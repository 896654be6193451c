//! Policies and roles, and links to them. This file makes no access decisions.
//!
//! Links are stored by id, because names change, and are resolved by readers: a removed policy or
//! role grants nothing. They are resolved in the tenancy of the linking object first, and then in
//! the namespace `default` of the same partition.

use std::sync::Arc;

use legate_model::acl::{
    ContentHash, GLOBAL_MANAGEMENT_ID, Policy, PolicyLink, Role, RoleLink, Token,
};

use crate::key::{Table, fold};
use crate::read::ReadTxn;
use crate::rejected::Rejected;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// A policy by id. Built-in policies are in the default tenancy and need no row.
    pub fn policy(&self, id: &str) -> Option<Arc<Policy>> {
        let stored = self.get(&[id]);
        let builtin = || {
            let here = self.tenancy.is_default();
            here.then(|| Policy::builtin_by_id(id)).flatten()
        };
        stored.or_else(|| builtin().map(Arc::new))
    }

    /// Resolves a link in the current tenancy: by id, or if that is empty by name.
    pub fn linked_policy(&self, id: &str, name: &str) -> Option<Arc<Policy>> {
        self.linked(|txn| match id {
            "" => txn.policy_by_name(name),
            id => txn.policy(id),
        })
    }

    /// Resolves a link to a role, as [`Self::linked_policy`].
    pub fn linked_role(&self, id: &str, name: &str) -> Option<Arc<Role>> {
        self.linked(|txn| match id {
            "" => txn.role_by_name(name),
            id => txn.role(id),
        })
    }

    fn linked<T>(&self, find: impl Fn(&ReadTxn<'_>) -> Option<T>) -> Option<T> {
        find(self).or_else(|| match self.tenancy.is_default_namespace() {
            true => None,
            false => self.in_tenancy(&self.tenancy.of_partition(), |txn| find(txn)),
        })
    }

    /// A policy by name.
    pub fn policy_by_name(&self, name: &str) -> Option<Arc<Policy>> {
        if let Some(stored) = self.find(self.key(Table::PoliciesByName, &[name])) {
            return Some(stored);
        }
        let here = self.tenancy.is_default();
        let builtin = Policy::builtin().into_iter().filter(|_| here);
        let mut named = builtin.filter(|policy| fold(&policy.name) == fold(name));
        // A renamed built-in policy has a row, and no longer this name.
        let named = named.next()?;
        self.policy(&named.id)
            .filter(|policy| fold(&policy.name) == fold(name))
    }

    /// All policies, ordered by id.
    pub fn policies(&self) -> Vec<Arc<Policy>> {
        let mut all: Vec<Arc<Policy>> = self.scan(&[]);
        let here = self.tenancy.is_default();
        for builtin in Policy::builtin().into_iter().filter(|_| here) {
            if !all.iter().any(|policy| policy.id == builtin.id) {
                all.push(Arc::new(builtin));
            }
        }
        all.sort_by(|one, other| one.id.cmp(&other.id));
        all
    }

    /// A role by id. Its links are ids only: see [`ReadTxn::shown_role`].
    pub fn role(&self, id: &str) -> Option<Arc<Role>> {
        self.get(&[id])
    }

    /// A role by name.
    pub fn role_by_name(&self, name: &str) -> Option<Arc<Role>> {
        self.find(self.key(Table::RolesByName, &[name]))
    }

    /// All roles, ordered by id.
    pub fn roles(&self) -> Vec<Arc<Role>> {
        self.scan(&[])
    }

    /// A role as returned to clients: its links have names, dangling links are removed, and it has
    /// its hash.
    pub fn shown_role(&self, role: &Role) -> Role {
        let policies = |txn: &ReadTxn<'_>| txn.shown_policies(&role.policies);
        let shown = Role {
            policies: self.in_tenancy(&role.tenancy(), policies),
            ..role.clone()
        };
        shown.hashed()
    }

    /// A token as returned to clients: its links have names, dangling links are removed, and it has
    /// its hash.
    pub fn shown_token(&self, token: &Token) -> Token {
        let (policies, roles) = self.in_tenancy(&token.tenancy(), |txn| {
            let policies = txn.shown_policies(&token.policies);
            (policies, txn.shown_roles(&token.roles))
        });
        let shown = Token {
            policies,
            roles,
            ..token.clone()
        };
        shown.hashed()
    }

    fn shown_roles(&self, links: &[RoleLink]) -> Vec<RoleLink> {
        let shown = |link: &RoleLink| {
            let role = self.linked_role(&link.id, "")?;
            let (id, name) = (role.id.clone(), role.name.clone());
            Some(RoleLink { id, name })
        };
        links.iter().filter_map(shown).collect()
    }

    fn shown_policies(&self, links: &[PolicyLink]) -> Vec<PolicyLink> {
        let shown = |link: &PolicyLink| {
            let policy = self.linked_policy(&link.id, "")?;
            let (id, name) = (policy.id.clone(), policy.name.clone());
            Some(PolicyLink { id, name })
        };
        links.iter().filter_map(shown).collect()
    }
}

impl WriteTxn {
    /// Upserts a policy by its id.
    ///
    /// # Errors
    /// [`Rejected::Missing`], or [`Rejected::NameTaken`] if another policy has the name.
    pub fn put_policy(&mut self, policy: Policy) -> Result<(), Rejected> {
        let mut policy = policy.of(&self.tenancy);
        require(&policy.id, &policy.name)?;
        policy.hash = ContentHash::default();
        let holder = self.read().policy_by_name(&policy.name);
        if holder.is_some_and(|holder| fold(&holder.id) != fold(&policy.id)) {
            let (kind, name) = ("Policy", policy.name);
            return Err(Rejected::NameTaken { kind, name });
        }
        let existing = self.read().policy(&policy.id);
        let index = self.index();
        policy.create_index = existing.as_ref().map_or(index, |p| p.create_index);
        policy.modify_index = existing.as_ref().map_or(index, |p| p.modify_index);
        if existing.as_deref() != Some(&policy) {
            policy.modify_index = index;
            self.put(policy);
        }
        Ok(())
    }

    /// Removes a policy. Links to it grant nothing any more.
    pub fn remove_policy(&mut self, id: &str) {
        self.remove::<Policy>(&[id]);
    }

    /// Upserts a role by its id.
    ///
    /// # Errors
    /// [`Rejected::Missing`], [`Rejected::NameTaken`] if another role has the name, or
    /// [`Rejected::MissingLink`] if a policy does not exist.
    pub fn put_role(&mut self, role: Role) -> Result<(), Rejected> {
        let mut role = role.of(&self.tenancy);
        require(&role.id, &role.name)?;
        role.hash = ContentHash::default();
        let holder = self.read().role_by_name(&role.name);
        if holder.is_some_and(|holder| fold(&holder.id) != fold(&role.id)) {
            let (kind, name) = ("Role", role.name);
            return Err(Rejected::NameTaken { kind, name });
        }
        role.normalize();
        role.policies = self.linked_policies(role.policies)?;
        let existing = self.read().role(&role.id);
        let index = self.index();
        role.create_index = existing.as_ref().map_or(index, |r| r.create_index);
        role.modify_index = existing.as_ref().map_or(index, |r| r.modify_index);
        if existing.as_deref() != Some(&role) {
            role.modify_index = index;
            self.put(role);
        }
        Ok(())
    }

    /// Removes a role. Links to it grant nothing any more.
    pub fn remove_role(&mut self, id: &str) {
        self.remove::<Role>(&[id]);
    }

    /// Links in stored form: by id and unique.
    pub(crate) fn linked_policies(
        &self,
        links: Vec<PolicyLink>,
    ) -> Result<Vec<PolicyLink>, Rejected> {
        let mut linked: Vec<PolicyLink> = Vec::new();
        for link in links {
            let found = self.read().linked_policy(&link.id, &link.name);
            let found = found.ok_or_else(|| missing("policy", link.id, link.name))?;
            if !linked.iter().any(|known| known.id == found.id) {
                let (id, name) = (found.id.clone(), String::new());
                linked.push(PolicyLink { id, name });
            }
        }
        Ok(linked)
    }

    /// Links in stored form: by id and unique.
    pub(crate) fn linked_roles(&self, links: Vec<RoleLink>) -> Result<Vec<RoleLink>, Rejected> {
        let mut linked: Vec<RoleLink> = Vec::new();
        for link in links {
            let found = self.read().linked_role(&link.id, &link.name);
            let found = found.ok_or_else(|| missing("role", link.id, link.name))?;
            if !linked.iter().any(|known| known.id == found.id) {
                let (id, name) = (found.id.clone(), String::new());
                linked.push(RoleLink { id, name });
            }
        }
        Ok(linked)
    }

    /// Upgrades links of formats in which only one policy existed, by name or id.
    pub(crate) fn link_policies_by_id(&mut self) {
        for token in self.read().tokens() {
            let mut linked = Token::clone(&token);
            for link in &mut linked.policies {
                if link.is_global_management() {
                    GLOBAL_MANAGEMENT_ID.clone_into(&mut link.id);
                    link.name.clear();
                }
            }
            if linked != *token {
                linked.modify_index = self.index();
                self.put(linked);
            }
        }
    }
}

fn require(id: &str, name: &str) -> Result<(), Rejected> {
    let missing = |field, hint| Err(Rejected::Missing { field, hint });
    if id.is_empty() {
        return missing("ID", "an id is made before anything is stored");
    }
    if name.is_empty() {
        return missing("Name", "send the name that it is to have");
    }
    Ok(())
}

fn missing(kind: &'static str, id: String, name: String) -> Rejected {
    let (by, value) = match id.is_empty() {
        true => ("name", name),
        false => ("ID", id),
    };
    Rejected::MissingLink { kind, by, value }
}
