//! The change from the built-in proxy to an Envoy of the same user and back, without a lost connection: the steps in
//! which one takes the addresses over from the other.
//!
//! An Envoy has as many sockets of an address as the proxy has data threads, N. While both have sockets of an address,
//! each accepts what the kernel gives it, and serves it by the same rules.
//!
//! It does not decide when: the mode `auto` does.

use std::time::Duration;

use legate_envoy::admin::AdminClient;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};

use super::steer::Steering;
use crate::relay::Role;

/// How long connections that have begun may take to reach the queue of their socket: two repetitions of a packet.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);

/// How long Envoy may take to close its sockets.
const CLOSE: Duration = Duration::from_secs(10);

/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(200);

/// Whether the proxy can serve what it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Fit {
    /// Not all of it has arrived.
    #[default]
    Unknown,
    /// All of it.
    Fits,
    /// Not this part.
    Needs(String),
}

/// An order to the task of the proxy.
#[derive(Debug)]
pub(crate) enum Order {
    /// Which sockets of each address get new connections.
    Steer(Steering),
    /// Opens sockets for all listeners, one more of each than usual.
    Open,
    /// Closes the first socket of each listener.
    CloseFirst,
    /// Closes all sockets.
    CloseAll,
    /// Closes the listeners for traffic to the application, or opens them again.
    Inbound(bool),
    /// How many sockets of each address are not of this proxy.
    CountOthers,
    /// Its part in the answers to servers.
    Part(Part),
}

/// The part of the proxy in the answers to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// It answers, up to the first resource that it cannot serve: that is for the Envoy that is being started.
    Yields,
    /// It answers, and rejects what it cannot serve, because there is no Envoy.
    Alone,
    /// Envoy answers.
    Observes,
}

impl Part {
    pub(super) fn role(self) -> Role {
        match self {
            Part::Yields | Part::Alone => Role::Decides,
            Part::Observes => Role::Observes,
        }
    }
}

/// The answer to an order: a count, of addresses that were steered or of sockets, or why it was not carried out.
pub(crate) type Answer = Result<usize, String>;

/// The end of the task.
#[derive(Debug)]
pub(crate) struct Orders {
    pub(super) fit: watch::Sender<Fit>,
    pub(super) orders: mpsc::Receiver<(Order, oneshot::Sender<Answer>)>,
}

/// Leaves addresses to Envoy, and takes them back.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    fit: watch::Receiver<Fit>,
    orders: mpsc::Sender<(Order, oneshot::Sender<Answer>)>,
    /// The sockets that Envoy has of each address.
    sockets: u32,
    settle: Duration,
}

impl Control {
    /// Both ends. `sockets` is the number of data threads, and of Envoy's.
    pub(super) fn new(sockets: usize, settle: Duration) -> (Control, Orders) {
        let (fit, seen) = watch::channel(Fit::Unknown);
        let (sender, orders) = mpsc::channel(1);
        let control = Control {
            fit: seen,
            orders: sender,
            sockets: u32::try_from(sockets).unwrap_or(u32::MAX),
            settle,
        };
        (control, Orders { fit, orders })
    }

    /// Whether the proxy can serve what it is sent.
    pub(crate) fn fit(&self) -> watch::Receiver<Fit> {
        self.fit.clone()
    }

    /// Leaves all addresses to an Envoy that serves them. Open connections stay.
    ///
    /// # Errors
    /// When it did not happen, because the kernel steers no connections, or because Envoy is gone. The proxy serves on.
    pub(crate) async fn leave(&self, serves: impl Fn() -> bool) -> Result<(), String> {
        // Envoy's are behind ours, so its first has this index until ours are closed.
        let to_envoy = Order::Steer(Steering::To(self.sockets));
        if self.order(to_envoy).await? > 0 {
            sleep(self.settle).await;
        }
        if !serves() {
            self.order(Order::Steer(Steering::Spread)).await?;
            return Err("Envoy has ended".to_owned());
        }
        self.order(Order::CloseAll).await?;
        Ok(())
    }

    /// Takes all addresses over from the Envoy with this admin interface.
    ///
    /// # Errors
    /// When it did not happen. Envoy serves on.
    pub(crate) async fn take(&self, admin: AdminClient) -> Result<(), String> {
        self.order(Order::Open).await?;
        // Ours are behind Envoy's, so our first has this index, and keeps it while Envoy closes its own.
        let steered = self.order(Order::Steer(Steering::To(self.sockets))).await;
        sleep(self.settle).await;
        let needs = match &*self.fit.borrow() {
            Fit::Needs(what) => Err(format!("{what} needs Envoy again")),
            _ => steered.map(drop),
        };
        if let Err(why) = self.close_envoy(needs, admin).await {
            self.give_back().await?;
            return Err(why);
        }
        // From here on only this proxy has sockets: nothing that fails may close them.
        if let Err(why) = self.close_one().await {
            tracing::warn!(why, "some connections may be lost");
        }
        Ok(())
    }

    /// Closes Envoy's sockets, if nothing speaks against it.
    async fn close_envoy(
        &self,
        allowed: Result<(), String>,
        admin: AdminClient,
    ) -> Result<(), String> {
        allowed?;
        let Err(error) = admin.close_listeners().await else {
            return Ok(());
        };
        // The answer alone may be lost.
        match self.order(Order::CountOthers).await {
            Ok(0) => Ok(()),
            _ => Err(error.to_string()),
        }
    }

    /// Closes the socket of each address that was one too many.
    async fn close_one(&self) -> Result<(), String> {
        self.wait_for_close().await?;
        // Only ours are left. The first of the group is any but the one that had all until now.
        self.order(Order::Steer(Steering::To(0))).await?;
        sleep(self.settle).await;
        self.order(Order::CloseFirst).await?;
        self.order(Order::Steer(Steering::Spread)).await?;
        Ok(())
    }

    /// Gives it another part in the answers to servers.
    ///
    /// # Errors
    /// When its task has ended.
    pub(crate) async fn take_part(&self, part: Part) -> Result<(), String> {
        self.order(Order::Part(part)).await.map(drop)
    }

    /// Accepts connections to the application, or none.
    ///
    /// # Errors
    /// When the listeners cannot be opened again.
    pub(crate) async fn accept_inbound(&self, accepts: bool) -> Result<(), String> {
        self.order(Order::Inbound(accepts)).await.map(drop)
    }

    /// Closes the sockets that were opened in addition to Envoy's.
    async fn give_back(&self) -> Result<(), String> {
        // It stays in effect: there is no socket of this proxy any more that could take it back. Fails where the kernel
        // steers none; then some connections may be lost.
        let _ = self
            .order(Order::Steer(Steering::Among(self.sockets)))
            .await;
        sleep(self.settle).await;
        self.order(Order::CloseAll).await.map(drop)
    }

    /// Waits until Envoy's sockets are closed.
    async fn wait_for_close(&self) -> Result<(), String> {
        let until = Instant::now() + CLOSE;
        while self.order(Order::CountOthers).await? > 0 {
            if Instant::now() > until {
                tracing::warn!("Envoy still listens; some connections may be lost");
                break;
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    async fn order(&self, order: Order) -> Answer {
        let (reply, answer) = oneshot::channel();
        let ended = || "the built-in proxy has ended".to_owned();
        let sent = self.orders.send((order, reply)).await;
        sent.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}
