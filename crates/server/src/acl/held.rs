//! The tokens that this agent uses by itself. They come from its settings, and can be replaced while
//! it runs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use legate_model::Secret;

use crate::operations::AgentTokens;

/// The tokens, as they are now. Copies share them.
#[derive(Clone)]
pub(crate) struct HeldTokens(Arc<ArcSwap<AgentTokens>>);

impl HeldTokens {
    pub(crate) fn new(tokens: AgentTokens) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(tokens)))
    }

    /// All of them.
    pub(crate) fn now(&self) -> Arc<AgentTokens> {
        self.0.load_full()
    }

    /// Replaces all of them.
    pub(crate) fn set(&self, tokens: AgentTokens) {
        self.0.store(Arc::new(tokens));
    }

    /// Replaces some of them.
    #[allow(dead_code, reason = "the endpoint that calls it is another area's")]
    pub(crate) fn change(&self, change: impl Fn(&mut AgentTokens)) {
        self.0.rcu(|tokens| {
            let mut tokens = (**tokens).clone();
            change(&mut tokens);
            tokens
        });
    }

    /// What a request is judged by that carries this token.
    pub(crate) fn or_default(&self, token: String) -> String {
        match token.is_empty() {
            true => self.now().default.expose().to_owned(),
            false => token,
        }
    }

    /// What DNS is judged by.
    pub(crate) fn dns(&self) -> Secret {
        let tokens = self.now();
        match tokens.dns.is_empty() {
            true => tokens.default.clone(),
            false => tokens.dns.clone(),
        }
    }

    /// Whether this is the token that is valid on this agent alone.
    pub(crate) fn is_recovery(&self, token: &str) -> bool {
        let recovery = self.now();
        let recovery = recovery.agent_recovery.expose();
        !recovery.is_empty() && recovery == token
    }
}
