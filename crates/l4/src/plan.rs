//! What a change of configuration means for open connections.
//!
//! An open connection is closed only if the new rules deny it, or if its listener or its chain is gone. A change of
//! certificates, of the destination, or of the hosts closes nothing. It decides; it closes nothing itself.

use std::sync::Arc;

use crate::chains::{ChainId, Chains};
use crate::model::Chain;
use crate::rbac::{Peer, authorize};

/// What becomes of an open connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    /// It stays, and belongs to this chain from now on.
    Keep(Arc<Chain>),
    /// It is closed, because the new rules deny it.
    Denied,
    /// It is drained, because its listener or chain is gone.
    Drain,
}

/// What becomes of an open connection of the chain with this identity, if its listener becomes `new`: the listener of
/// the same name, or `None` if there is none any more.
///
/// `peer` is `None` if the connection was made without TLS, also if the new chain has it.
pub fn fate(id: &ChainId, peer: Option<&Peer>, new: Option<&Chains>) -> Fate {
    let Some(chain) = new.and_then(|chains| chains.get(id)) else {
        return Fate::Drain;
    };
    let verdict = authorize(chain, peer);
    match verdict.allowed {
        true => Fate::Keep(chain.clone()),
        false => Fate::Denied,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::chains::tests::{chain, listener};
    use crate::model::{Address, ChainMatch, Filter, Listener, Rbac};
    use crate::rbac::{Action, Pattern, Principal, Rules};

    /// Denies or allows the peer `spiffe://a/x`.
    fn rules(action: Action) -> Filter {
        let pattern = Pattern::parse("^spiffe://a/x$").unwrap();
        let policies = BTreeMap::from([("x".to_owned(), vec![Principal::Uri(pattern)])]);
        Filter::Rbac(Arc::new(Rbac {
            stat_prefix: String::new(),
            rules: Some(Rules { action, policies }),
        }))
    }

    fn peer(uri: &str) -> Peer {
        Peer {
            uris: vec![uri.to_owned()],
        }
    }

    /// A chain for a port, 0 for all, with rules.
    fn some_chain() -> impl Strategy<Value = Chain> {
        let action = prop_oneof![
            Just(None),
            Just(Some(Action::Allow)),
            Just(Some(Action::Deny))
        ];
        (0_u16..3, "[pq]", action).prop_map(|(port, cluster, action)| {
            let mut chain = chain(
                &cluster,
                ChainMatch {
                    port: (port > 0).then_some(port),
                    ..ChainMatch::default()
                },
            );
            chain.filters.extend(action.map(rules));
            chain
        })
    }

    fn some_listener() -> impl Strategy<Value = Listener> {
        let chains = proptest::collection::vec(some_chain(), 0..4);
        let default = proptest::option::of(some_chain());
        (chains, default, 0_u16..2).prop_map(|(mut chains, default, port)| {
            chains.sort_by_key(|chain| chain.matches.port);
            chains.dedup_by_key(|chain| chain.matches.port);
            let mut listener = listener(chains, default);
            listener.address = Address::Socket(([127, 0, 0, 1], port).into());
            listener
        })
    }

    proptest! {
        /// A connection that stays has the chain and the verdict that it would get anew from the same part of the
        /// listener; it ends only if its chain is gone, or denies it.
        #[test]
        fn connections_end_for_a_reason(
            old in some_listener(),
            new in proptest::option::of(some_listener()),
            port in 0_u16..4,
            identity in proptest::option::of("spiffe://a/[xy]"),
        ) {
            let old = Chains::new(&old).unwrap();
            let new = new.map(|new| Chains::new(&new).unwrap());
            let peer = identity.as_deref().map(peer);
            let connection = crate::chains::Connection {
                destination: Some(([127, 0, 0, 1], port).into()),
                server_name: None,
                transport: crate::model::Transport::Raw,
                alpn: &[],
            };
            let Some(chain) = old.find(&connection) else {
                return Ok(());
            };
            let id = old.id(chain);
            match fate(&id, peer.as_ref(), new.as_ref()) {
                Fate::Keep(chain) => {
                    let new = new.unwrap();
                    prop_assert!(authorize(&chain, peer.as_ref()).allowed);
                    prop_assert_eq!(new.id(&chain), id.clone());
                    let again = fate(&id, peer.as_ref(), Some(&new));
                    prop_assert_eq!(again, Fate::Keep(chain));
                }
                Fate::Denied => {
                    let chain = new.as_ref().and_then(|new| new.get(&id)).unwrap();
                    prop_assert!(!authorize(chain, peer.as_ref()).allowed);
                }
                Fate::Drain => prop_assert!(new.is_none_or(|new| new.get(&id).is_none())),
            }
        }
    }

    #[test]
    fn only_the_denied_end() {
        let matches = ChainMatch {
            port: Some(1),
            ..ChainMatch::default()
        };
        let id = ChainId::Match(Arc::new(matches.clone()));
        let new = |filters: Vec<Filter>| {
            // To another cluster.
            let mut chain = chain("other", matches.clone());
            chain.filters = filters;
            Chains::new(&listener(vec![chain], None)).unwrap()
        };
        let (x, y) = (peer("spiffe://a/x"), peer("spiffe://a/y"));
        let kept = |fate: &Fate| matches!(fate, Fate::Keep(chain) if chain.name == "other");
        let deny = new(vec![rules(Action::Deny)]);
        assert_eq!(fate(&id, Some(&x), Some(&deny)), Fate::Denied);
        assert!(kept(&fate(&id, Some(&y), Some(&deny))));
        let allow = new(vec![rules(Action::Allow)]);
        assert!(kept(&fate(&id, Some(&x), Some(&allow))));
        assert_eq!(fate(&id, Some(&y), Some(&allow)), Fate::Denied);
        assert_eq!(fate(&id, None, Some(&allow)), Fate::Denied);
        assert_eq!(fate(&ChainId::Default, Some(&x), Some(&deny)), Fate::Drain);
        assert_eq!(fate(&id, Some(&x), None), Fate::Drain);
    }
}
