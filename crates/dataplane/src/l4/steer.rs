//! Which of the sockets of one address gets new connections: a program of one instruction in the kernel.
//!
//! Sockets of one user that listen at one address with `SO_REUSEPORT` are a group, in the order in which they began to
//! listen. Of a closed one the last of the group takes the place. The program belongs to the group, whichever process
//! attached it. It needs no privilege.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use nix::libc::{BPF_K, BPF_RET, sock_filter, sock_fprog};
use nix::sys::socket::{setsockopt, sockopt};

use super::listen;

/// An index that no group has: the kernel spreads connections over all of its sockets.
pub(super) const SPREAD: u32 = 65_535;

/// Connections that the test makes with each program.
const PROBES: usize = 8;

/// Gives all new connections of the group of `member` to its socket with this index.
///
/// # Errors
/// When the kernel has no such program, or the socket does not listen.
pub(super) fn steer(member: &impl AsFd, index: u32) -> io::Result<()> {
    let mut instruction = sock_filter {
        code: u16::try_from(BPF_RET | BPF_K).unwrap_or_default(),
        jt: 0,
        jf: 0,
        k: index,
    };
    let program = sock_fprog {
        len: 1,
        filter: &raw mut instruction,
    };
    Ok(setsockopt(member, sockopt::AttachReusePortCbpf, &program)?)
}

/// Tries it with sockets of its own: some kernels accept the program and ignore it. Blocks for some milliseconds.
///
/// # Errors
/// When it does not work here, with the reason.
pub(crate) fn can_steer() -> Result<(), String> {
    let failed = |error: io::Error| format!("this kernel steers no connections: {error}");
    // An address of its own: the kernel may give two processes of a user the same port, and so the same group.
    let [a, b, c] = rand::random();
    let first = listener(([127, a, b, c], 0).into()).map_err(failed)?;
    let address = first.local_addr().map_err(failed)?;
    let second = listener(address).map_err(failed)?;
    for (index, expected) in [(1, &second), (0, &first)] {
        steer(&first, index).map_err(failed)?;
        for _ in 0..PROBES {
            let stream = TcpStream::connect(address).map_err(failed)?;
            let accepted = expected.accept();
            drop(stream);
            accepted.map_err(|error| match error.kind() {
                ErrorKind::WouldBlock => {
                    "this kernel accepts a program for SO_REUSEPORT and ignores it".to_owned()
                }
                _ => failed(error),
            })?;
        }
    }
    Ok(())
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = listen::bind_tcp(address)?;
    socket.listen(i32::try_from(2 * PROBES).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// How many sockets of this network namespace listen at an address. Blocks while the kernel lists all of its sockets.
///
/// # Errors
/// When the list cannot be read.
pub(super) fn listening(address: SocketAddr) -> io::Result<usize> {
    let (table, ip) = match address.ip() {
        IpAddr::V4(ip) => ("/proc/net/tcp", words(&ip.octets())),
        IpAddr::V6(ip) => ("/proc/net/tcp6", words(&ip.octets())),
    };
    let wanted = format!("{ip}:{:04X}", address.port());
    let mut count = 0;
    for line in BufReader::new(std::fs::File::open(table)?).lines().skip(1) {
        let line = line?;
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        count += usize::from(local == Some(&wanted) && state == Some("0A"));
    }
    Ok(count)
}

/// An address as the kernel prints it: words of the machine, in hexadecimal.
fn words(octets: &[u8]) -> String {
    let words = octets.chunks_exact(4).map(|word| {
        let word = word.try_into().map(u32::from_ne_bytes);
        format!("{:08X}", word.unwrap_or_default())
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_where_they_are_steered() {
        can_steer().unwrap();
    }

    #[test]
    fn listening_sockets_are_counted() {
        let [a, b, c] = rand::random();
        let first = listener(([127, a, b, c], 0).into()).unwrap();
        let address = first.local_addr().unwrap();
        assert_eq!(listening(address).unwrap(), 1);
        let _second = listener(address).unwrap();
        assert_eq!(listening(address).unwrap(), 2);
    }

    #[test]
    fn addresses_are_words_of_the_machine() {
        let word = |word: u32| format!("{:08X}", u32::from_ne_bytes(word.to_be_bytes()));
        assert_eq!(words(&[127, 0, 0, 1]), word(0x7f00_0001));
        let mut ip = [0; 16];
        ip[15] = 1;
        assert_eq!(words(&ip), [0, 0, 0, 1].map(word).concat());
    }
}
