//! The messages by which two servers exchange their lists of servers: the length in bytes, four bytes of it, and the
//! descriptions as JSON. The first one is the sender's own.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::membership::Description;

/// The longest message in bytes.
pub(crate) const LONGEST: usize = 4 * 1024 * 1024;

fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Sends the list of this server.
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

/// Receives the list of another server; `None` if it has closed the connection. `datacenters` are those of its
/// certificate: it cannot be in another one.
pub(crate) async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    datacenters: &[String],
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
    let is_own = |datacenter: &String| datacenter.eq_ignore_ascii_case(&own.datacenter);
    if !datacenters.iter().any(is_own) {
        let (claimed, name) = (&own.datacenter, &own.node);
        return Err(invalid(format!(
            "{name} says that it is in datacenter {claimed:?}, but its certificate is of {datacenters:?}: create it \
             with -dc {claimed}"
        )));
    }
    Ok(Some(list))
}
