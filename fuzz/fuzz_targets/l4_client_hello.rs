//! The first bytes of a connection: every input has an outcome, more bytes change only an outcome that asks for them,
//! and a request for more can be fulfilled.
//!
//! Input: what a client sends.
#![no_main]

use legate_l4::client_hello::{Inspection, MAX_LENGTH, inspect};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let whole = inspect(input);
    check(&whole, input.len());
    // A part, as if the rest had not arrived yet.
    let part = input.len() / 2;
    match inspect(&input[..part]) {
        // Up to there nothing is decided.
        Inspection::NeedMore(more) if more <= input.len() => {
            check(&Inspection::NeedMore(more), part);
            assert!(matches!(
                inspect(&input[..more - 1]),
                Inspection::NeedMore(_)
            ));
        }
        Inspection::NeedMore(_) => assert!(matches!(whole, Inspection::NeedMore(_))),
        decided => assert_eq!(decided, whole, "more bytes change what was decided"),
    }
});

fn check(outcome: &Inspection, length: usize) {
    match outcome {
        Inspection::NeedMore(more) => assert!(*more > length && *more <= MAX_LENGTH),
        Inspection::Hello(hello) => {
            let name = hello.server_name.as_deref().unwrap_or("a");
            assert!(!name.is_empty() && name.len() <= 255);
            assert!(!name.bytes().any(|byte| byte.is_ascii_uppercase()));
            assert!(hello.alpn.iter().all(|protocol| !protocol.is_empty()));
        }
        Inspection::NotTls | Inspection::Invalid | Inspection::TooLong => {}
    }
}
