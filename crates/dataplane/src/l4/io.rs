//! Streams that the proxy copies between: TCP, unix sockets, and TLS over them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::tls_stream::TlsStream;

/// A socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket, with TLS or without it.
#[derive(Debug)]
pub(super) enum Io {
    Plain(Socket),
    /// Boxed: a session is large, and connections without TLS should not pay for it.
    Tls(Box<TlsStream>),
}

impl Io {
    /// The TCP socket of a stream without TLS.
    pub(super) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Io::Plain(Socket::Tcp(stream)) => Some(stream),
            _ => None,
        }
    }
}

macro_rules! delegate {
    ($self:ident, $stream:ident => $call:expr, $($variant:path),+) => {
        match $self.get_mut() {
            $($variant($stream) => $call,)+
        }
    };
}

macro_rules! both_directions {
    ($name:ty, $($variant:path),+) => {
        impl AsyncRead for $name {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                delegate!(self, stream => Pin::new(stream).poll_read(cx, buffer), $($variant),+)
            }
        }

        impl AsyncWrite for $name {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                delegate!(self, stream => Pin::new(stream).poll_write(cx, bytes), $($variant),+)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                delegate!(self, stream => Pin::new(stream).poll_flush(cx), $($variant),+)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                delegate!(self, stream => Pin::new(stream).poll_shutdown(cx), $($variant),+)
            }
        }
    };
}

both_directions!(Socket, Socket::Tcp, Socket::Unix);
both_directions!(Io, Io::Plain, Io::Tls);
