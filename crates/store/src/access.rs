//! Tokens, auth methods and binding rules. What they allow is decided elsewhere.

use std::sync::Arc;

use imbl::OrdMap;
use legate_model::acl::{AuthMethod, BindingRule, PolicyLink, Token};

use crate::apply::Changes;
use crate::catalog::Key;
use crate::command::{Rejected, TokenKey};
use crate::topic::{Topic, fold};

/// The ACL tables.
#[derive(Clone, Default)]
pub(crate) struct Access {
    tokens: OrdMap<Key, Arc<Token>>,
    /// Secret half to public half. Secrets are compared exactly.
    secrets: OrdMap<Key, Key>,
    methods: OrdMap<Key, Arc<AuthMethod>>,
    rules: OrdMap<Key, Arc<BindingRule>>,
    /// The index of the first token that could do everything. It stays when the token goes.
    managed_since: Option<u64>,
}

// Reading.
impl Access {
    pub(crate) fn token(&self, accessor: &str) -> Option<&Arc<Token>> {
        self.tokens.get(&fold(accessor))
    }

    pub(crate) fn token_by_secret(&self, secret: &str) -> Option<&Arc<Token>> {
        self.tokens.get(self.secrets.get(secret)?)
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = &Arc<Token>> {
        self.tokens.values()
    }

    pub(crate) fn managed_since(&self) -> Option<u64> {
        self.managed_since
    }

    pub(crate) fn method(&self, name: &str) -> Option<&Arc<AuthMethod>> {
        self.methods.get(&fold(name))
    }

    pub(crate) fn methods(&self) -> impl Iterator<Item = &Arc<AuthMethod>> {
        self.methods.values()
    }

    pub(crate) fn rule(&self, id: &str) -> Option<&Arc<BindingRule>> {
        self.rules.get(&fold(id))
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = &Arc<BindingRule>> {
        self.rules.values()
    }

    pub(crate) fn rules_of(&self, method: &str) -> impl Iterator<Item = &Arc<BindingRule>> {
        let method = fold(method);
        self.rules()
            .filter(move |rule| fold(&rule.auth_method) == method)
    }
}

// Changing. On an error the caller throws this copy away.
impl Access {
    pub(crate) fn upsert_token(
        &mut self,
        mut token: Token,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        if token.accessor_id.is_empty() || token.secret_id.expose().is_empty() {
            return Err(Rejected::Missing {
                field: "AccessorID or SecretID",
                hint: "a token has both; they are made before it is stored",
            });
        }
        let key = fold(&token.accessor_id);
        let secret: Key = token.secret_id.expose().into();
        if self
            .secrets
            .get(&secret)
            .is_some_and(|holder| *holder != key)
        {
            return Err(Rejected::SecretTaken);
        }
        let existing = self.tokens.get(&key).cloned();
        token.create_index = existing.as_ref().map_or(changes.index, |t| t.create_index);
        token.modify_index = existing.as_ref().map_or(changes.index, |t| t.modify_index);
        if existing.as_deref() == Some(&token) {
            return Ok(());
        }
        token.modify_index = changes.index;
        if let Some(old) = existing {
            self.secrets.remove(old.secret_id.expose());
        }
        self.secrets.insert(secret, key.clone());
        if token.policies.iter().any(PolicyLink::is_global_management) {
            self.managed_since.get_or_insert(changes.index);
        }
        self.tokens.insert(key, Arc::new(token));
        changes.touch(Topic::Tokens);
        Ok(())
    }

    pub(crate) fn delete_token(&mut self, key: &TokenKey, changes: &mut Changes) {
        let accessor = match key {
            TokenKey::Accessor(accessor) => Some(fold(accessor)),
            TokenKey::Secret(secret) => self.secrets.get(secret.expose()).cloned(),
        };
        if let Some(old) = accessor.and_then(|accessor| self.tokens.remove(&accessor)) {
            self.secrets.remove(old.secret_id.expose());
            changes.touch(Topic::Tokens);
        }
    }

    pub(crate) fn upsert_method(
        &mut self,
        mut method: AuthMethod,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        if method.name.is_empty() {
            return Err(Rejected::Missing {
                field: "Name",
                hint: "name the auth method",
            });
        }
        let key = fold(&method.name);
        let existing = self.methods.get(&key);
        method.create_index = existing.map_or(changes.index, |m| m.create_index);
        method.modify_index = existing.map_or(changes.index, |m| m.modify_index);
        if existing.is_some_and(|old| **old == method) {
            return Ok(());
        }
        method.modify_index = changes.index;
        self.methods.insert(key, Arc::new(method));
        changes.touch(Topic::AuthMethods);
        Ok(())
    }

    pub(crate) fn delete_method(&mut self, name: &str, changes: &mut Changes) {
        let name = fold(name);
        if self.methods.remove(&name).is_none() {
            return;
        }
        changes.touch(Topic::AuthMethods);
        let rules: Vec<Key> = self.rules_of(&name).map(|rule| fold(&rule.id)).collect();
        for id in rules {
            self.delete_rule(&id, changes);
        }
        let made_through_it = |token: &&Arc<Token>| fold(&token.auth_method) == name;
        let tokens: Vec<String> = self
            .tokens()
            .filter(made_through_it)
            .map(|token| token.accessor_id.clone())
            .collect();
        for accessor in tokens {
            self.delete_token(&TokenKey::Accessor(accessor), changes);
        }
    }

    pub(crate) fn upsert_rule(
        &mut self,
        mut rule: BindingRule,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        if rule.id.is_empty() {
            return Err(Rejected::Missing {
                field: "ID",
                hint: "a binding rule's id is made before it is stored",
            });
        }
        if self.method(&rule.auth_method).is_none() {
            return Err(Rejected::MissingAuthMethod {
                name: rule.auth_method,
            });
        }
        let key = fold(&rule.id);
        let existing = self.rules.get(&key);
        rule.create_index = existing.map_or(changes.index, |r| r.create_index);
        rule.modify_index = existing.map_or(changes.index, |r| r.modify_index);
        if existing.is_some_and(|old| **old == rule) {
            return Ok(());
        }
        rule.modify_index = changes.index;
        self.rules.insert(key, Arc::new(rule));
        changes.touch(Topic::BindingRules);
        Ok(())
    }

    pub(crate) fn delete_rule(&mut self, id: &str, changes: &mut Changes) {
        if self.rules.remove(&fold(id)).is_some() {
            changes.touch(Topic::BindingRules);
        }
    }
}
