//! The cache with arbitrary bytes, broken messages and generated ones.

use proptest::prelude::*;

use super::*;

/// Any reply equals the stored answer.
fn exchange(mut asked: Vec<u8>, answer: &[u8], after: u32) -> Result<(), TestCaseError> {
    asked[2] &= 0x7f;
    for transport in Transport::ALL {
        let asked = Query::parse(asked.clone().into(), transport).unwrap();
        let mut cache = Cache::new(1 << 20);
        let start = Instant::now();
        cache.store(&asked, answer, start);
        let now = start + Duration::from_secs(after.into());
        let replies = [cache.fresh(&asked, now), cache.stale(&asked, now)];
        for reply in replies.into_iter().flatten() {
            prop_assert_eq!(reply.len(), answer.len());
            prop_assert_eq!(&reply[..12], &answer[..12]);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn arbitrary_messages_do_no_harm(
        asked in proptest::collection::vec(any::<u8>(), 12..200),
        answer in proptest::collection::vec(any::<u8>(), 0..400),
        after in 0..200_000_u32,
    ) {
        exchange(asked, &answer, after)?;
    }

    #[test]
    fn broken_messages_do_no_harm(
        query_breaks in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..2),
        answer_breaks in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        cut in proptest::option::of(0..300_usize),
        after in 0..120_u32,
    ) {
        let mut message = addresses(&question(1, NAME), &[60, 90]);
        message.add_authority(soa(100, 80));
        let mut asked = question(1, NAME).to_vec().unwrap();
        let mut answer = message.to_vec().unwrap();
        for (bytes, breaks) in [(&mut asked, query_breaks), (&mut answer, answer_breaks)] {
            for (at, byte) in breaks {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
        }
        answer.truncate(cut.unwrap_or(answer.len()));
        exchange(asked, &answer, after)?;
    }

    #[test]
    fn a_repeated_answer_is_the_servers_but_for_id_and_ttls(
        ids in any::<[u16; 2]>(),
        labels in proptest::collection::vec("[a-z][a-z0-9_]{0,11}", 1..6),
        records in proptest::collection::vec((0..3_usize, 0..4000_u32, any::<u8>()), 1..20),
        after in 0..4000_u32,
    ) {
        let text = format!("{}.", labels.join("."));
        let (first, second) = (question(ids[0], &text), question(ids[1], &text));
        let mut answer = nothing(&first, ResponseCode::NoError);
        answer.add_answer(address(&text, 3600, 1));
        for (section, ttl, last) in &records {
            let record = address(&text, *ttl, *last);
            match section {
                0 => answer.add_answer(record),
                1 => answer.add_authority(record),
                _ => answer.add_additional(record),
            };
        }
        let bytes = answer.to_vec().unwrap();
        let shortest = ttls(&answer).into_iter().min().unwrap();
        let mut setup = Setup::new();
        setup.store_bytes(&first, &bytes);
        let reply = setup.fresh(&second, Duration::from_secs(after.into()));
        prop_assert_eq!(reply.is_some(), after < shortest);
        if after == 0 && shortest > 0 {
            let reply = setup.cache.fresh(&query(&second), setup.start).unwrap();
            prop_assert_eq!(&reply[2..], &bytes[2..]);
        }
        let stale = setup.stale(&second, Duration::from_secs(3601)).unwrap();
        for (reply, ttl) in reply.map(|reply| (reply, None)).into_iter().chain([(stale, Some(STALE_TTL))]) {
            prop_assert_eq!(reply.metadata.id, ids[1]);
            let mut expected = answer.clone();
            expected.metadata.id = ids[1];
            for record in expected.answers.iter_mut().chain(&mut expected.authorities).chain(&mut expected.additionals) {
                record.ttl = ttl.unwrap_or(record.ttl - after.min(record.ttl));
            }
            prop_assert_eq!(reply, expected);
        }
    }

    #[test]
    fn limits_hold(
        names in proptest::collection::vec("[a-d]{1,2}", 1..60),
        bytes in 0..4000_usize,
    ) {
        let mut setup = Setup::with(bytes);
        for (index, name) in names.iter().enumerate() {
            let asked = question(1, &format!("{name}.consul."));
            if index % 3 == 0 {
                setup.stale(&asked, SECOND);
            } else {
                setup.store(&asked, &addresses(&asked, &vec![60; index]));
            }
            prop_assert!(setup.cache.bytes <= bytes);
            let costs = setup.cache.entries.iter().map(|(key, entry)| entry.cost(key));
            prop_assert_eq!(costs.sum::<usize>(), setup.cache.bytes);
        }
    }
}
