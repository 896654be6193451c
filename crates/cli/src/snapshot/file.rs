//! The file of a snapshot from the outside: whether it is whole, and how much of what it holds. Rows are
//! sealed with the key of a server; they are counted and not read. Snapshots of Consul are told apart.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 16] = b"legate snapshot\n";
/// How an archive with gzip begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The longest part of a file, in bytes.
const LONGEST: u32 = 64 << 20;
/// The number of bytes of a checksum.
const CHECKSUM: usize = 32;

/// The kinds of records as Consul names them, by the number of the table that has them.
const NAMES: [(u8, &str); 22] = [
    (1, "Register"),
    (2, "Register"),
    (3, "Register"),
    (4, "ConfigEntry"),
    (5, "ACLToken"),
    (6, "ACLAuthMethod"),
    (7, "ACLBindingRule"),
    (8, "ConnectCA"),
    (9, "SystemMetadata"),
    (10, "ServiceVirtualIP"),
    (11, "FreeVirtualIP"),
    (12, "FreeVirtualIP"),
    (13, "ACLPolicy"),
    (14, "ACLRole"),
    (15, "Register"),
    (16, "PreparedQuery"),
    (17, "KVS"),
    (18, "Session"),
    (19, "CoordinateBatchUpdate"),
    (20, "ConnectCA"),
    (21, "ConnectCA"),
    (22, "ConnectCAConfig"),
];

/// What a file holds.
#[derive(Debug)]
pub(super) struct Contents {
    format: u64,
    index: u64,
    /// Number and bytes of the records of each kind.
    kinds: BTreeMap<String, (u64, u64)>,
    /// Of all records, in bytes.
    pub(super) size: u64,
}

impl Contents {
    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// When it is no snapshot, or not a whole one.
    pub(super) fn read(file: impl Read) -> anyhow::Result<Contents> {
        let mut file = Summed {
            inner: BufReader::new(file),
            sum: Sha256::new(),
        };
        let mut magic = [0; MAGIC.len()];
        file.exactly(&mut magic)?;
        if magic.starts_with(&GZIP) {
            bail!("it is a snapshot of Consul, which servers of Legate do not read");
        }
        ensure!(magic == *MAGIC, "it does not begin as a snapshot does");
        let about: Value =
            serde_json::from_slice(&file.part()?).context("its header cannot be read")?;
        let number = |field: &str| about[field].as_u64().context("its header is not whole");
        let mut contents = Contents {
            format: number("format")?,
            index: number("index")?,
            kinds: BTreeMap::new(),
            size: 0,
        };
        for _ in 0..number("rows")? {
            let (key, value) = (file.part()?, file.part()?);
            let size = (key.len() + value.len()) as u64;
            let table = key.first().copied().unwrap_or_default();
            let name = NAMES.iter().find(|(number, _)| *number == table);
            let name = name.map_or_else(|| format!("Table {table}"), |(_, name)| (*name).into());
            let kind = contents.kinds.entry(name).or_default();
            *kind = (kind.0 + 1, kind.1 + size);
            contents.size += size;
        }
        let sum = file.sum.finalize_reset();
        let mut expected = [0; CHECKSUM];
        file.exactly(&mut expected)?;
        ensure!(sum.as_slice() == expected, "its checksum is another one");
        Ok(contents)
    }

    /// What there is to say about the whole.
    pub(super) fn meta(&self) -> Value {
        json!({
            "ID": format!("legate-{}", self.index),
            "Size": self.size,
            "Index": self.index,
            "Term": 0,
            "Version": self.format,
        })
    }

    /// The kinds of records, the largest first.
    pub(super) fn stats(&self) -> Vec<Value> {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(name, (_, size))| (std::cmp::Reverse(*size), (*name).clone()));
        let stat = |(name, (count, size)): (&String, &(u64, u64))| json!({"Name": name, "Sum": size, "Count": count});
        kinds.into_iter().map(stat).collect()
    }
}

/// A file with the checksum of what was read of it.
struct Summed<R> {
    inner: BufReader<R>,
    sum: Sha256,
}

impl<R: Read> Summed<R> {
    fn exactly(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.inner.read_exact(bytes).context("it ends too early")?;
        self.sum.update(bytes);
        Ok(())
    }

    /// A length, and as many bytes.
    fn part(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.exactly(&mut length)?;
        let length = u32::from_be_bytes(length);
        ensure!(
            length <= LONGEST,
            "a part of it is longer than {LONGEST} bytes"
        );
        let mut bytes = vec![0; length as usize];
        self.exactly(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(rows: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        let about = json!({"format": 6, "proof": [], "index": 7, "rows": rows.len()}).to_string();
        let mut parts = vec![about.as_bytes()];
        parts.extend(rows.iter().flat_map(|(key, value)| [*key, *value]));
        for part in parts {
            let length = u32::try_from(part.len()).unwrap();
            file.extend(length.to_be_bytes());
            file.extend(part);
        }
        let sum = Sha256::digest(&file);
        file.extend(sum);
        file
    }

    #[test]
    fn records_are_counted_by_kind() {
        let file = file(&[(b"\x04a", b"xxxx"), (b"\x01n", b"y"), (b"\x02n", b"y")]);
        let contents = Contents::read(file.as_slice()).unwrap();
        assert_eq!((contents.index, contents.size), (7, 12));
        let stats = contents.stats();
        assert_eq!(
            stats[0],
            json!({"Name": "ConfigEntry", "Sum": 6, "Count": 1})
        );
        assert_eq!(stats[1], json!({"Name": "Register", "Sum": 6, "Count": 2}));
    }

    #[test]
    fn what_is_not_whole_is_no_snapshot() {
        let mut changed = file(&[(b"\x04a", b"x")]);
        let length = changed.len();
        assert!(Contents::read(&changed[..length - 1]).is_err());
        changed[length - 40] ^= 1;
        assert!(Contents::read(changed.as_slice()).is_err());
        let consul = [&GZIP[..], &[0; 30]].concat();
        let error = Contents::read(consul.as_slice()).unwrap_err();
        assert!(error.to_string().contains("snapshot of Consul"));
    }
}
