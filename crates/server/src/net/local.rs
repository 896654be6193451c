//! UNIX sockets.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};

use legate_runtime::net::accept;
use nix::unistd::{Group, User};
use tokio::net::{UnixListener, UnixStream};

use crate::operations::UnixSocket;

/// Listens on a UNIX socket. An existing socket is taken for a leftover of a previous process, and replaced.
///
/// # Errors
/// The system's error, or the user or group that does not exist.
pub(crate) fn listen_local(socket: &UnixSocket) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(&socket.path) {
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(&socket.path)?,
        Ok(_) => {
            let reason = "the path exists and is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let (user, group) = owner(socket)?;
    let listener = UnixListener::bind(&socket.path)?;
    if let Some(mode) = socket.mode {
        std::fs::set_permissions(&socket.path, std::fs::Permissions::from_mode(mode))?;
    }
    if user.is_some() || group.is_some() {
        chown(&socket.path, user, group)?;
    }
    Ok(listener)
}

/// Resolves names of users and groups; numeric ids are used verbatim.
fn owner(socket: &UnixSocket) -> io::Result<(Option<u32>, Option<u32>)> {
    let missing = |what: &str, name: &str| {
        let reason = format!("there is no {what} {name:?}");
        io::Error::new(io::ErrorKind::NotFound, reason)
    };
    let user = socket.user.as_deref().map(|name| match name.parse() {
        Ok(number) => Ok(number),
        Err(_) => {
            let user = User::from_name(name)?;
            user.map(|user| user.uid.as_raw())
                .ok_or_else(|| missing("user", name))
        }
    });
    let group = socket.group.as_deref().map(|name| match name.parse() {
        Ok(number) => Ok(number),
        Err(_) => {
            let group = Group::from_name(name)?;
            group
                .map(|group| group.gid.as_raw())
                .ok_or_else(|| missing("group", name))
        }
    });
    Ok((user.transpose()?, group.transpose()?))
}

/// Accepts the next client. Running out of file descriptors is temporary and must not end the listener.
pub(crate) async fn accept_local(listener: &UnixListener) -> UnixStream {
    accept("socket", || listener.accept()).await.0
}
