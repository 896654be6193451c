//! One request over HTTP/1.1 and its bounded answer, blocking, for questions of the command line.
//!
//! There is one deadline for everything, a bound for head and body, and no runtime: orchestrators
//! start some of these questions every second. It follows no redirect and knows no proxy.

use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

// Not paused here; the type is the one whose use the workspace allows.
use tokio::time::Instant;

/// A head is shorter than this, in bytes.
const HEAD_LIMIT: u64 = 16 * 1024;

/// What is asked: method and path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) method: &'static str,
    pub(crate) path: &'a str,
}

/// How an answer begins. The rest has not been read.
pub(crate) struct Reply {
    /// The HTTP status.
    pub(crate) status: u16,
    rest: BufReader<Take<UntilDeadline>>,
}

/// Where a body ends.
enum Length {
    Bytes(usize),
    Chunks,
    /// With the connection.
    End,
}

/// A connection on which nothing has been asked yet.
pub(crate) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    deadline: Instant,
}

/// Connects. Everything that follows ends at `deadline` as well.
pub(crate) fn connect(address: SocketAddr, deadline: Instant) -> io::Result<Connection> {
    let stream = TcpStream::connect_timeout(&address, left(deadline)?)?;
    Ok(Connection {
        stream,
        address,
        deadline,
    })
}

impl Connection {
    /// Asks, and waits for the first line of the answer.
    pub(crate) fn ask(self, question: Question<'_>) -> io::Result<Reply> {
        let Self {
            mut stream,
            address,
            deadline,
        } = self;
        stream.set_write_timeout(Some(left(deadline)?))?;
        let Question { method, path } = question;
        let length = match method {
            "GET" => "",
            _ => "Content-Length: 0\r\n",
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{length}Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut rest = BufReader::new(UntilDeadline { stream, deadline }.take(HEAD_LIMIT));
        let line = line(&mut rest)?;
        let status = line
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1));
        let status = status
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| invalid("the answer is not HTTP"))?;
        Ok(Reply { status, rest })
    }
}

impl Reply {
    /// The body, of at most `limit` bytes with all that frames it.
    pub(crate) fn body(mut self, limit: usize) -> io::Result<Vec<u8>> {
        let length = self.length()?;
        let most = u64::try_from(limit).unwrap_or(u64::MAX);
        // One more tells a body that is too long from one that fits.
        self.rest.get_mut().set_limit(most.saturating_add(1));
        let mut body = Vec::new();
        match length {
            Length::Bytes(count) if count > limit => return Err(too_long(limit)),
            Length::Bytes(count) => {
                body.resize(count, 0);
                self.rest.read_exact(&mut body).map_err(cut_off)?;
            }
            Length::Chunks => self.chunks(&mut body, limit)?,
            Length::End => drop(self.rest.read_to_end(&mut body)?),
        }
        if body.len() > limit {
            return Err(too_long(limit));
        }
        Ok(body)
    }

    /// Reads what is left of the head.
    fn length(&mut self) -> io::Result<Length> {
        let mut length = Length::End;
        loop {
            let line = line(&mut self.rest)?;
            if line.is_empty() {
                return Ok(length);
            }
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| invalid("the answer's head is not HTTP"))?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(invalid("the answer's transfer encoding is unknown"));
                }
                length = Length::Chunks;
            } else if name.eq_ignore_ascii_case("content-length") {
                let count = value
                    .parse()
                    .map_err(|_| invalid("the answer's length is not a number"))?;
                // Chunks come first, whatever else is said.
                if matches!(length, Length::End) {
                    length = Length::Bytes(count);
                }
            }
        }
    }

    fn chunks(&mut self, body: &mut Vec<u8>, limit: usize) -> io::Result<()> {
        loop {
            let line = line(&mut self.rest)?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16)
                .map_err(|_| invalid("a chunk of the answer has no size"))?;
            if size == 0 {
                return Ok(());
            }
            let start = body.len();
            let end = start.checked_add(size).filter(|end| *end <= limit);
            body.resize(end.ok_or_else(|| too_long(limit))?, 0);
            self.rest.read_exact(&mut body[start..]).map_err(cut_off)?;
            let mut end = [0; 2];
            self.rest.read_exact(&mut end).map_err(cut_off)?;
            if end != *b"\r\n" {
                return Err(invalid("a chunk of the answer is longer than it says"));
            }
        }
    }
}

/// One line without its end.
fn line(reader: &mut BufReader<Take<UntilDeadline>>) -> io::Result<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    let text = line
        .strip_suffix(b"\r\n")
        .or_else(|| line.strip_suffix(b"\n"));
    match text {
        Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        // The connection has ended, or the bound is reached. The first line alone may say enough.
        None if line.starts_with(b"HTTP/1.") => Ok(String::from_utf8_lossy(&line).into_owned()),
        None if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Err(invalid("the answer is not HTTP")),
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn too_long(limit: usize) -> io::Error {
    let reason = format!("the answer is longer than {limit} bytes");
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn cut_off(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => invalid("the answer ends early"),
        _ => error,
    }
}

/// Bounds all reads together: a peer that sends a byte now and then must not prolong the question.
struct UntilDeadline {
    stream: TcpStream,
    deadline: Instant,
}

impl Read for UntilDeadline {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        match self.stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::TimedOut.into())
            }
            other => other,
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A zero timeout would mean none.
    if left.is_zero() {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const LIMIT: usize = 100;

    /// What comes of an answer that one connection is given, piece by piece.
    fn answered(pieces: &[&str]) -> Result<(u16, String), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 512];
                let length = stream.read(&mut request).unwrap();
                assert!(request[..length].starts_with(b"GET /x HTTP/1.1\r\n"));
                for piece in pieces {
                    // The other side may have heard enough.
                    let _ = stream.write_all(piece.as_bytes());
                }
            });
            let question = Question {
                method: "GET",
                path: "/x",
            };
            let deadline = Instant::now() + Duration::from_secs(30);
            let answer = || {
                let reply = connect(address, deadline)?.ask(question)?;
                Ok((reply.status, reply.body(LIMIT)?))
            };
            let (status, body) = answer().map_err(|error: io::Error| error.to_string())?;
            Ok((status, String::from_utf8(body).unwrap()))
        })
    }

    #[test]
    fn a_body_ends_where_the_head_says() {
        let ok = |body: &str| Ok((200, body.to_owned()));
        for pieces in [
            &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more"][..],
            &[
                "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2\r\nhe\r\n",
                "3;x=y\r\nllo\r\n0\r\n\r\n",
            ],
            &["HTTP/1.0 200\r\n\r\nhel", "lo"],
        ] {
            assert_eq!(answered(pieces), ok("hello"), "{pieces:?}");
        }
        let empty = answered(&["HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"]);
        assert_eq!(empty, Ok((503, String::new())));
        let full = "x".repeat(LIMIT);
        assert_eq!(
            answered(&[&format!("HTTP/1.1 200 OK\r\n\r\n{full}")]),
            ok(&full)
        );
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let long = "x".repeat(LIMIT + 1);
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(20_000));
        let by_length = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{long}",
            long.len()
        );
        let by_end = format!("HTTP/1.1 200 OK\r\n\r\n{long}");
        let by_chunk = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n65\r\n{long}");
        for (answer, expected) in [
            ("", "end of file"),
            ("SSH-2.0-OpenSSH\r\n", "not HTTP"),
            ("no line at all", "not HTTP"),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "head is not HTTP"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
                "ends early",
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
                "not a number",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
                "encoding is unknown",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
                "no size",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
                "longer than it says",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
                "longer than 100",
            ),
            (&endless, "not HTTP"),
            (&by_length, "longer than 100"),
            (&by_end, "longer than 100"),
            (&by_chunk, "longer than 100"),
        ] {
            let error = answered(&[answer]).unwrap_err();
            assert!(error.contains(expected), "{answer:.80}: {error}");
        }
    }
}
