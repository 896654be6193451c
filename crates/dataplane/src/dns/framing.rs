//! DNS messages on a byte stream: each behind its length in two bytes (RFC 1035, 4.2.2).
//!
//! No IO. It never looks into a message.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Length of the length.
const PREFIX: usize = 2;

/// Room for the first read, and for most queries.
const TYPICAL: usize = 512;

/// Takes a stream apart. Holds one message and its length at most, besides what one read brought
/// of those behind it.
#[derive(Debug, Default)]
pub struct Deframer {
    buffer: BytesMut,
}

impl Deframer {
    /// Where to append what comes next; it has room for the rest of the message that has begun.
    pub fn buffer(&mut self) -> &mut BytesMut {
        let wanted = self.length().map_or(TYPICAL, |length| PREFIX + length);
        self.buffer
            .reserve(wanted.saturating_sub(self.buffer.len()).max(1));
        &mut self.buffer
    }

    /// The next message, when all of it is here.
    #[must_use]
    pub fn message(&mut self) -> Option<Bytes> {
        let length = self.length()?;
        if self.buffer.len() < PREFIX + length {
            return None;
        }
        self.buffer.advance(PREFIX);
        // A copy, so that a small message that waits does not hold on to a large buffer.
        let message = Bytes::copy_from_slice(&self.buffer[..length]);
        self.buffer.advance(length);
        Some(message)
    }

    fn length(&self) -> Option<usize> {
        let prefix = self.buffer.first_chunk::<PREFIX>()?;
        Some(u16::from_be_bytes(*prefix).into())
    }
}

/// A message with its length; `None` when it is too long to have one.
#[must_use]
pub fn frame(message: &[u8]) -> Option<Bytes> {
    let length = u16::try_from(message.len()).ok()?;
    let mut framed = BytesMut::with_capacity(PREFIX + message.len());
    framed.put_u16(length);
    framed.put_slice(message);
    Some(framed.freeze())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::message::LARGEST;
    use super::*;

    fn feed(deframer: &mut Deframer, bytes: &[u8]) -> Vec<Bytes> {
        deframer.buffer().put_slice(bytes);
        std::iter::from_fn(|| deframer.message()).collect()
    }

    #[test]
    fn the_longest_message_has_a_length_and_a_longer_one_has_none() {
        let framed = frame(&[7; LARGEST]).unwrap();
        assert_eq!(framed.len(), PREFIX + LARGEST);
        assert_eq!(feed(&mut Deframer::default(), &framed), [vec![7; LARGEST]]);
        assert_eq!(frame(&[7; LARGEST + 1]), None);
    }

    #[test]
    fn an_empty_message_is_a_message() {
        assert_eq!(
            feed(&mut Deframer::default(), &[0, 0, 0, 1, 9]),
            [&b""[..], &[9]]
        );
    }

    #[test]
    fn half_a_message_is_none() {
        let mut deframer = Deframer::default();
        assert!(feed(&mut deframer, &[0]).is_empty());
        assert!(feed(&mut deframer, &[3, 1, 2]).is_empty());
        assert_eq!(feed(&mut deframer, &[3]), [&[1, 2, 3][..]]);
    }

    #[test]
    fn there_is_room_for_the_message_that_has_begun() {
        let mut deframer = Deframer::default();
        feed(&mut deframer, &[0xff, 0xff, 1]);
        let buffer = deframer.buffer();
        assert!(buffer.capacity() - buffer.len() >= LARGEST - 1);
        // Once it has been taken, memory does not grow with the number of messages.
        feed(&mut deframer, &[1; LARGEST - 1]);
        for _ in 0..100 {
            feed(&mut deframer, &[0, 2, 1, 1]);
        }
        assert!(deframer.buffer().capacity() <= 2 * (PREFIX + LARGEST));
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_the_stream_is_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..700), 0..8),
            cuts in proptest::collection::vec(1..400_usize, 1..40),
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|message| frame(message).unwrap()).collect();
            let mut deframer = Deframer::default();
            let (mut rest, mut out) = (&stream[..], Vec::new());
            for cut in cuts.into_iter().cycle() {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                out.extend(feed(&mut deframer, now));
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(out, messages);
            prop_assert!(deframer.message().is_none());
        }
    }
}
