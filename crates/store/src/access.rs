//! Tokens, auth methods and binding rules. This file makes no access decisions.

use std::fmt;
use std::sync::Arc;

use legate_model::Secret;
use legate_model::acl::{AuthMethod, BindingRule, ContentHash, PolicyLink, Token};

use crate::key::{Key, Table, fold};
use crate::read::ReadTxn;
use crate::rejected::Rejected;
use crate::rows::ManagementRow;
use crate::write::WriteTxn;

/// Identifies a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenKey {
    /// By its public accessor id.
    Accessor(String),
    /// By its secret.
    Secret(Secret),
}

impl fmt::Display for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accessor(id) => f.write_str(id),
            Self::Secret(_) => f.write_str("***"),
        }
    }
}

impl ReadTxn<'_> {
    /// A token by accessor id.
    pub fn token_by_accessor(&self, accessor: &str) -> Option<Arc<Token>> {
        self.get(&[accessor])
    }

    /// A token of any tenancy by its secret. The comparison is case-sensitive.
    pub fn token_by_secret(&self, secret: &str) -> Option<Arc<Token>> {
        self.find(Key::exact(Table::TokensBySecret, &self.tenancy, secret))
    }

    /// All tokens, ordered by accessor id.
    pub fn tokens(&self) -> Vec<Arc<Token>> {
        self.scan(&[])
    }

    /// The tokens of every tenancy.
    pub fn tokens_of_all(&self) -> Vec<Arc<Token>> {
        self.find_all(Table::TokensBySecret, &[])
    }

    /// The index of the write of the first management token. It remains when the token is removed,
    /// so that ACLs can be bootstrapped only once.
    pub fn managed_since(&self) -> Option<u64> {
        self.get::<ManagementRow>(&[]).map(|row| row.since)
    }

    /// An auth method.
    pub fn auth_method(&self, name: &str) -> Option<Arc<AuthMethod>> {
        self.get(&[name])
    }

    /// All auth methods, ordered by name.
    pub fn auth_methods(&self) -> Vec<Arc<AuthMethod>> {
        self.scan(&[])
    }

    /// A binding rule.
    pub fn binding_rule(&self, id: &str) -> Option<Arc<BindingRule>> {
        self.get(&[id])
    }

    /// The binding rules of one auth method, ordered by id.
    pub fn binding_rules(&self, auth_method: &str) -> Vec<Arc<BindingRule>> {
        self.find_all(Table::BindingRulesByMethod, &[auth_method])
    }

    /// All binding rules, ordered by id.
    pub fn all_binding_rules(&self) -> Vec<Arc<BindingRule>> {
        self.scan(&[])
    }
}

impl WriteTxn {
    /// Upserts a token by its accessor id.
    ///
    /// # Errors
    /// [`Rejected::Missing`], [`Rejected::SecretTaken`] if another token has the secret, or
    /// [`Rejected::MissingLink`] if a policy or role does not exist.
    pub fn put_token(&mut self, token: Token) -> Result<(), Rejected> {
        let mut token = token.of(&self.tenancy);
        token.normalize();
        token.hash = ContentHash::default();
        if token.accessor_id.is_empty() || token.secret_id.expose().is_empty() {
            return Err(Rejected::Missing {
                field: "AccessorID or SecretID",
                hint: "a token has both; they are made before it is stored",
            });
        }
        let holder = self.read().token_by_secret(token.secret_id.expose());
        let is_another = |holder: Arc<Token>| {
            fold(&holder.accessor_id) != fold(&token.accessor_id)
                || holder.tenancy() != token.tenancy()
        };
        if holder.is_some_and(is_another) {
            return Err(Rejected::SecretTaken);
        }
        token.policies = self.linked_policies(token.policies)?;
        token.roles = self.linked_roles(token.roles)?;
        let existing = self.read().token_by_accessor(&token.accessor_id);
        let index = self.index();
        token.create_index = existing.as_ref().map_or(index, |t| t.create_index);
        token.modify_index = existing.as_ref().map_or(index, |t| t.modify_index);
        if existing.as_deref() == Some(&token) {
            return Ok(());
        }
        token.modify_index = index;
        let manages = token.policies.iter().any(PolicyLink::is_global_management);
        if manages && self.read().managed_since().is_none() {
            self.put(ManagementRow { since: index });
        }
        self.put(token);
        Ok(())
    }

    /// Allows ACLs to be bootstrapped again: sets the reset index to that of this write.
    pub fn reset_management(&mut self) {
        let since = self.index();
        self.put(ManagementRow { since });
    }

    /// Removes a token; by secret in any tenancy. A no-op if the token does not exist.
    pub fn remove_token(&mut self, key: &TokenKey) {
        match key {
            TokenKey::Accessor(accessor) => {
                self.remove::<Token>(&[accessor]);
            }
            TokenKey::Secret(secret) => {
                let token = self.read().token_by_secret(secret.expose());
                if let Some(token) = token {
                    self.remove_this(&token);
                }
            }
        }
    }

    fn remove_this(&mut self, token: &Token) {
        self.in_tenancy(&token.tenancy(), |txn| {
            txn.remove::<Token>(&[&token.accessor_id])
        });
    }

    /// Upserts an auth method by its name.
    ///
    /// # Errors
    /// [`Rejected::Missing`] without a name.
    pub fn put_auth_method(&mut self, method: AuthMethod) -> Result<(), Rejected> {
        let mut method = method.of(&self.tenancy);
        if method.name.is_empty() {
            return Err(Rejected::Missing {
                field: "Name",
                hint: "name the auth method",
            });
        }
        let existing = self.read().auth_method(&method.name);
        let index = self.index();
        method.create_index = existing.as_ref().map_or(index, |m| m.create_index);
        method.modify_index = existing.as_ref().map_or(index, |m| m.modify_index);
        if existing.as_deref() != Some(&method) {
            method.modify_index = index;
            self.put(method);
        }
        Ok(())
    }

    /// Removes an auth method with its binding rules and the tokens of its logins, in all
    /// namespaces.
    pub fn remove_auth_method(&mut self, name: &str) {
        if !self.remove::<AuthMethod>(&[name]) {
            return;
        }
        for rule in self.read().binding_rules(name) {
            self.remove_binding_rule(&rule.id);
        }
        let made_through_it: Vec<Arc<Token>> = self.read().find_all(Table::TokensByMethod, &[name]);
        for token in made_through_it {
            self.remove_this(&token);
        }
    }

    /// Upserts a binding rule by its id.
    ///
    /// # Errors
    /// [`Rejected::Missing`] without an id, [`Rejected::MissingAuthMethod`].
    pub fn put_binding_rule(&mut self, rule: BindingRule) -> Result<(), Rejected> {
        let mut rule = rule.of(&self.tenancy);
        if rule.id.is_empty() {
            return Err(Rejected::Missing {
                field: "ID",
                hint: "a binding rule's id is made before it is stored",
            });
        }
        if self.read().auth_method(&rule.auth_method).is_none() {
            return Err(Rejected::MissingAuthMethod {
                name: rule.auth_method,
            });
        }
        let existing = self.read().binding_rule(&rule.id);
        let index = self.index();
        rule.create_index = existing.as_ref().map_or(index, |r| r.create_index);
        rule.modify_index = existing.as_ref().map_or(index, |r| r.modify_index);
        if existing.as_deref() != Some(&rule) {
            rule.modify_index = index;
            self.put(rule);
        }
        Ok(())
    }

    /// Removes a binding rule.
    pub fn remove_binding_rule(&mut self, id: &str) {
        self.remove::<BindingRule>(&[id]);
    }
}
