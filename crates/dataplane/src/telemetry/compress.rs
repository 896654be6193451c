//! Compresses a page while it is being written. What it holds does not grow with the page.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A gzip stream; bytes in, bytes out.
#[derive(Debug)]
pub(super) struct Gzip {
    encoder: GzEncoder<Vec<u8>>,
}

impl Gzip {
    pub(super) fn new() -> Gzip {
        // Metrics repeat themselves: more effort makes little of a difference.
        let encoder = GzEncoder::new(Vec::new(), Compression::fast());
        Gzip { encoder }
    }

    /// What is ready after this piece; may be empty.
    pub(super) fn push(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.encoder.write_all(piece)?;
        Ok(std::mem::take(self.encoder.get_mut()).into())
    }

    /// What is left at the end.
    pub(super) fn finish(self) -> io::Result<Bytes> {
        self.encoder.finish().map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn pieces_make_one_stream_and_nothing_piles_up() {
        let (mut gzip, mut stream, mut plain) = (Gzip::new(), Vec::new(), Vec::new());
        for number in 0..2_000 {
            let piece = format!(
                "metric_{number}{{label=\"{}\"}} {number}\n",
                number * 7919 % 1009
            )
            .repeat(20);
            let ready = gzip.push(piece.as_bytes()).unwrap();
            assert!(ready.len() < 256 * 1024 && gzip.encoder.get_ref().is_empty());
            stream.extend_from_slice(&ready);
            plain.extend_from_slice(piece.as_bytes());
        }
        stream.extend_from_slice(&gzip.finish().unwrap());
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(stream.as_slice())
            .read_to_end(&mut read)
            .unwrap();
        assert!(read == plain && stream.len() * 10 < plain.len());
    }
}
