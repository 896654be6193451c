//! Accepts clients that send an empty `:authority`. Go's gRPC does so without TLS, and therefore every Consul
//! client; the HTTP/2 library rejects such requests, although it accepts requests without the field.
//!
//! Go encodes the field as one byte: the entry of HPACK's static table with an empty value. [`Filter`] removes
//! this byte from header blocks and shortens the frame. It changes nothing else. Since static entries never
//! enter the dynamic table, the tables of both sides stay in sync. The filter parses lengths only; decoding and
//! validation are left to the library.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Length of the client's connection preface (RFC 9113 §3.4), in bytes.
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// The maximum frame size, unless the server announces a larger one. This server does not.
const MAX_FRAME: usize = 16_384;
const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Index 1 of the static table: `:authority` with an empty value (RFC 7541 appendix A).
const EMPTY_AUTHORITY: u8 = 0x81;
/// Bytes read from the connection at a time.
const CHUNK: usize = 4_096;

/// A connection with empty `:authority` fields removed.
pub(super) struct Tolerant<S> {
    inner: S,
    filter: Filter,
    ready: BytesMut,
}

impl<S> Tolerant<S> {
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            filter: Filter::default(),
            ready: BytesMut::new(),
        }
    }
}

impl<S: Connected> Connected for Tolerant<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tolerant<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() {
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.filter.push(chunk.filled(), &mut this.ready);
        }
        let length = this.ready.len().min(buf.remaining());
        buf.put_slice(&this.ready[..length]);
        this.ready.advance(length);
        if this.ready.is_empty() {
            // Free the buffer, so that idle connections hold none.
            this.ready = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tolerant<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// The filter's position in the client's byte stream.
enum Position {
    /// This many bytes pass unchanged: the preface, or other frames.
    Passing(usize),
    /// In a frame header, or in an incomplete header frame.
    Collecting,
    /// After malformed input: everything passes, and the library reports the error.
    Malformed,
}

/// The filter's state machine. Pure: bytes in, bytes out.
struct Filter {
    position: Position,
    frame: Vec<u8>,
    block: Block,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            position: Position::Passing(PREFACE),
            frame: Vec::new(),
            block: Block::default(),
        }
    }
}

impl Filter {
    fn push(&mut self, mut bytes: &[u8], out: &mut BytesMut) {
        while !bytes.is_empty() {
            match &mut self.position {
                Position::Malformed => {
                    out.extend_from_slice(bytes);
                    return;
                }
                Position::Passing(left) => {
                    let length = bytes.len().min(*left);
                    out.extend_from_slice(&bytes[..length]);
                    *left -= length;
                    if *left == 0 {
                        self.position = Position::Collecting;
                    }
                    bytes = &bytes[length..];
                }
                Position::Collecting => {
                    let length = bytes.len().min(self.wanted() - self.frame.len());
                    self.frame.extend_from_slice(&bytes[..length]);
                    bytes = &bytes[length..];
                    self.collected(out);
                }
            }
        }
    }

    /// Size of the frame that is being collected, as far as it is known yet.
    fn wanted(&self) -> usize {
        if self.frame.len() < FRAME_HEADER {
            FRAME_HEADER
        } else {
            FRAME_HEADER + payload_length(&self.frame)
        }
    }

    fn collected(&mut self, out: &mut BytesMut) {
        if self.frame.len() < FRAME_HEADER {
            return;
        }
        let length = payload_length(&self.frame);
        let of_headers = matches!(self.frame[3], HEADERS | CONTINUATION);
        if !of_headers || length > MAX_FRAME {
            out.extend_from_slice(&self.frame);
            self.frame = Vec::new();
            self.position = match (of_headers, length) {
                (true, _) => Position::Malformed,
                (false, 0) => Position::Collecting,
                (false, length) => Position::Passing(length),
            };
        } else if self.frame.len() == FRAME_HEADER + length {
            let frame = std::mem::take(&mut self.frame);
            self.header_frame(frame, out);
        }
    }

    fn header_frame(&mut self, mut frame: Vec<u8>, out: &mut BytesMut) {
        let Some((start, end)) = block_of(&frame) else {
            out.extend_from_slice(&frame);
            self.position = Position::Malformed;
            return;
        };
        if frame[3] == HEADERS {
            self.block = Block::default();
        }
        let fragment: Vec<u8> = frame
            .drain(start..end)
            .filter(|byte| self.block.keeps(*byte))
            .collect();
        let tail = frame.split_off(start);
        let length = start - FRAME_HEADER + fragment.len() + tail.len();
        frame[..3].copy_from_slice(&u32::try_from(length).unwrap_or_default().to_be_bytes()[1..]);
        out.extend_from_slice(&frame);
        out.extend_from_slice(&fragment);
        out.extend_from_slice(&tail);
        if frame[4] & END_HEADERS != 0 {
            self.block = Block::default();
        }
    }
}

fn payload_length(frame: &[u8]) -> usize {
    usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2])
}

/// The range of a frame that belongs to the header block; `None` if the lengths are inconsistent.
fn block_of(frame: &[u8]) -> Option<(usize, usize)> {
    let (mut start, mut end) = (FRAME_HEADER, frame.len());
    if frame[3] == HEADERS {
        if frame[4] & PADDED != 0 {
            end = end.checked_sub(usize::from(*frame.get(start)?))?;
            start += 1;
        }
        if frame[4] & PRIORITY != 0 {
            start += 5;
        }
    }
    (start <= end).then_some((start, end))
}

/// The filter's position in a header block: between fields, or within one (RFC 7541 §5, §6).
#[derive(Default)]
enum Block {
    #[default]
    Field,
    /// In a multi-byte index. This many strings follow.
    Index { strings: u8 },
    /// At the length of the first of this many strings.
    Length { strings: u8 },
    /// In a multi-byte length.
    LongLength {
        strings: u8,
        length: usize,
        shift: u32,
    },
    /// In the bytes of a string.
    Text { left: usize, strings: u8 },
}

impl Block {
    /// Consumes the next byte of the block. Returns whether it stays.
    fn keeps(&mut self, byte: u8) -> bool {
        *self = match *self {
            Self::Field if byte == EMPTY_AUTHORITY => return false,
            Self::Field => Self::field(byte),
            Self::Index { strings } if byte & 0x80 != 0 => Self::Index { strings },
            Self::Index { strings } => Self::strings(strings),
            Self::Length { strings } if byte & 0x7f == 0x7f => Self::LongLength {
                strings,
                length: 0x7f,
                shift: 0,
            },
            Self::Length { strings } => Self::text(usize::from(byte & 0x7f), strings),
            Self::LongLength {
                strings,
                length,
                shift,
            } => {
                let more = usize::from(byte & 0x7f)
                    .checked_shl(shift)
                    .unwrap_or(usize::MAX);
                let length = length.saturating_add(more);
                if byte & 0x80 != 0 {
                    Self::LongLength {
                        strings,
                        length,
                        shift: shift.saturating_add(7),
                    }
                } else {
                    Self::text(length, strings)
                }
            }
            Self::Text { left, strings } => Self::text(left - 1, strings),
        };
        true
    }

    /// The first byte of a field or of a table size update.
    fn field(byte: u8) -> Self {
        let (prefix, literal) = match byte {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        let index = byte & prefix;
        // A literal has a value and, without an index, a name before it.
        let strings = u8::from(literal) + u8::from(literal && index == 0);
        if index == prefix {
            Self::Index { strings }
        } else {
            Self::strings(strings)
        }
    }

    fn strings(strings: u8) -> Self {
        if strings == 0 {
            Self::Field
        } else {
            Self::Length { strings }
        }
    }

    fn text(left: usize, strings: u8) -> Self {
        if left == 0 {
            Self::strings(strings - 1)
        } else {
            Self::Text { left, strings }
        }
    }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
