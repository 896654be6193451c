//! Counts the client connections of a process from the kernel's tables. Envoy's admin interface
//! belongs to the newest epoch, so it cannot report the connections of a draining parent. Reads kernel
//! files and does not affect the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Socket states in the kernel's table.
const ESTABLISHED: u8 = 0x01;
const LISTEN: u8 = 0x0A;

/// The established TCP connections of the process `pid` to ports with a listener in its network
/// namespace, by port. The listener may be this process or another one that took the port over.
/// Connections to an admin interface are included; those redirected without a change of their address
/// (TPROXY) are not. Connections that are opened or closed concurrently may be missing.
///
/// Blocks while the kernel generates the tables of the whole network namespace, tens of milliseconds
/// even if they are short. Needs 16 bytes for each open socket of the process.
///
/// # Errors
/// When the process does not exist, or cannot be inspected because it belongs to another user or its
/// program file has capabilities. The count is then unknown.
/// program file has capabilities. The count is unknown then.
pub fn connections_by_port(pid: u32) -> io::Result<BTreeMap<u16, u64>> {
    count(&Path::new("/proc").join(pid.to_string()))
}

fn count(process: &Path) -> io::Result<BTreeMap<u16, u64>> {
    let mut sockets = sockets(&process.join("fd"))?;
    let mut listening = BTreeSet::new();
    for (table, required) in [("net/tcp", true), ("net/tcp6", false)] {
        let file = match File::open(process.join(table)) {
            // The table does not exist without IPv6.
            Err(error) if !required && error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let unknown = || {
            let reason = format!("{table}: unknown layout");
            io::Error::new(io::ErrorKind::InvalidData, reason)
        };
        // Skip the heading.
        for line in BufReader::new(file).lines().skip(1) {
            let (port, state, inode) = row(&line?).ok_or_else(unknown)?;
            if state == LISTEN {
                listening.insert(port);
            } else if state == ESTABLISHED
                && let Ok(index) = sockets.binary_search_by_key(&inode, |(inode, _)| *inode)
            {
                // Counted once each: while other connections change, the kernel may list some lines
                // twice.
                sockets[index].1 = Some(port);
            }
        }
    }
    let mut found = BTreeMap::new();
    // The kernel never assigns a listening port to an outgoing connection.
    let ports = sockets.into_iter().filter_map(|(_, port)| port);
    for port in ports.filter(|port| listening.contains(port)) {
        *found.entry(port).or_default() += 1;
    }
    Ok(found)
}

/// The inodes of a process's open sockets, sorted, each with a place for its port.
fn sockets(folder: &Path) -> io::Result<Vec<(u64, Option<u16>)>> {
    let mut sockets = Vec::new();
    for entry in fs::read_dir(folder)? {
        let target = match fs::read_link(entry?.path()) {
            Ok(target) => target,
            // Closed concurrently.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let number: Option<u64> = target
            .to_str()
            .and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']'))
            .and_then(|number| number.parse().ok());
        sockets.extend(number.map(|number| (number, None)));
    }
    sockets.sort_unstable();
    sockets.dedup();
    Ok(sockets)
}

/// Local port, state and inode from a line of the kernel's table: slot, local address, remote address,
/// state; the inode is the tenth field.
fn row(line: &str) -> Option<(u16, u8, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let port = fields.nth(1)?.rsplit_once(':')?.1;
    let state = fields.nth(1)?;
    Some((
        u16::from_str_radix(port, 16).ok()?,
        u8::from_str_radix(state, 16).ok()?,
        fields.nth(5)?.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// The number of connections to a port of this process.
    fn own(port: u16) -> u64 {
        let found = connections_by_port(std::process::id()).unwrap();
        found.get(&port).copied().unwrap_or_default()
    }

    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn connections_that_came_in_are_counted_until_they_close() {
        let (one, other) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            TcpListener::bind("127.0.0.1:0").unwrap(),
        );
        let (first, second) = (
            one.local_addr().unwrap().port(),
            other.local_addr().unwrap().port(),
        );
        assert_eq!((own(first), own(second)), (0, 0));
        let (client, server) = pair(&one);
        let _more = [pair(&one), pair(&other)];
        assert_eq!((own(first), own(second)), (2, 1));
        // Their other ends belong to this process as well, but are outgoing.
        assert_eq!(own(client.local_addr().unwrap().port()), 0);
        drop((client, server));
        assert_eq!(own(first), 1);
    }

    #[test]
    fn a_connection_counts_once_while_other_sockets_come_and_go() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let _held = pair(&listener);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // More than the kernel returns in one read.
                    let others: Vec<_> = (0..60)
                        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
                        .collect();
                    drop(others);
                }
            });
            let counts: Vec<u64> = (0..40).map(|_| own(port)).collect();
            done.store(true, Ordering::Relaxed);
            assert!(counts.iter().all(|count| *count == 1), "{counts:?}");
        });
    }

    #[test]
    fn ipv4_clients_of_an_ipv6_listener_count() {
        let Ok(listener) = TcpListener::bind("[::]:0") else {
            return;
        };
        let port = listener.local_addr().unwrap().port();
        let _clients = [
            TcpStream::connect(("127.0.0.1", port)).unwrap(),
            TcpStream::connect(("::1", port)).unwrap(),
        ];
        let _servers = [listener.accept().unwrap(), listener.accept().unwrap()];
        assert_eq!(own(port), 2);
    }

    #[test]
    fn a_connection_of_another_process_is_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let _held = pair(&listener);
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let theirs = connections_by_port(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(theirs.unwrap(), BTreeMap::new());
        assert_eq!(own(port), 1);
    }

    #[test]
    fn a_process_that_cannot_be_inspected_is_an_error() {
        let gone = connections_by_port(u32::MAX).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        // In a container, process 1 may be one of this user's.
        let owner = fs::metadata("/proc/1").unwrap().uid();
        let user = rustix::process::geteuid();
        if !user.is_root() && owner != user.as_raw() {
            let foreign = connections_by_port(1).unwrap_err();
            assert_eq!(foreign.kind(), io::ErrorKind::PermissionDenied);
        }
    }

    const HEADING: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    /// A row in the kernel's format.
    fn written(address: &str, port: u16, state: u8, inode: u64) -> String {
        format!(
            "   0: {address}:{port:04X} {address}:C350 {state:02X} 00000000:00000000 \
             00:00000000 00000000  1000        0 {inode} 1 00000000d3934b41 100 0 0 10 0\n"
        )
    }

    fn process(tcp: &str, tcp6: Option<&str>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in ["fd", "net"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let targets = [
            "/dev/null",
            "socket:[7]",
            "pipe:[8]",
            "socket:[9]",
            "socket:[10]",
        ];
        for (number, target) in targets.iter().enumerate() {
            symlink(target, folder.path().join("fd").join(number.to_string())).unwrap();
        }
        fs::write(folder.path().join("net/tcp"), tcp).unwrap();
        if let Some(tcp6) = tcp6 {
            fs::write(folder.path().join("net/tcp6"), tcp6).unwrap();
        }
        folder
    }

    #[test]
    fn only_established_connections_of_the_process_to_listening_ports_count() {
        let (v4, v6) = ("0100007F", "0000000000000000FFFF00000100007F");
        let tcp = [
            HEADING,
            &written(v4, 80, LISTEN, 1),
            &written(v4, 80, ESTABLISHED, 7),
            &written(v4, 80, ESTABLISHED, 7),
            &written(v4, 80, ESTABLISHED, 8),
            &written(v4, 80, 0x08, 9),
            &written(v4, 81, ESTABLISHED, 9),
            &written(v4, 65535, ESTABLISHED, 9),
        ];
        let tcp6 = [
            HEADING,
            &written(v6, 65535, LISTEN, 2),
            &written(v6, 80, 1, 10),
        ];
        let both = process(&tcp.concat(), Some(&tcp6.concat()));
        let found = count(both.path()).unwrap();
        assert_eq!(found, BTreeMap::from([(80, 2), (65535, 1)]));
        let without_ipv6 = process(&tcp.concat(), None);
        assert_eq!(
            count(without_ipv6.path()).unwrap(),
            BTreeMap::from([(80, 1)])
        );
    }

    #[test]
    fn a_table_that_looks_different_is_an_error() {
        let long = "x".repeat(5_000);
        for line in ["nonsense\n", &long, "\n"] {
            let process = process(&format!("{HEADING}{line}"), None);
            let error = count(process.path()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{line:.20}");
        }
        let process = process(HEADING, None);
        fs::remove_file(process.path().join("net/tcp")).unwrap();
        assert!(count(process.path()).is_err());
    }
}
