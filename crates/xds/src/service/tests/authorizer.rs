//! A stream authorizer controlled by the tests.

use std::sync::Mutex;

use super::*;

/// Gives the reply that the test has set.
#[derive(Default)]
pub(super) struct ScriptedAuthorizer {
    reply: Mutex<Option<Reply>>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Reply {
    RefuseToken,
    RefuseRegistered,
    RefuseProxy,
    Panic,
}

impl ScriptedAuthorizer {
    pub(super) fn set(&self, reply: Reply) {
        *self.reply.lock().unwrap() = Some(reply);
    }

    fn is_set(&self, reply: Reply) -> bool {
        *self.reply.lock().unwrap() == Some(reply)
    }
}

impl StreamAuthorizer for ScriptedAuthorizer {
    fn authenticate(&self, token: &str) -> Result<(), Status> {
        assert_eq!(token, "secret");
        match self.is_set(Reply::RefuseToken) {
            true => Err(Status::unauthenticated("ACL not found")),
            false => Ok(()),
        }
    }

    fn authorize_proxy(&self, token: &str, proxy: &ProxyId) -> Result<(), Status> {
        self.authenticate(token)?;
        match self.is_set(Reply::RefuseRegistered) {
            true => Err(Status::permission_denied(proxy.to_string())),
            false => Ok(()),
        }
    }

    fn authorize(&self, token: &str, snapshot: &Snapshot) -> Result<(), Status> {
        assert!(!self.is_set(Reply::Panic), "requested by the test");
        self.authenticate(token)?;
        match self.is_set(Reply::RefuseProxy) {
            true => Err(Status::permission_denied(
                snapshot.proxy.instance.identity(),
            )),
            false => Ok(()),
        }
    }

    fn permitted(&self, _: &str, _: &Snapshot) -> Result<Option<Snapshot>, Status> {
        Ok(None)
    }
}
