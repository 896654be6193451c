//! Inspects a snapshot file: verifies that it is complete, and counts its records. Rows are encrypted with
//! a server's key and cannot be read. For a snapshot of Consul, an archive, it verifies the checksums and
//! reads the metadata.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};

use anyhow::{Context, bail, ensure};
use flate2::read::GzDecoder;
use legate_store::survey_snapshot;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The magic number of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The maximum size of the metadata in an archive, in bytes.
const LONGEST: u64 = 64 << 20;

/// Consul's names of record types, by table number. It has none for gateways of clusters.
const NAMES: [(u8, &str); 37] = [
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
    (23, "Autopilot"),
    (24, "Register"),
    (27, "Namespace"),
    (28, "Partition"),
    (29, "KVS"),
    (30, "Peering"),
    (31, "Gateway"),
    (32, "Gateway"),
    (33, "Gateway"),
    (34, "Gateway"),
    (35, "Gateway"),
    (36, "Replication"),
    (37, "FederationState"),
    (38, "PeeringStream"),
    (39, "PeeringTrustBundle"),
];

/// The content of a snapshot.
#[derive(Debug)]
pub(super) struct Contents {
    /// Metadata, with Consul's field names.
    meta: Value,
    /// Number and size in bytes of the records of each type.
    kinds: BTreeMap<String, (u64, u64)>,
    /// Size of all records in bytes.
    pub(super) size: u64,
}

impl Contents {
    /// Reads a complete file.
    ///
    /// # Errors
    ///
    /// If it is not a snapshot, or incomplete.
    pub(super) fn read(file: impl Read) -> anyhow::Result<Contents> {
        let mut file = BufReader::new(file);
        if file
            .fill_buf()
            .context("cannot be read")?
            .starts_with(&GZIP)
        {
            return of_consul(file);
        }
        let (mut kinds, mut size) = (BTreeMap::<String, (u64, u64)>::new(), 0);
        let about = survey_snapshot(file, |table, bytes| {
            let name = NAMES.iter().find(|(number, _)| *number == table);
            let name = name.map_or_else(|| format!("Table {table}"), |(_, name)| (*name).into());
            let kind = kinds.entry(name).or_default();
            *kind = (kind.0 + 1, kind.1 + bytes);
            size += bytes;
        })?;
        Ok(Contents {
            meta: json!({
                "ID": format!("legate-{}", about.index),
                "Size": size,
                "Index": about.index,
                "Term": 0,
                "Version": about.format,
            }),
            kinds,
            size,
        })
    }

    /// The metadata.
    pub(super) fn meta(&self) -> Value {
        self.meta.clone()
    }

    /// The record types, largest first.
    pub(super) fn stats(&self) -> Vec<Value> {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(name, (_, size))| (std::cmp::Reverse(*size), (*name).clone()));
        let stat = |(name, (count, size)): (&String, &(u64, u64))| json!({"Name": name, "Sum": size, "Count": count});
        kinds.into_iter().map(stat).collect()
    }
}

/// Reads Consul's archive: `meta.json`, `state.bin`, and `SHA256SUMS` with their checksums.
fn of_consul(file: impl Read) -> anyhow::Result<Contents> {
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let (mut meta, mut sums) = (Value::Null, String::new());
    let mut found = BTreeMap::new();
    let mut size = 0;
    for entry in archive.entries().context("it is not an archive")? {
        let entry = entry.context("it is incomplete")?;
        let name = entry.path().context("it is incomplete")?;
        let name = name.to_string_lossy().into_owned();
        let mut entry = Summed {
            inner: BufReader::new(entry),
            sum: Sha256::new(),
        };
        match name.as_str() {
            "state.bin" => size = entry.rest(&mut std::io::sink(), u64::MAX)?,
            "meta.json" | "SHA256SUMS" => {
                let mut content = Vec::new();
                entry.rest(&mut content, LONGEST)?;
                match name.as_str() {
                    "meta.json" => {
                        meta = serde_json::from_slice(&content).context("meta.json")?;
                    }
                    _ => sums = String::from_utf8(content).context("SHA256SUMS")?,
                }
            }
            other => bail!("it has an unexpected file {other:?}"),
        }
        let sum = entry.sum.finalize();
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        found.insert(name, sum);
    }
    for name in ["meta.json", "state.bin"] {
        let expected = sums.lines().filter_map(|line| line.split_once("  "));
        let expected = expected
            .filter(|(_, of)| *of == name)
            .map(|(sum, _)| sum)
            .next_back();
        let expected = expected.with_context(|| format!("it has no checksum of {name}"))?;
        ensure!(
            found.get(name).is_some_and(|sum| sum == expected),
            "the checksum of {name} does not match"
        );
    }
    let fields = ["ID", "Size", "Index", "Term", "Version"];
    let meta = fields.map(|field| (field.to_owned(), meta[field].clone()));
    Ok(Contents {
        meta: meta.into_iter().collect(),
        kinds: BTreeMap::new(),
        size,
    })
}

/// A reader that computes the checksum of what was read.
struct Summed<R> {
    inner: BufReader<R>,
    sum: Sha256,
}

impl<R: Read> Summed<R> {
    /// Copies the rest, at most `limit` bytes; returns its size.
    fn rest(&mut self, to: &mut impl Write, limit: u64) -> anyhow::Result<u64> {
        let mut size = 0;
        loop {
            let piece = self.inner.fill_buf().context("it is incomplete")?;
            if piece.is_empty() {
                return Ok(size);
            }
            size += piece.len() as u64;
            ensure!(size <= limit, "a part of it is longer than {limit} bytes");
            self.sum.update(piece);
            to.write_all(piece)?;
            let used = piece.len();
            self.inner.consume(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(rows: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut file = b"legate snapshot\n".to_vec();
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
        assert_eq!((&contents.meta["Index"], contents.size), (&json!(7), 12));
        let stats = contents.stats();
        assert_eq!(
            stats[0],
            json!({"Name": "ConfigEntry", "Sum": 6, "Count": 1})
        );
        assert_eq!(stats[1], json!({"Name": "Register", "Sum": 6, "Count": 2}));
    }

    #[test]
    fn every_table_that_is_stored_has_a_name() {
        for table in legate_store::stored_tables() {
            assert!(NAMES.iter().any(|(number, _)| *number == table), "{table}");
        }
    }

    #[test]
    fn an_incomplete_file_is_refused() {
        let mut changed = file(&[(b"\x04a", b"x")]);
        let length = changed.len();
        assert!(Contents::read(&changed[..length - 1]).is_err());
        changed[length - 40] ^= 1;
        assert!(Contents::read(changed.as_slice()).is_err());
    }

    fn archive(state: &[u8]) -> Vec<u8> {
        let meta = br#"{"ID": "2-3-4", "Index": 3, "Term": 2, "Version": 1, "Size": 5}"#;
        let hex = |content: &[u8]| -> String {
            Sha256::digest(content)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        };
        let sums = format!("{}  meta.json\n{}  state.bin\n", hex(meta), hex(b"state"));
        let compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut archive = tar::Builder::new(compressed);
        for (name, content) in [
            ("meta.json", &meta[..]),
            ("state.bin", state),
            ("SHA256SUMS", sums.as_bytes()),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append_data(&mut header, name, content).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn checksums_of_consuls_archives_are_verified() {
        let contents = Contents::read(archive(b"state").as_slice()).unwrap();
        assert_eq!(contents.meta()["ID"], "2-3-4");
        assert_eq!(contents.size, 5);
        let error = Contents::read(archive(b"other").as_slice()).unwrap_err();
        assert!(error.to_string().contains("state.bin"), "{error}");
    }
}
