//! Delays between streams, and the addresses that are dialed.

use std::time::Duration;

use crate::{AddressRing, Retry, RetryReason, code};

#[test]
fn delays_are_consuls() {
    let delays = |reason: RetryReason, failures: usize| -> Vec<u128> {
        let mut retry = Retry::default();
        (0..failures)
            .map(|_| retry.failed(reason, Duration::ZERO, 0.0).as_millis())
            .collect()
    };
    assert_eq!(
        delays(RetryReason::of_code(code::FAILED_PRECONDITION), 17),
        [
            8, 8, 8, 8, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 8192, 8192
        ]
    );
    assert_eq!(
        delays(RetryReason::of_code(code::RESOURCE_EXHAUSTED), 2),
        [8192, 8192]
    );
    assert_eq!(
        delays(RetryReason::of_code(code::UNKNOWN), 8),
        [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000, 64_000]
    );
    let mut retry = Retry::default();
    for _ in 0..100 {
        let delay = retry.failed(RetryReason::Other, Duration::from_secs(59), 1.0);
        assert!(delay <= Duration::from_secs(80));
    }
    let long = Duration::from_secs(60);
    let delay = retry.failed(RetryReason::Other, long, 0.5);
    assert_eq!(
        delay,
        Duration::from_millis(2_250),
        "a long stream starts the delays over"
    );
}

#[test]
fn addresses_form_a_ring() {
    let list = |names: &[&str]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
    let (gateways, servers) = (list(&["gw:443"]), list(&["a:1", "b:1"]));
    let mut ring = AddressRing::new(&gateways, &[], &servers);
    let next = |ring: &mut AddressRing| ring.next_address().map(str::to_owned);
    let taken = |ring: &mut AddressRing, count: usize| -> Vec<String> {
        (0..count).filter_map(|_| next(ring)).collect()
    };
    assert_eq!(
        taken(&mut ring, 5),
        ["gw:443", "a:1", "b:1", "gw:443", "a:1"]
    );
    ring.replace(AddressRing::new(&gateways, &[], &servers));
    assert_eq!(taken(&mut ring, 1), ["b:1"], "nothing has changed");
    ring.replace(AddressRing::new(&[], &list(&["m:1"]), &servers));
    assert_eq!(taken(&mut ring, 2), ["m:1", "m:1"]);
    assert_eq!(AddressRing::default().next_address(), None);
}
