//! Which of the sockets of one address get new connections: a program of one or three instructions in the kernel.
//!
//! Sockets of one user that listen at one address with `SO_REUSEPORT` are a group, in the order in which they began to
//! listen. Of a closed one the last of the group takes the place. The program belongs to the group, whichever process
//! attached it. It needs no privilege.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use nix::libc::{
    BPF_A, BPF_ABS, BPF_ALU, BPF_K, BPF_LD, BPF_MOD, BPF_RET, BPF_W, SKF_AD_OFF, SKF_AD_RANDOM,
    sock_filter, sock_fprog,
};
use nix::sys::socket::{setsockopt, sockopt};

use super::listen;

/// Which sockets of a group get new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Steering {
    /// All, as the kernel spreads them.
    Spread,
    /// The one with this index. Without such a socket it is as [`Steering::Spread`].
    To(u32),
    /// The first ones, so many, at random.
    Among(u32),
}

/// An index that no group has.
const NONE: u32 = 65_535;

/// Connections that the test makes with each program.
const PROBES: usize = 8;

/// Steers the new connections of the group of `member`.
///
/// # Errors
/// When the kernel has no such program, or the socket does not listen.
pub(super) fn steer(member: &impl AsFd, steering: Steering) -> io::Result<()> {
    let one = |code: u32, k: u32| sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt: 0,
        jf: 0,
        k,
    };
    let mut program = match steering {
        Steering::Spread => vec![one(BPF_RET | BPF_K, NONE)],
        Steering::To(index) => vec![one(BPF_RET | BPF_K, index)],
        Steering::Among(count) => vec![
            one(
                BPF_LD | BPF_W | BPF_ABS,
                (SKF_AD_OFF + SKF_AD_RANDOM).cast_unsigned(),
            ),
            one(BPF_ALU | BPF_MOD | BPF_K, count.max(1)),
            one(BPF_RET | BPF_A, 0),
        ],
    };
    let program = sock_fprog {
        len: u16::try_from(program.len()).unwrap_or_default(),
        filter: program.as_mut_ptr(),
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
        steer(&first, Steering::To(index)).map_err(failed)?;
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
    fn connections_go_to_some_of_the_first_sockets() {
        let [a, b, c] = rand::random();
        let first = listener(([127, a, b, c], 0).into()).unwrap();
        let address = first.local_addr().unwrap();
        let others = [listener(address).unwrap(), listener(address).unwrap()];
        steer(&first, Steering::Among(2)).unwrap();
        let mut seen = [0, 0];
        // One of two gets none of 64 in one of 2^63 runs.
        for _ in 0..64 {
            let _stream = TcpStream::connect(address).unwrap();
            match (first.accept(), others[0].accept()) {
                (Ok(_), Err(_)) => seen[0] += 1,
                (Err(_), Ok(_)) => seen[1] += 1,
                accepted => panic!("{accepted:?}"),
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
        assert!(others[1].accept().is_err());
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
