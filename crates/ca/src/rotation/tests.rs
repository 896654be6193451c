use legate_model::CaRoots;
use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn at(hours: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) + hours_long(hours)
}

fn hours_long(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

fn root(id: &str) -> CaRoot {
    CaRoot {
        id: id.to_owned(),
        name: String::new(),
        serial_number: 1,
        signing_key_id: format!("key of {id}"),
        external_trust_domain: String::new(),
        not_before: at(0),
        not_after: at(100_000),
        root_cert: format!("certificate of {id}"),
        intermediate_certs: Vec::new(),
        active: true,
        private_key_type: "ec".to_owned(),
        private_key_bits: 256,
        create_index: 0,
        modify_index: 0,
    }
}

fn first(ttl: u64) -> CaState {
    let mut ca = CaState {
        roots: Arc::new(CaRoots {
            active_root_id: "0".to_owned(),
            trust_domain: "a.consul".to_owned(),
            roots: vec![root("0")],
        }),
        signing_key: Secret::new("0"),
        cluster_id: "a".to_owned(),
        lives: BTreeMap::new(),
        secondary: None,
    };
    signs_leaves(&mut ca, hours_long(ttl));
    ca
}

/// A change of the CA.
#[derive(Debug, Clone)]
enum Step {
    /// This root becomes active; a small number, so that roots are activated repeatedly.
    Rotate(u8),
    /// The lifetime of leaves becomes this many hours.
    Ttl(u64),
    /// The active root signs a leaf.
    Sign,
    /// Time passes, in hours.
    Wait(u64),
    Prune,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0_u8..5).prop_map(Step::Rotate),
        (1_u64..200).prop_map(Step::Ttl),
        Just(Step::Sign),
        (0_u64..300).prop_map(Step::Wait),
        Just(Step::Prune),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// For any sequence, exactly one root is active, its key signs, and every unexpired leaf has a
    /// trusted root.
    #[test]
    fn roots_of_valid_leaves_stay_trusted(steps in steps()) {
        let (mut now, mut ttl) = (0, 72);
        let mut ca = first(ttl);
        let mut leaves: Vec<(String, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Rotate(id) => {
                    let id = id.to_string();
                    if id != ca.roots.active_root_id {
                        ca = rotate(&ca, root(&id), Secret::new(id.as_str()), at(now));
                        signs_leaves(&mut ca, hours_long(ttl));
                    }
                }
                Step::Ttl(hours) => {
                    ttl = hours;
                    signs_leaves(&mut ca, hours_long(ttl));
                }
                Step::Sign => leaves.push((ca.roots.active_root_id.clone(), now + ttl)),
                Step::Wait(hours) => now += hours,
                Step::Prune => {
                    if let Some(next) = pruned(&ca, at(now), hours_long(ttl)) {
                        ca = next;
                        prop_assert!(pruned(&ca, at(now), hours_long(ttl)).is_none());
                    }
                }
            }
            let active: Vec<_> = ca.roots.roots.iter().filter(|root| root.active).collect();
            prop_assert_eq!(active.len(), 1);
            prop_assert_eq!(&active[0].id, &ca.roots.active_root_id);
            prop_assert_eq!(ca.signing_key.expose(), &active[0].id);
            let ids: Vec<_> = ca.roots.roots.iter().map(|root| &root.id).collect();
            for (signer, until) in &leaves {
                prop_assert!(*until <= now || ids.contains(&signer), "{signer} of {ids:?}");
            }
            prop_assert!(ca.lives.keys().all(|id| ids.contains(&id)));
        }
    }
}

#[test]
fn a_root_is_removed_two_leaf_lifetimes_after_its_rotation() {
    let ca = rotate(&first(72), root("1"), Secret::new("1"), at(10));
    // The lifetime of leaves is shorter by now.
    for (hours, expected) in [(10, 2), (10 + 144, 2), (10 + 145, 1)] {
        let left = pruned(&ca, at(hours), HOUR);
        let left = left.as_ref().unwrap_or(&ca).roots.roots.len();
        assert_eq!(left, expected, "after {hours} hours");
    }
    // The clock was set back.
    assert!(pruned(&ca, at(0), HOUR).is_none());
}
