//! The gRPC codec: Protocol Buffers in buffers of the size of each message.
//!
//! Tonic's own codec reserves 8 KiB for each direction of each call. A server holds a stream for
//! every proxy, most of which are idle most of the time.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder};

/// The initial buffer of a call in bytes, sufficient for most requests.
const AHEAD: usize = 512;

/// Messages that are ready at the same time are sent together up to this many bytes. Tonic's
/// default.
const TOGETHER: usize = 32 * 1024;

/// The codec of all services in this crate.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Exact<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        Exact(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(buffers())
    }
}

fn buffers() -> BufferSettings {
    BufferSettings::new(AHEAD, TOGETHER)
}

/// An encoder that reserves the exact size of a message first.
#[derive(Debug)]
pub struct Exact<T>(PhantomData<T>);

impl<T: Message> Encoder for Exact<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(message.encoded_len());
        let encoded = message.encode(buffer);
        encoded.map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}
