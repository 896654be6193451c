//! Who decides about tokens in the tests.

use std::sync::Mutex;

use super::*;

/// Answers as the test last said.
#[derive(Default)]
pub(super) struct Doorman {
    orders: Mutex<Option<Order>>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    RefuseToken,
    RefuseRegistered,
    RefuseProxy,
    Panic,
}

impl Doorman {
    pub(super) fn order(&self, order: Order) {
        *self.orders.lock().unwrap() = Some(order);
    }

    fn ordered(&self, order: Order) -> bool {
        *self.orders.lock().unwrap() == Some(order)
    }
}

impl StreamAuthorizer for Doorman {
    fn authenticate(&self, token: &str) -> Result<(), Status> {
        assert_eq!(token, "secret");
        match self.ordered(Order::RefuseToken) {
            true => Err(Status::unauthenticated("ACL not found")),
            false => Ok(()),
        }
    }

    fn authorize_proxy(&self, token: &str, proxy: &ProxyId) -> Result<(), Status> {
        self.authenticate(token)?;
        match self.ordered(Order::RefuseRegistered) {
            true => Err(Status::permission_denied(proxy.to_string())),
            false => Ok(()),
        }
    }

    fn authorize(&self, token: &str, snapshot: &Snapshot) -> Result<(), Status> {
        assert!(!self.ordered(Order::Panic), "as ordered");
        self.authenticate(token)?;
        match self.ordered(Order::RefuseProxy) {
            true => Err(Status::permission_denied(snapshot.instance.identity())),
            false => Ok(()),
        }
    }
}
