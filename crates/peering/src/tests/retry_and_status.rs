//! Delays, addresses, and the status of a peering.

use std::time::{Duration, SystemTime};

use super::*;
use crate::{AddressRing, End, Liveness, Refusal, Retry, RetryReason, Status, code};

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

#[test]
fn a_peering_is_healthy_until_something_fails_for_long() {
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let mut status = Status::default();
    assert!(!status.is_healthy(at(0)), "never connected");
    assert_eq!(status.liveness(), None);
    status.connect();
    assert!(status.is_healthy(at(1_000)));
    assert_eq!(status.liveness(), Some(Liveness::Active));

    status.record(&Event::Acked, at(0));
    status.record(&Event::Nacked("no".to_owned()), at(1));
    assert!(status.is_healthy(at(120)));
    assert!(!status.is_healthy(at(121)));
    status.record(&Event::Acked, at(130));
    assert!(status.is_healthy(at(1_000)));

    status.record(&Event::Received(Ok(())), at(130));
    status.record(&Event::Received(Err("bad".to_owned())), at(140));
    assert!(status.is_healthy(at(260)));
    assert!(!status.is_healthy(at(261)));
    status.record(&Event::Received(Ok(())), at(262));
    assert!(status.is_healthy(at(1_000)));
    status.record(&Event::Heartbeat, at(270));
    status.record(&Event::Sent, at(271));
    assert_eq!(
        (status.last_receive(), status.last_send),
        (Some(at(270)), Some(at(271)))
    );

    let refusal = Refusal::no_longer_leader("");
    status.record(&Event::End(End::Failed(refusal)), at(300));
    assert!(status.is_healthy(at(420)));
    assert!(!status.is_healthy(at(421)));
    assert_eq!(status.liveness(), Some(Liveness::Failing));
    assert!(status.disconnect_error.contains("not a leader"));
    status.connect();
    assert!(status.is_healthy(at(500)), "connected again");
    status.record(&Event::End(End::Deleted), at(501));
    assert_eq!(status.liveness(), None);
}
