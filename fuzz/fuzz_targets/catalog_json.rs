//! Bodies of write requests: decoding any JSON results in a value or an error. A valid value stays the same
//! when it is encoded and decoded again, as by a server that returns it and a client that sends it back.
//!
//! Input: one byte for the type, then the body.
#![no_main]

use std::fmt::Debug;

use legate_model::json::{UnknownFields, from_slice};
use legate_model::{ConfigEntry, DeregisterRequest, RegisterRequest, ServiceDefinition};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

fuzz_target!(|input: &[u8]| {
    let Some((kind, body)) = input.split_first() else {
        return;
    };
    match kind % 4 {
        0 => {
            if let Some(request) = decode::<RegisterRequest>(body)
                && request.validate().is_ok()
            {
                same_when_read_again(&request);
                drop(request.into_parts("dc1"));
            }
        }
        1 => {
            if let Some(request) = decode::<DeregisterRequest>(body)
                && request.validate().is_ok()
            {
                same_when_read_again(&request);
            }
        }
        2 => {
            if let Some(definition) = decode::<ServiceDefinition>(body)
                && definition.validate().is_ok()
            {
                same_when_read_again(&definition);
            }
        }
        _ => {
            if let Some(mut entry) = decode::<ConfigEntry>(body)
                && entry.validate().is_ok()
            {
                same_when_read_again(&entry);
                entry.normalise();
                let once = entry.clone();
                entry.normalise();
                assert_eq!(entry, once, "what is stored is not in its final form");
                assert!(entry.validate().is_ok(), "what is stored is not valid");
                same_when_read_again(&entry);
            }
        }
    }
});

/// Strict decoding accepts a subset of what lenient decoding accepts, with the same result.
fn decode<T: DeserializeOwned + PartialEq + Debug>(body: &[u8]) -> Option<T> {
    let lenient = from_slice::<T>(body, UnknownFields::Ignore);
    let strict = from_slice::<T>(body, UnknownFields::Refuse);
    if let Ok(strict) = strict {
        assert_eq!(
            Some(&strict),
            lenient.as_ref().ok(),
            "strict is not lenient"
        );
    }
    lenient.ok()
}

fn same_when_read_again<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let text = serde_json::to_vec(value).expect("a value can be written");
    match from_slice::<T>(&text, UnknownFields::Refuse) {
        Ok(read) => assert_eq!(&read, value, "{}", text.escape_ascii()),
        Err(error) => panic!("{error}: {}", text.escape_ascii()),
    }
}
