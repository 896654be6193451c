//! TLS over a socket. A stream that waits holds no buffer: it reads and writes through a buffer of the thread, and keeps
//! only what cannot be used yet, in allocations of exactly that size. It is bounded for every peer:
//!
//! | kept | at most |
//! |---|---|
//! | received ciphertext | one record, or the records of one handshake message, [`MAX_MESSAGE`] bytes |
//! | plaintext that the reader had no room for | one record, or what came with the end of the handshake |
//! | ciphertext that the socket did not take | one write of [`MAX_WRITE`] bytes, and messages of the protocol |
//!
//! It verifies nobody; that is up to the configuration, also when a session is resumed. It never accepts early data, and
//! starts no key updates before the library demands them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::{fmt, io, mem};

use legate_identity::tls::mesh::{MeshClient, MeshServer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::client::UnbufferedClientConnection;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::UnbufferedServerConnection;
use tokio_rustls::rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus,
};
use tokio_rustls::rustls::{CommonState, Error, HandshakeKind};

use super::io::Socket;

#[cfg(test)]
mod tests;

/// The most plaintext that one write takes, and the most ciphertext that is read at once, in bytes.
const MAX_WRITE: usize = 64 * 1024;

/// The header of a record, in bytes. Its last two bytes are the length of the rest (RFC 8446, section 5.1).
const HEADER: usize = 5;

/// The longest record: the limit of TLS 1.2 (RFC 5246, section 6.2.3), which is above that of TLS 1.3.
const MAX_RECORD: usize = HEADER + 16 * 1024 + 2048;

/// The most ciphertext of records that together are one handshake message, in bytes.
const MAX_MESSAGE: usize = 64 * 1024;

/// How much is read at once while the end of a handshake message is not known, in bytes.
const STEP: usize = 4096;

/// After so many reads without plaintext, as a peer with empty records causes them, other connections have their turn.
const ROUNDS: usize = 16;

thread_local! {
    /// Ciphertext on its way from or to a socket.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_WRITE + MAX_RECORD]);
}

/// Bytes that wait, the first of which may be gone already.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    gone: usize,
}

impl Kept {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.gone..]
    }

    fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    fn append(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes.drain(..mem::take(&mut self.gone));
        self.bytes.reserve_exact(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Frees the memory with the last byte.
    fn consume(&mut self, count: usize) {
        self.gone += count;
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

/// What to do when the session is ready to send.
enum Outgoing<'a> {
    Nothing,
    /// Encrypts the first into the second.
    Data(&'a [u8], &'a mut Vec<u8>),
    /// Tells the peer that nothing follows.
    Close,
}

/// Where the session's output goes.
struct Output<'a, 'b> {
    reader: Option<&'a mut ReadBuf<'b>>,
    /// Gets what the reader has no room for.
    plaintext: &'a mut Kept,
    unsent: &'a mut Kept,
    outgoing: Outgoing<'a>,
    /// How many bytes of ciphertext were made of the data.
    encrypted: Option<usize>,
    peer_closed: &'a mut bool,
}

impl Output<'_, '_> {
    fn received(&mut self, mut bytes: &[u8]) {
        if let Some(reader) = &mut self.reader
            && self.plaintext.is_empty()
        {
            let (now, later) = bytes.split_at(bytes.len().min(reader.remaining()));
            reader.put_slice(now);
            bytes = later;
        }
        self.plaintext.append(bytes);
    }

    /// Handles what the session has come to. The result says whether it can go on; the number is what of its input is
    /// used.
    fn handle<D>(&mut self, status: UnbufferedStatus<'_, '_, D>) -> (usize, Result<bool, Error>) {
        let UnbufferedStatus { mut discard, state } = status;
        let state = match state {
            Ok(state) => state,
            Err(error) => return (discard, Err(error)),
        };
        let goes_on = match state {
            ConnectionState::ReadTraffic(mut traffic) => loop {
                match traffic.next_record() {
                    Some(Ok(record)) => {
                        discard += record.discard;
                        self.received(record.payload);
                    }
                    Some(Err(error)) => break Err(error),
                    None => break Ok(true),
                }
            },
            ConnectionState::EncodeTlsData(mut message) => {
                let mut bytes = Vec::new();
                if let Err(EncodeError::InsufficientSize(size)) = message.encode(&mut bytes) {
                    bytes.resize(size.required_size, 0);
                    // It fits now.
                    let _ = message.encode(&mut bytes);
                }
                self.unsent.append(&bytes);
                Ok(true)
            }
            ConnectionState::TransmitTlsData(transmit) => {
                // It is sent in its order; nothing depends on when.
                transmit.done();
                Ok(true)
            }
            ConnectionState::PeerClosed => {
                *self.peer_closed = true;
                Ok(true)
            }
            ConnectionState::WriteTraffic(mut traffic) => {
                match mem::replace(&mut self.outgoing, Outgoing::Nothing) {
                    Outgoing::Nothing => Ok(false),
                    Outgoing::Data(data, to) => {
                        let count = grow(to, |to| traffic.encrypt(data, to));
                        count.map(|count| {
                            self.encrypted = Some(count);
                            false
                        })
                    }
                    Outgoing::Close => {
                        let mut bytes = Vec::new();
                        let count = grow(&mut bytes, |to| traffic.queue_close_notify(to));
                        count.map(|count| {
                            self.unsent.append(&bytes[..count]);
                            false
                        })
                    }
                }
            }
            ConnectionState::BlockedHandshake | ConnectionState::Closed => Ok(false),
            _ => Err(Error::General("early data is not supported".to_owned())),
        };
        (discard, goes_on)
    }
}

/// Writes into `to`, which becomes as large as it must be.
fn grow(
    to: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<usize, Error> {
    loop {
        match write(to) {
            Ok(count) => return Ok(count),
            Err(EncryptError::InsufficientSize(size)) => to.resize(size.required_size, 0),
            Err(EncryptError::EncryptExhausted) => return Err(Error::EncryptError),
        }
    }
}

enum Session {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

impl Session {
    fn common(&self) -> &CommonState {
        match self {
            Self::Server(session) => session,
            Self::Client(session) => session,
        }
    }

    fn step(
        &mut self,
        records: &mut [u8],
        output: &mut Output<'_, '_>,
    ) -> (usize, Result<bool, Error>) {
        match self {
            Self::Server(session) => output.handle(session.process_tls_records(records)),
            Self::Client(session) => output.handle(session.process_tls_records(records)),
        }
    }
}

/// A TLS session over a socket, after its handshake.
pub(super) struct TlsStream {
    socket: Socket,
    session: Session,
    /// Received ciphertext that the session needs again with what follows it: part of a record, or records with a part
    /// of a handshake message, which the session has decrypted there.
    partial: Vec<u8>,
    plaintext: Kept,
    unsent: Kept,
    /// Who waits until `unsent` is sent.
    writer: Option<Waker>,
    /// Why the session cannot go on.
    failed: Option<Error>,
    /// Whether the peer has ended its direction.
    peer_closed: bool,
    /// Whether this side has ended its direction.
    closed: bool,
}

impl TlsStream {
    /// Makes the handshake of a server.
    ///
    /// # Errors
    ///
    /// An error around the library's [`Error`] if the handshake fails; other errors if the connection does.
    pub(super) async fn accept(config: &MeshServer, socket: Socket) -> io::Result<Self> {
        let session = UnbufferedServerConnection::new(Arc::clone(config.config()));
        let session = Session::Server(session.map_err(io::Error::other)?);
        let verify = |chain: &[_]| config.verify_resumed(chain);
        Self::handshake(session, socket).await?.verified(verify)
    }

    /// Makes the handshake of a client. `name` is what the server is called.
    ///
    /// # Errors
    ///
    /// As those of [`Self::accept`].
    pub(super) async fn connect(
        config: &MeshClient,
        name: ServerName<'static>,
        socket: Socket,
    ) -> io::Result<Self> {
        let session = UnbufferedClientConnection::new(Arc::clone(config.config()), name);
        let session = Session::Client(session.map_err(io::Error::other)?);
        let verify = |chain: &[_]| config.verify_resumed(chain);
        Self::handshake(session, socket).await?.verified(verify)
    }

    /// The session: its version, cipher suite, and the peer's certificates.
    pub(super) fn session(&self) -> &CommonState {
        self.session.common()
    }

    async fn handshake(session: Session, socket: Socket) -> io::Result<Self> {
        let mut stream = Self {
            socket,
            session,
            partial: Vec::new(),
            plaintext: Kept::default(),
            unsent: Kept::default(),
            writer: None,
            failed: None,
            peer_closed: false,
            closed: false,
        };
        // A client speaks first.
        stream.advance(&mut [], None, Outgoing::Nothing);
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        Ok(stream)
    }

    /// Whether the handshake resumed an earlier session.
    pub(super) fn is_resumed(&self) -> bool {
        self.session().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The library verifies certificates in full handshakes only.
    fn verified(
        self,
        verify: impl FnOnce(&[CertificateDer<'static>]) -> Result<(), Error>,
    ) -> io::Result<Self> {
        if self.is_resumed() {
            let chain = self.session().peer_certificates().unwrap_or_default();
            verify(chain).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        Ok(self)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let sent = self.poll_unsent(cx);
            self.check()?;
            ready!(sent)?;
            if !self.session().is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if !ready!(self.poll_fill(cx, STEP, None))? {
                let reason = "the peer has closed the connection during the TLS handshake";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason)));
            }
        }
    }

    /// The error of a session that has failed.
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            Some(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error.clone())),
            None => Ok(()),
        }
    }

    /// Gives `records` to the session, with `partial` at their front. Returns how many bytes of them it does not need
    /// again, and how much ciphertext was made of data.
    fn advance(
        &mut self,
        records: &mut [u8],
        reader: Option<&mut ReadBuf<'_>>,
        outgoing: Outgoing<'_>,
    ) -> (usize, Option<usize>) {
        let mut output = Output {
            reader,
            plaintext: &mut self.plaintext,
            unsent: &mut self.unsent,
            outgoing,
            encrypted: None,
            peer_closed: &mut self.peer_closed,
        };
        let mut used = 0;
        loop {
            let (discard, goes_on) = self.session.step(&mut records[used..], &mut output);
            used += discard;
            match goes_on {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.failed = Some(error);
                    // The alert for the peer. The session gives its messages before it looks at its input, and must
                    // not see that again.
                    while self.session.common().wants_write() {
                        if !matches!(self.session.step(&mut [], &mut output), (_, Ok(true))) {
                            break;
                        }
                    }
                    break;
                }
            }
        }
        let encrypted = output.encrypted;
        if self.failed.is_some() || self.peer_closed {
            used = records.len();
        }
        (used, encrypted)
    }

    /// How much ciphertext to have after the next read, so that a reader with room for `wanted` bytes needs no more
    /// than what is kept of one record.
    fn target(&self, wanted: usize) -> io::Result<usize> {
        let kept = self.partial.len();
        let record = match self.partial.get(HEADER - 2..HEADER) {
            Some(&[high, low]) => HEADER + usize::from(u16::from_be_bytes([high, low])),
            _ => HEADER,
        };
        if record > kept {
            return Ok(record.max(wanted.min(MAX_WRITE)));
        }
        // Whole records are kept only for a handshake message that is not complete.
        if kept >= MAX_MESSAGE {
            let reason = format!("a TLS handshake message takes more than {MAX_MESSAGE} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(kept + STEP)
    }

    /// Reads once, and gives the session what was read. `false` if the peer has closed the connection.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        wanted: usize,
        reader: Option<&mut ReadBuf<'_>>,
    ) -> Poll<io::Result<bool>> {
        let (kept, target) = (self.partial.len(), self.target(wanted)?);
        BUFFER.with_borrow_mut(|buffer| {
            let mut room = ReadBuf::new(&mut buffer[kept..target]);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut room))?;
            let count = room.filled().len();
            if count == 0 {
                return Poll::Ready(Ok(false));
            }
            let records = &mut buffer[..kept + count];
            records[..kept].copy_from_slice(&self.partial);
            let (used, _) = self.advance(records, reader, Outgoing::Nothing);
            self.partial = records[used..].to_vec();
            Poll::Ready(Ok(true))
        })
    }

    /// Lets the session send. Returns how much ciphertext was made of data.
    fn send(&mut self, outgoing: Outgoing<'_>) -> Option<usize> {
        let mut partial = mem::take(&mut self.partial);
        let (used, encrypted) = self.advance(&mut partial, None, outgoing);
        self.partial = match used {
            0 => partial,
            used => partial[used..].to_vec(),
        };
        encrypted
    }

    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let socket = Pin::new(&mut self.socket);
            match ready!(socket.poll_write(cx, self.unsent.rest()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.unsent.consume(count),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends for a writer, who waits for it.
    fn poll_unsent_for_writer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.poll_unsent(cx);
        self.writer = sent.is_pending().then(|| cx.waker().clone());
        sent
    }

    /// Sends for a reader, who does not wait for it: what the session answers to what was read. Errors are left to the
    /// next writer; the peer may have sent more before it closed.
    fn send_for_reader(&mut self, cx: &mut Context<'_>) {
        if self.unsent.is_empty() {
            return;
        }
        // The socket wakes only one of the tasks that wait until it takes more. A writer must not lose that.
        let writer = self.writer.take();
        let waker = writer.as_ref().unwrap_or(cx.waker());
        match self.poll_unsent(&mut Context::from_waker(waker)) {
            Poll::Pending => self.writer = writer,
            Poll::Ready(_) => {
                if let Some(writer) = writer {
                    writer.wake();
                }
            }
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (before, wanted) = (buffer.filled().len(), buffer.remaining());
        for _ in 0..ROUNDS {
            this.send_for_reader(cx);
            let count = this.plaintext.rest().len().min(buffer.remaining());
            buffer.put_slice(&this.plaintext.rest()[..count]);
            this.plaintext.consume(count);
            if buffer.filled().len() > before || wanted == 0 {
                return Poll::Ready(Ok(()));
            }
            this.check()?;
            if this.peer_closed {
                return Poll::Ready(Ok(()));
            }
            if !ready!(this.poll_fill(cx, wanted, Some(&mut *buffer)))? {
                let reason = "the peer has closed the connection without the end of its TLS data";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason)));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check()?;
        if this.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_unsent_for_writer(cx))?;
        let bytes = &bytes[..bytes.len().min(MAX_WRITE)];
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        BUFFER.with_borrow_mut(|buffer| {
            let Some(count) = this.send(Outgoing::Data(bytes, buffer)) else {
                let _ = this.poll_unsent(cx);
                this.check()?;
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            let mut ciphertext = &buffer[..count];
            // What the session had to send itself goes first.
            let mut blocked = this.poll_unsent(cx)?.is_pending();
            while !blocked && !ciphertext.is_empty() {
                match Pin::new(&mut this.socket).poll_write(cx, ciphertext)? {
                    Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(count) => ciphertext = &ciphertext[count..],
                    Poll::Pending => blocked = true,
                }
            }
            this.unsent.append(ciphertext);
            Poll::Ready(Ok(bytes.len()))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_unsent_for_writer(cx))?;
        Pin::new(&mut this.socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !mem::replace(&mut this.closed, true) && this.failed.is_none() {
            this.send(Outgoing::Close);
        }
        ready!(this.poll_unsent_for_writer(cx))?;
        match ready!(Pin::new(&mut this.socket).poll_shutdown(cx)) {
            // A peer that has gone needs no notice of the end.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            other => Poll::Ready(other),
        }
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}
