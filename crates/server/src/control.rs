//! What somebody asks of the program that runs a server: to read its settings again, or to end after its
//! node has left the catalog. A server inside another program has nobody to ask.

use tokio::sync::{mpsc, oneshot};

/// Requests that wait for the program at most.
const WAITING: usize = 8;

/// What the program is asked for. It answers when that is done, or says why not.
#[derive(Debug)]
pub(crate) enum Request {
    /// To read the settings again, and to apply what can change.
    Reload(oneshot::Sender<Result<(), String>>),
    /// To take the node out of the catalog, and to end.
    Leave(oneshot::Sender<Result<(), String>>),
}

/// Asks the program.
#[derive(Debug, Clone, Default)]
pub struct Control {
    requests: Option<mpsc::Sender<Request>>,
}

/// Where the program hears of what it is asked for.
#[derive(Debug)]
pub(crate) struct Requests(mpsc::Receiver<Request>);

/// A control, and where its requests arrive.
pub(crate) fn channel() -> (Control, Requests) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let control = Control {
        requests: Some(sender),
    };
    (control, Requests(receiver))
}

impl Requests {
    /// The next request; it waits for ever when nobody can ask any more. Cancel safe.
    pub(crate) async fn next(&mut self) -> Request {
        match self.0.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

impl Control {
    /// Has the settings read again: services, checks, tokens, limits and the level of the log.
    ///
    /// # Errors
    /// Why they are not; then nothing has changed, or what is named.
    #[allow(dead_code, reason = "the endpoint that calls it is another area's")]
    pub(crate) async fn reload(&self) -> Result<(), String> {
        self.ask(Request::Reload).await
    }

    /// Has the node leave the catalog; the program ends after that.
    ///
    /// # Errors
    /// Why it does not.
    #[allow(dead_code, reason = "the endpoint that calls it is another area's")]
    pub(crate) async fn leave(&self) -> Result<(), String> {
        self.ask(Request::Leave).await
    }

    async fn ask(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<(), String>>) -> Request,
    ) -> Result<(), String> {
        let Some(requests) = &self.requests else {
            return Err("this server is part of another program, which reads no files".to_owned());
        };
        let (answer, answered) = oneshot::channel();
        if requests.try_send(request(answer)).is_err() {
            return Err("the program is busy with requests like this one: try again".to_owned());
        }
        answered
            .await
            .unwrap_or_else(|_| Err("the program is ending".to_owned()))
    }
}
