//! Reads the fields of an encoded Protocol Buffers message. Copies nothing, and checks every length before it is used.
//!
//! It knows no message: what a field means is decided by its reader.

/// Bytes that are not an encoded message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not an encoded message: {0}")]
pub struct Malformed(&'static str);

/// The value of a field as it is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raw<'a> {
    /// A number of variable length: integers, truth values and enumerations.
    Varint(u64),
    /// Eight bytes: `double` and others.
    Fixed64(u64),
    /// Four bytes: `float` and others.
    Fixed32(u32),
    /// Bytes after their length: strings, bytes, messages and packed lists.
    Bytes(&'a [u8]),
}

/// The fields of a message, in the order of their bytes: number and value.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of the message with these bytes.
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    fn field(&mut self) -> Result<(u32, Raw<'a>), Malformed> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3)
            .ok()
            .filter(|n| (1..1 << 29).contains(n));
        let number = number.ok_or(Malformed("a field has an impossible number"))?;
        let raw = match tag & 7 {
            0 => Raw::Varint(self.varint()?),
            1 => Raw::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let length = usize::try_from(self.varint()?);
                let split = length.ok().and_then(|at| self.rest.split_at_checked(at));
                let (value, rest) = split.ok_or(Malformed("a field ends after its message"))?;
                self.rest = rest;
                Raw::Bytes(value)
            }
            5 => Raw::Fixed32(u32::from_le_bytes(self.fixed()?)),
            // 3 and 4 are groups, which Envoy's messages do not have.
            _ => return Err(Malformed("a field has an unknown wire type")),
        };
        Ok((number, raw))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for (place, byte) in self.rest.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if place == 9 && bits > 1 {
                break;
            }
            value |= bits << (7 * place);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[place + 1..];
                return Ok(value);
            }
        }
        Err(Malformed("a number has no end"))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let split = self.rest.split_first_chunk::<N>();
        let (value, rest) = split.ok_or(Malformed("a field ends after its message"))?;
        self.rest = rest;
        Ok(*value)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Raw<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u32, Raw<'_>)>, Malformed> {
        Fields::new(bytes).collect()
    }

    #[test]
    fn each_wire_type() {
        let bytes = [
            0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x19, 1, 0, 0, 0, 0, 0, 0, 0, 0x25, 2, 0, 0, 0,
        ];
        let fields = [
            (1, Raw::Varint(150)),
            (2, Raw::Bytes(b"hi")),
            (3, Raw::Fixed64(1)),
            (4, Raw::Fixed32(2)),
        ];
        assert_eq!(read(&bytes).unwrap(), fields);
        assert_eq!(read(&[]).unwrap(), []);
    }

    #[test]
    fn the_largest_number() {
        let mut bytes = vec![0x08];
        bytes.extend([0xff; 9]);
        bytes.push(1);
        assert_eq!(read(&bytes).unwrap(), [(1, Raw::Varint(u64::MAX))]);
    }

    #[test]
    fn malformed_bytes() {
        let too_long = [&[0x08][..], &[0xff; 10][..], &[1][..]].concat();
        let too_large = [&[0x08][..], &[0xff; 9][..], &[2][..]].concat();
        let cases: [&[u8]; 9] = [
            &[0x00, 1],             // field 0
            &[0x0b],                // a group
            &[0x0e],                // wire type 6
            &[0x08],                // no value
            &[0x08, 0x80],          // a number without its end
            &[0x12, 3, b'h', b'i'], // one byte too few
            &[0x19, 1, 0, 0],       // too few for eight bytes
            &too_long,
            &too_large,
        ];
        for bytes in cases {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        // A length of nearly 2^64.
        let huge = [&[0x12][..], &[0xff; 9][..], &[1][..]].concat();
        assert!(read(&huge).is_err());
    }
}
