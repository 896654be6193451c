//! The messages of two servers that tell each other which servers they know: the length in bytes, four bytes of it,
//! and the descriptions as JSON. The first one is the sender's own.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::membership::Description;

/// The longest message in bytes.
const LONGEST: usize = 1024 * 1024;

fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Sends what this server knows.
pub(crate) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    list: &[Description],
) -> io::Result<()> {
    let body = serde_json::to_vec(list)?;
    let length = u32::try_from(body.len()).map_err(invalid)?;
    let mut message = length.to_be_bytes().to_vec();
    message.extend(body);
    stream.write_all(&message).await?;
    stream.flush().await
}

/// Receives what another server knows; `None` if it has closed the connection. `datacenter` is that of its
/// certificate: a server of another one cannot speak for it.
pub(crate) async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    datacenter: &str,
) -> io::Result<Option<Vec<Description>>> {
    let length = match stream.read_u32().await {
        Ok(length) => usize::try_from(length).map_err(invalid)?,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > LONGEST {
        return Err(invalid(format!("a message of {length} bytes is too long")));
    }
    // Not allocated at once: a client could announce much and send nothing.
    let mut body = Vec::new();
    let mut limited = stream.take(u64::try_from(length).map_err(invalid)?);
    if limited.read_to_end(&mut body).await? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let list: Vec<Description> = serde_json::from_slice(&body).map_err(invalid)?;
    let Some(own) = list.first() else {
        return Err(invalid("a server did not describe itself"));
    };
    if !own.datacenter.eq_ignore_ascii_case(datacenter) {
        let (claimed, name) = (&own.datacenter, &own.node);
        return Err(invalid(format!(
            "{name} says that it is in datacenter {claimed:?}, but its certificate is of {datacenter:?}: create it \
             with -dc {claimed}"
        )));
    }
    Ok(Some(list))
}
