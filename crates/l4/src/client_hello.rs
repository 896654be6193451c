//! Reads the server name and the ALPN protocols from a ClientHello that was peeked and not consumed.
//!
//! It trusts nothing: what it reads was sent by whoever connects. It looks at [`MAX_LENGTH`] bytes at most, and
//! decides as soon as it can. RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3; RFC 7301, section 3.1.

/// The most bytes that are looked at: the default of Envoy's `tls_inspector`.
pub const MAX_LENGTH: usize = 16 * 1024;

/// What the first bytes of a connection are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspection {
    /// It cannot be decided before this many bytes in total are there; at most [`MAX_LENGTH`], and more than there are.
    NeedMore(usize),
    /// Another protocol than TLS.
    NotTls,
    /// A ClientHello.
    Hello(ClientHello),
    /// It begins as TLS does, but is no valid ClientHello. Envoy treats it as another protocol.
    Invalid,
    /// A ClientHello of more than [`MAX_LENGTH`] bytes. Envoy closes the connection.
    TooLong,
}

/// What a ClientHello says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientHello {
    /// The server name, in lower case.
    pub server_name: Option<String>,
    /// The ALPN protocols in the client's order, without those that are not UTF-8.
    pub alpn: Vec<String>,
}

/// The content type of records with parts of a handshake.
const HANDSHAKE: u8 = 22;
/// The first byte of every version of TLS and SSL 3.0.
const MAJOR_VERSION: u8 = 3;
/// Type, version and length of a record.
const RECORD_HEADER: usize = 5;
/// The longest record without encryption.
const MAX_RECORD: usize = 1 << 14;
/// Type and length of a handshake message.
const MESSAGE_HEADER: usize = 4;
/// The type of the message.
const CLIENT_HELLO: u8 = 1;
/// The extension with the server name.
const SERVER_NAME: u16 = 0;
/// The extension with the ALPN protocols.
const ALPN: u16 = 16;
/// The type of a server name that is a host name.
const HOST_NAME: u8 = 0;
/// The longest host name.
const MAX_NAME: usize = 255;

/// Inspects the first bytes of a connection: all that were received so far.
pub fn inspect(peeked: &[u8]) -> Inspection {
    let peeked = peeked.get(..MAX_LENGTH).unwrap_or(peeked);
    match message(peeked) {
        Ok(body) => hello(&body).map_or(Inspection::Invalid, Inspection::Hello),
        Err(Inspection::NeedMore(more)) if more > MAX_LENGTH => Inspection::TooLong,
        Err(other) => other,
    }
}

/// The body of the first handshake message, from one record or several.
fn message(bytes: &[u8]) -> Result<Vec<u8>, Inspection> {
    let mut message = Vec::new();
    let mut at = 0;
    loop {
        let (content, end) = record(bytes, at)?;
        message.extend_from_slice(content);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(Inspection::Invalid);
        }
        let missing = match message.get(1..MESSAGE_HEADER) {
            Some(length) => {
                let whole = MESSAGE_HEADER + number(length);
                if let Some(body) = message.get(MESSAGE_HEADER..whole) {
                    return Ok(body.to_vec());
                }
                whole - message.len()
            }
            // The type decides already.
            None if message.is_empty() => 1,
            None => MESSAGE_HEADER - message.len(),
        };
        // What this record does not have comes in others, each with a header.
        let coming = end.saturating_sub(bytes.len());
        let later = missing.saturating_sub(coming);
        if end + later + later.div_ceil(MAX_RECORD) * RECORD_HEADER > MAX_LENGTH && later > 0 {
            return Err(Inspection::TooLong);
        }
        if coming > 0 {
            return Err(Inspection::NeedMore(bytes.len() + missing.min(coming)));
        }
        at = end;
    }
}

/// What is there of the record at an offset, and the offset of its end.
fn record(bytes: &[u8], at: usize) -> Result<(&[u8], usize), Inspection> {
    let rest = bytes.get(at..).unwrap_or_default();
    let wrong = match at {
        0 => Inspection::NotTls,
        _ => Inspection::Invalid,
    };
    for (byte, expected) in rest.iter().zip([HANDSHAKE, MAJOR_VERSION]) {
        if *byte != expected {
            return Err(wrong);
        }
    }
    let Some(length) = rest.get(3..RECORD_HEADER) else {
        // Each of the first two bytes may tell that it is another protocol, whose client may send no more.
        return Err(Inspection::NeedMore(match rest.len() {
            0 | 1 => bytes.len() + 1,
            _ => at + RECORD_HEADER,
        }));
    };
    let length = number(length);
    // A record without content would let a client send without end.
    if length == 0 || length > MAX_RECORD {
        return Err(wrong);
    }
    let content = rest.get(RECORD_HEADER..).unwrap_or_default();
    let content = content.get(..length).unwrap_or(content);
    Ok((content, at + RECORD_HEADER + length))
}

/// Reads the body of a ClientHello; `None` if it is not valid.
fn hello(body: &[u8]) -> Option<ClientHello> {
    let mut body = Reader(body);
    // The version and the random number.
    body.take(2 + 32)?;
    // The session, the cipher suites and the compression methods.
    body.block(1)?;
    body.block(2)?;
    body.block(1)?;
    let mut hello = ClientHello::default();
    if body.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = body.block(2)?;
    if !body.0.is_empty() {
        return None;
    }
    let (mut names, mut protocols) = (0, 0);
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let content = extensions.block(2)?;
        match u16::try_from(kind).ok()? {
            SERVER_NAME => {
                names += 1;
                hello.server_name = Some(server_name(content)?);
            }
            ALPN => {
                protocols += 1;
                hello.alpn = alpn(content)?;
            }
            _ => {}
        }
    }
    // No extension may come twice.
    (names <= 1 && protocols <= 1).then_some(hello)
}

/// The host name in a `server_name` extension. A second name is not valid, as in the libraries that are in use.
fn server_name(mut content: Reader<'_>) -> Option<String> {
    let mut names = content.block(2)?;
    if !content.0.is_empty() || names.take(1)? != [HOST_NAME] {
        return None;
    }
    let name = names.block(2)?.0;
    if !names.0.is_empty() || name.is_empty() || name.len() > MAX_NAME || name.contains(&0) {
        return None;
    }
    let name = std::str::from_utf8(name).ok()?;
    Some(name.to_ascii_lowercase())
}

/// The protocols in an ALPN extension.
fn alpn(mut content: Reader<'_>) -> Option<Vec<String>> {
    let mut names = content.block(2)?;
    if !content.0.is_empty() || names.0.is_empty() {
        return None;
    }
    let mut all = Vec::new();
    while !names.0.is_empty() {
        let name = names.block(1)?.0;
        if name.is_empty() {
            return None;
        }
        all.extend(std::str::from_utf8(name).ok().map(str::to_owned));
    }
    Some(all)
}

/// A number, the most significant byte first.
fn number(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .fold(0, |number, byte| (number << 8) | usize::from(*byte))
}

/// What remains to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of up to 3 bytes.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        self.take(bytes).map(number)
    }

    /// What follows its length, which has so many bytes.
    fn block(&mut self, bytes: usize) -> Option<Self> {
        let length = self.number(bytes)?;
        self.take(length).map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ClientHello as one handshake message.
    fn message(name: Option<&[u8]>, protocols: &[&[u8]], padding: usize) -> Vec<u8> {
        let mut extensions = Vec::new();
        // An extension that is not known, as clients send them.
        extension(&mut extensions, 0x1a1a, &[0]);
        if let Some(name) = name {
            let mut entry = vec![HOST_NAME];
            entry.extend(sized(2, name));
            extension(&mut extensions, SERVER_NAME, &sized(2, &entry));
        }
        if !protocols.is_empty() {
            let names: Vec<u8> = protocols.iter().flat_map(|name| sized(1, name)).collect();
            extension(&mut extensions, ALPN, &sized(2, &names));
        }
        if padding > 0 {
            extension(&mut extensions, 21, &vec![0; padding]);
        }
        with(&extensions)
    }

    /// A ClientHello with these extensions.
    fn with(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend(sized(1, &[9; 32]));
        body.extend(sized(2, &[0x13, 1, 0x13, 2]));
        body.extend(sized(1, &[0]));
        body.extend(sized(2, extensions));
        let mut message = vec![CLIENT_HELLO];
        message.extend(sized(3, &body));
        message
    }

    fn extension(to: &mut Vec<u8>, kind: u16, content: &[u8]) {
        to.extend(kind.to_be_bytes());
        to.extend(sized(2, content));
    }

    fn sized(bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = content.len().to_be_bytes();
        let mut out = length[length.len() - bytes..].to_vec();
        out.extend(content);
        out
    }

    /// Records with parts of a message, cut at these lengths and then at the largest.
    fn records(message: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut cuts = cuts.iter().copied();
        let mut rest = message;
        let mut out = Vec::new();
        while !rest.is_empty() {
            let length = cuts.next().unwrap_or(MAX_RECORD).clamp(1, rest.len());
            let (part, after) = rest.split_at(length);
            out.extend([HANDSHAKE, 3, 1]);
            out.extend(sized(2, part));
            rest = after;
        }
        out
    }

    fn expected(name: Option<&str>, protocols: &[&str]) -> Inspection {
        Inspection::Hello(ClientHello {
            server_name: name.map(str::to_owned),
            alpn: protocols.iter().map(|name| (*name).to_owned()).collect(),
        })
    }

    #[test]
    fn reads_name_and_protocols() {
        let bytes = records(
            &message(Some(b"Web.Example"), &[b"h2", b"http/1.1"], 0),
            &[],
        );
        assert_eq!(
            inspect(&bytes),
            expected(Some("web.example"), &["h2", "http/1.1"])
        );
        let bytes = records(&message(None, &[], 0), &[]);
        assert_eq!(inspect(&bytes), expected(None, &[]));
        // What follows the ClientHello does not matter.
        let mut longer = records(&message(Some(b"a"), &[], 0), &[]);
        longer.extend([23, 3, 3, 0, 1, 0]);
        assert_eq!(inspect(&longer), expected(Some("a"), &[]));
        // A protocol that is no text is left out.
        let bytes = records(&message(None, &[&[0xfa, 0xfa], b"h2"], 0), &[]);
        assert_eq!(inspect(&bytes), expected(None, &["h2"]));
    }

    #[test]
    fn tells_other_protocols_at_once() {
        assert_eq!(inspect(&[]), Inspection::NeedMore(1));
        assert_eq!(inspect(b"G"), Inspection::NotTls);
        assert_eq!(inspect(&[HANDSHAKE]), Inspection::NeedMore(2));
        assert_eq!(inspect(&[HANDSHAKE, 2]), Inspection::NotTls);
        assert_eq!(inspect(&[HANDSHAKE, 3, 1, 0, 0]), Inspection::NotTls);
        assert_eq!(inspect(&[HANDSHAKE, 3, 1, 0xff, 0xff]), Inspection::NotTls);
        // A ServerHello.
        assert_eq!(inspect(&[HANDSHAKE, 3, 1, 0, 9, 2]), Inspection::Invalid);
    }

    #[test]
    fn refuses_invalid_names() {
        for name in [&b""[..], b"a\0b", &[b'a'; 256], &[0xff]] {
            let bytes = records(&message(Some(name), &[], 0), &[]);
            assert_eq!(inspect(&bytes), Inspection::Invalid, "{name:?}");
        }
        let bytes = records(&message(None, &[b""], 0), &[]);
        assert_eq!(inspect(&bytes), Inspection::Invalid);
    }

    #[test]
    fn needs_no_more_than_the_message() {
        let mut message = message(Some(b"a"), &[], 0);
        let length = message.len();
        message.extend([0; 9]);
        let bytes = records(&message, &[]);
        let end = RECORD_HEADER + length;
        assert_eq!(inspect(&bytes[..end - 7]), Inspection::NeedMore(end));
        assert_eq!(inspect(&bytes[..end]), expected(Some("a"), &[]));
    }

    #[test]
    fn refuses_what_comes_twice() {
        let name = sized(2, &[&[HOST_NAME][..], &sized(2, b"a")].concat());
        let protocols = sized(2, &sized(1, b"h2"));
        for (kind, content) in [(SERVER_NAME, name), (ALPN, protocols)] {
            let mut extensions = Vec::new();
            extension(&mut extensions, kind, &content);
            let once = inspect(&records(&with(&extensions), &[]));
            assert!(matches!(once, Inspection::Hello(_)), "{kind}");
            extension(&mut extensions, kind, &content);
            assert_eq!(
                inspect(&records(&with(&extensions), &[])),
                Inspection::Invalid,
                "{kind}"
            );
        }
        // Two names in one extension, and something behind the extensions.
        let two = [
            &[HOST_NAME][..],
            &sized(2, b"a"),
            &[HOST_NAME],
            &sized(2, b"b"),
        ]
        .concat();
        let mut extensions = Vec::new();
        extension(&mut extensions, SERVER_NAME, &sized(2, &two));
        assert_eq!(
            inspect(&records(&with(&extensions), &[])),
            Inspection::Invalid
        );
        let mut behind = with(&[]);
        behind.push(0);
        behind[3] += 1;
        assert_eq!(inspect(&records(&behind, &[])), Inspection::Invalid);
    }

    #[test]
    fn refuses_long_ones_early() {
        let bytes = records(&message(Some(b"a"), &[], MAX_LENGTH), &[]);
        assert_eq!(inspect(&bytes), Inspection::TooLong);
        assert_eq!(inspect(&bytes[..MAX_LENGTH]), Inspection::TooLong);
        // The length of the message is known with its header.
        let announced = [HANDSHAKE, 3, 1, 0, 4, CLIENT_HELLO, 0, 0x50, 0];
        assert_eq!(inspect(&announced), Inspection::TooLong);
        // Many small records.
        let bytes = records(&message(Some(b"a"), &[], 3000), &[1; 4000]);
        assert_eq!(inspect(&bytes), Inspection::TooLong);
    }

    proptest! {
        /// Every prefix asks for more, never for too much, and the whole is read, however the records are cut.
        #[test]
        fn every_prefix_needs_more(
            name in proptest::option::of("[a-z.]{1,40}"),
            protocols in proptest::collection::vec("[a-z0-9/]{1,9}", 0..4),
            padding in 0_usize..300,
            cuts in proptest::collection::vec(1_usize..80, 0..12),
        ) {
            let protocols: Vec<&str> = protocols.iter().map(String::as_str).collect();
            let raw: Vec<&[u8]> = protocols.iter().map(|name| name.as_bytes()).collect();
            let message = message(name.as_deref().map(str::as_bytes), &raw, padding);
            let bytes = records(&message, &cuts);
            for end in 0..bytes.len() {
                match inspect(&bytes[..end]) {
                    Inspection::NeedMore(more) => {
                        prop_assert!(more > end && more <= bytes.len(), "{more} at {end} of {}", bytes.len());
                    }
                    other => prop_assert!(false, "{other:?} at {end} of {}", bytes.len()),
                }
            }
            prop_assert_eq!(inspect(&bytes), expected(name.as_deref(), &protocols));
        }

        /// Anything at all has an outcome, and a request for more can be fulfilled.
        #[test]
        fn never_panics(
            name in "[a-z]{0,9}",
            cuts in proptest::collection::vec(1_usize..80, 0..5),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
            noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = records(&message(Some(name.as_bytes()), &[b"h2"], 4), &cuts);
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.extend(&noise);
            for bytes in [&bytes[..], &noise[..]] {
                let whole = inspect(bytes);
                if let Inspection::NeedMore(more) = whole {
                    prop_assert!(more > bytes.len() && more <= MAX_LENGTH);
                }
                for end in 0..bytes.len() {
                    match inspect(&bytes[..end]) {
                        Inspection::NeedMore(more) => prop_assert!(more > end && more <= MAX_LENGTH),
                        // More bytes do not change what is decided.
                        decided => prop_assert_eq!(&decided, &whole, "{} of {}", end, bytes.len()),
                    }
                }
            }
        }
    }
}
