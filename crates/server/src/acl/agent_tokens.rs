//! The agent's own tokens: the default token for requests without one, and the recovery token for when ACLs
//! cannot be resolved otherwise. Tokens set through the API are stored in a file, if the settings name one.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use legate_model::Secret;
use subtle::ConstantTimeEq;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::config::TokenSet;

/// The maximum size of the file, in bytes.
const MAX_FILE: u64 = 64 * 1024;

/// The purpose of an agent token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Requests and DNS queries without a token.
    Default,
    /// The agent's own writes. Unused: this server is the catalog.
    Agent,
    /// Access to this agent for recovery by an operator.
    Recovery,
    /// What a secondary datacenter asks of the primary.
    Replication,
    /// Registration of services from configuration files. Unused: their author is trusted.
    Registration,
    /// DNS queries, in preference to `Default`.
    Dns,
}

impl TokenKind {
    /// Parses the name in the API's path, including its legacy names.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "default" | "acl_token" => Self::Default,
            "agent" | "acl_agent_token" => Self::Agent,
            "agent_recovery" | "agent_master" | "acl_agent_master_token" => Self::Recovery,
            "replication" | "acl_replication_token" => Self::Replication,
            "config_file_service_registration" => Self::Registration,
            "dns" | "dns_token" => Self::Dns,
            _ => return None,
        })
    }
}

impl TokenSet {
    fn slot(&mut self, kind: TokenKind) -> &mut Option<Secret> {
        match kind {
            TokenKind::Default => &mut self.default,
            TokenKind::Agent => &mut self.agent,
            TokenKind::Recovery => &mut self.agent_recovery,
            TokenKind::Replication => &mut self.replication,
            TokenKind::Registration => &mut self.config_file_service_registration,
            TokenKind::Dns => &mut self.dns,
        }
    }

    /// These tokens, with unset ones taken from `other`.
    fn or(self, other: Self) -> Self {
        Self {
            default: self.default.or(other.default),
            agent: self.agent.or(other.agent),
            agent_recovery: self.agent_recovery.or(other.agent_recovery),
            replication: self.replication.or(other.replication),
            config_file_service_registration: self
                .config_file_service_registration
                .or(other.config_file_service_registration),
            dns: self.dns.or(other.dns),
        }
    }
}

/// The tokens of the agent.
#[derive(Debug)]
pub(crate) struct AgentTokens {
    now: RwLock<TokenSet>,
    file: Option<PathBuf>,
    /// The tokens set through the API: the contents of the file.
    set: Mutex<TokenSet>,
}

impl AgentTokens {
    /// The tokens of the settings, overridden by those in the file.
    ///
    /// # Errors
    /// If the file exists but cannot be read.
    pub(crate) fn open(settings: TokenSet, file: Option<PathBuf>) -> io::Result<Self> {
        let kept = match &file {
            Some(file) => read(file)?,
            None => TokenSet::default(),
        };
        Ok(Self {
            now: RwLock::new(kept.clone().or(settings)),
            file,
            set: Mutex::new(kept),
        })
    }

    /// Sets a token, or removes it if it is empty.
    ///
    /// # Errors
    /// If the file cannot be written. Nothing has changed.
    pub(crate) async fn set(&self, kind: TokenKind, token: Secret) -> io::Result<()> {
        let token = Some(token).filter(|token| !token.is_empty());
        let mut set = self.set.lock().await;
        let mut next = set.clone();
        next.slot(kind).clone_from(&token);
        if let Some(file) = self.file.clone() {
            let tokens = next.clone();
            let written = spawn_blocking(move || write(&file, &tokens)).await;
            written.map_err(io::Error::other)??;
        }
        *set = next;
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        *now.slot(kind) = token;
        Ok(())
    }

    /// Replaces the tokens of the settings. Those in the file take precedence. Without a file, tokens set
    /// through the API are lost, as in Consul.
    pub(crate) async fn reload(&self, settings: TokenSet) {
        let mut set = self.set.lock().await;
        if self.file.is_none() {
            *set = TokenSet::default();
        }
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        *now = set.clone().or(settings);
    }

    /// The token for requests without one; empty if there is none.
    pub(crate) fn of_requests(&self) -> String {
        self.with(|now| text(now.default.as_ref()))
    }

    /// The token for DNS queries; empty if there is none.
    pub(crate) fn of_dns(&self) -> String {
        self.with(|now| text(now.dns.as_ref().or(now.default.as_ref())))
    }

    /// The token for what is asked of the primary datacenter; empty if there is none.
    pub(crate) fn of_replication(&self) -> String {
        self.with(|now| text(now.replication.as_ref()))
    }

    /// Whether this is the agent's recovery token.
    pub(crate) fn is_recovery(&self, token: &str) -> bool {
        let own = self.with(|now| text(now.agent_recovery.as_ref()));
        // An empty token never matches, even if the file sets an empty recovery token. The time of the comparison
        // only depends on the lengths, or a client could guess the token byte by byte.
        !own.is_empty() && bool::from(own.as_bytes().ct_eq(token.as_bytes()))
    }

    fn with<T>(&self, read: impl Fn(&TokenSet) -> T) -> T {
        read(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn text(token: Option<&Secret>) -> String {
    token.map_or_else(String::new, |token| token.expose().to_owned())
}

fn read(file: &Path) -> io::Result<TokenSet> {
    let length = match std::fs::metadata(file) {
        Ok(about) => about.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(TokenSet::default()),
        Err(error) => return Err(error),
    };
    if length > MAX_FILE {
        return Err(io::Error::other(format!(
            "it is larger than {MAX_FILE} bytes"
        )));
    }
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}

/// Writes the file atomically, readable by its owner only.
fn write(file: &Path, tokens: &TokenSet) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;

    let new = file.with_extension("json.new");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut opened = options.open(&new)?;
    opened.write_all(&serde_json::to_vec(tokens)?)?;
    opened.sync_all()?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn tokens_of_the_api_win_and_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("acl-tokens.json");
        let settings = TokenSet {
            default: Some("from-settings".into()),
            dns: Some("dns".into()),
            ..TokenSet::default()
        };
        let open = || AgentTokens::open(settings.clone(), Some(file.clone())).unwrap();
        let tokens = open();
        assert_eq!(tokens.of_requests(), "from-settings");
        tokens.set(TokenKind::Default, "set".into()).await.unwrap();
        tokens
            .set(TokenKind::Recovery, "open".into())
            .await
            .unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for tokens in [tokens, open()] {
            assert_eq!(tokens.of_requests(), "set");
            assert_eq!(tokens.of_dns(), "dns");
            assert!(tokens.is_recovery("open") && !tokens.is_recovery(""));
        }
        let tokens = open();
        let other = TokenSet {
            default: Some("other".into()),
            dns: Some("other".into()),
            agent_recovery: Some("other".into()),
            ..TokenSet::default()
        };
        tokens.reload(other).await;
        assert_eq!(tokens.of_requests(), "set");
        assert_eq!(tokens.of_dns(), "other");
        assert!(tokens.is_recovery("open"));
        tokens.set(TokenKind::Default, "".into()).await.unwrap();
        assert_eq!(tokens.of_requests(), "");
        std::fs::write(&file, r#"{"agent_recovery": ""}"#).unwrap();
        assert!(!open().is_recovery(""));
        std::fs::write(&file, "{").unwrap();
        assert!(AgentTokens::open(settings.clone(), Some(file.clone())).is_err());
    }
}
