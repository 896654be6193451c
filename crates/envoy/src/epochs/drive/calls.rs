//! The calls that are under way. There is one of each kind at most: a new one takes the place of the
//! one before, whose answer would mean nothing any more.

use futures_util::future::OptionFuture;

use super::super::host::Work;
use super::Happening;

/// What a call brings when it is over; nothing follows from some.
type Call<C> = Option<Work<Option<Happening<C>>>>;

pub(super) struct Calls<C> {
    /// Whether and how what runs can be replaced.
    pub(super) check: Call<C>,
    /// Whether Envoy takes its first configuration.
    pub(super) validation: Call<C>,
    /// What the process that serves was asked over its admin interface: to drain, then to quit.
    pub(super) order: Call<C>,
}

impl<C> Default for Calls<C> {
    fn default() -> Self {
        Self {
            check: None,
            validation: None,
            order: None,
        }
    }
}

impl<C> Calls<C> {
    /// The next call from which something follows. Cancel safe.
    pub(super) async fn next(&mut self) -> Happening<C> {
        loop {
            let done = tokio::select! {
                biased;
                Some(done) = OptionFuture::from(self.check.as_mut()) => {
                    self.check = None;
                    done
                }
                Some(done) = OptionFuture::from(self.validation.as_mut()) => {
                    self.validation = None;
                    done
                }
                Some(done) = OptionFuture::from(self.order.as_mut()) => {
                    self.order = None;
                    done
                }
                else => return std::future::pending().await,
            };
            if let Some(happening) = done {
                return happening;
            }
        }
    }
}
