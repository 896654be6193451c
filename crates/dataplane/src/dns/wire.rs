//! Reads DNS messages: where names, questions, records and their TTLs are.
//!
//! No IO and no allocation. It follows no pointer, so that every read ends, and it never panics,
//! whatever the bytes are.

/// Length of the header, which every message begins with.
pub(super) const HEADER: usize = 12;

// Third and fourth byte of the header.
pub(super) const RESPONSE: u8 = 0x80;
pub(super) const OPCODE: u8 = 0x78;
pub(super) const TRUNCATED: u8 = 0x02;
pub(super) const RECURSION_DESIRED: u8 = 0x01;
pub(super) const RECURSION_AVAILABLE: u8 = 0x80;
pub(super) const CHECKING_DISABLED: u8 = 0x10;
pub(super) const RESPONSE_CODE: u8 = 0x0f;

pub(super) const NO_ERROR: u8 = 0;
pub(super) const FORMAT_ERROR: u8 = 1;
pub(super) const SERVER_FAILURE: u8 = 2;
pub(super) const NAME_ERROR: u8 = 3;

/// Type of the record that says how long an absence lasts.
pub(super) const SOA: u16 = 6;

/// Type of the record that carries EDNS.
pub(super) const OPT: u16 = 41;

/// Longest label of a name. Larger length bytes are pointers, or nothing that exists.
const LARGEST_LABEL: u8 = 63;

/// Longest name, with all its length bytes.
const LARGEST_NAME: usize = 255;

/// The two high bits of a length byte that make it a pointer.
const POINTER: u8 = 0xc0;

/// Names of an SOA record are one byte at least, its five numbers are four bytes each.
const SMALLEST_SOA: usize = 22;

/// Where the header says how many entries a section has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Questions = 4,
    Answers = 6,
    Authorities = 8,
    Additional = 10,
}

impl Section {
    /// Those that hold records, in the order in which they come.
    pub(super) const RECORDS: [Self; 3] = [Self::Answers, Self::Authorities, Self::Additional];

    /// How many entries the header says there are; without a whole header, none.
    pub(super) fn count(self, message: &[u8]) -> u16 {
        let at = self as usize;
        match message.get(at..at + 2) {
            Some(&[high, low]) => u16::from_be_bytes([high, low]),
            _ => 0,
        }
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question<'a> {
    /// The name, as labels. It begins right behind the header and has no pointers.
    pub(super) name: &'a [u8],
    /// Type and class.
    pub(super) tail: &'a [u8],
    /// All of it.
    pub(super) bytes: &'a [u8],
}

impl<'a> Question<'a> {
    /// The one question of a message, when there is one, and it can be read.
    pub(super) fn only(message: &'a [u8]) -> Option<Self> {
        if Section::Questions.count(message) != 1 {
            return None;
        }
        Reader::behind_header(message)
            .question()
            .filter(|question| question.name.len() <= LARGEST_NAME)
    }

    /// What kind of record is asked for.
    pub(super) fn kind(&self) -> u16 {
        u16::from_be_bytes([self.tail[0], self.tail[1]])
    }
}

/// A record, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// Whether its name is the root.
    pub(super) root: bool,
    pub(super) kind: u16,
    /// Class and TTL, which mean something else in EDNS.
    pub(super) class: u16,
    pub(super) ttl: u32,
    /// Where the message has the TTL.
    pub(super) ttl_at: usize,
    pub(super) data: &'a [u8],
}

impl Record<'_> {
    /// How long an absence may be remembered, when this is an SOA record: its last number.
    pub(super) fn minimum(&self) -> Option<u32> {
        let numbers = self.data.last_chunk::<4>();
        numbers
            .filter(|_| self.kind == SOA && self.data.len() >= SMALLEST_SOA)
            .map(|bytes| u32::from_be_bytes(*bytes))
    }
}

/// Goes through bytes. Every read takes some of them, or fails.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn behind_header(message: &'a [u8]) -> Self {
        Self {
            bytes: message,
            at: HEADER,
        }
    }

    /// Whether everything has been read.
    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        let bytes = self.take(2)?.first_chunk()?;
        Some(u16::from_be_bytes(*bytes))
    }

    /// The bytes of a name that begins here; what a pointer points to is not looked at.
    fn name(&mut self, pointers: bool) -> Option<&'a [u8]> {
        let start = self.at;
        loop {
            match self.take(1)?[0] {
                0 => break,
                length @ 1..=LARGEST_LABEL => self.take(length.into())?,
                length if length & POINTER == POINTER && pointers => {
                    self.take(1)?;
                    break;
                }
                _ => return None,
            };
        }
        self.bytes.get(start..self.at)
    }

    /// A pointer in a question could point to the header or itself only.
    pub(super) fn question(&mut self) -> Option<Question<'a>> {
        let start = self.at;
        let name = self.name(false)?;
        let tail = self.take(4)?;
        let bytes = self.bytes.get(start..self.at)?;
        Some(Question { name, tail, bytes })
    }

    /// Goes past a question whose name may have a pointer.
    pub(super) fn skip_question(&mut self) -> Option<()> {
        self.name(true)?;
        self.take(4).map(drop)
    }

    /// The records of a message whose questions have been read; `None` stands for one that cannot
    /// be read.
    pub(super) fn records(mut self, message: &[u8]) -> impl Iterator<Item = Option<Record<'a>>> {
        let sections = Section::RECORDS.into_iter();
        let count: u32 = sections.map(|one| u32::from(one.count(message))).sum();
        (0..count).map(move |_| self.record())
    }

    pub(super) fn record(&mut self) -> Option<Record<'a>> {
        let root = self.name(true)? == [0];
        let kind = self.number()?;
        let class = self.number()?;
        let ttl_at = self.at;
        let ttl = self.take(4)?.first_chunk()?;
        let length = self.number()?;
        Some(Record {
            root,
            kind,
            class,
            ttl: u32::from_be_bytes(*ttl),
            ttl_at,
            data: self.take(length.into())?,
        })
    }

    /// Code and value of an option in the data of an EDNS record.
    pub(super) fn option(&mut self) -> Option<(u16, &'a [u8])> {
        let code = self.number()?;
        let length = self.number()?;
        Some((code, self.take(length.into())?))
    }
}
