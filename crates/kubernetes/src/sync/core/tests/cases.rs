//! Individual situations with their expected jobs.

use super::*;

/// A world with these pods, fully listed.
fn world_with(pods: &[Pod]) -> World {
    let mut world = World::new();
    for pod in pods {
        world.apply(pod.clone());
    }
    world.settle();
    world
}

#[test]
fn nothing_is_done_before_everything_was_listed() {
    let now = Instant::now();
    let mut core = Core::new(settings(), false, now);
    assert_eq!(core.poll(now), [Job::ListNodes]);
    let node = "n1-virtual".to_owned();
    core.ended(Ended::Nodes(Ok(vec![node.clone()])), now, 0.5);
    assert_eq!(core.poll(now), [Job::ReadNode(node.clone())]);
    let mut servers = Servers::default();
    let gone = pod(0, 1, 0, true, "web");
    let registered = crate::sync::wanted::wanted(&gone, [], None, &settings());
    let Wanted::Instances { registrations, .. } = registered else {
        panic!("{registered:?}")
    };
    for registration in &registrations {
        servers.register(&registration.body);
    }
    core.ended(Ended::Node(node.clone(), Ok(servers.read(&node))), now, 0.5);
    assert_eq!(core.poll(now), [], "the pod may exist");
    core.pod(Change::Begin, now);
    core.service(Change::Complete, now);
    core.node(Change::Complete, now);
    core.pod(Change::Listed(pod(1, 2, 1, true, "api")), now);
    assert_eq!(core.poll(now), [], "the list is not complete");
    core.pod(Change::Complete, now);
    let jobs = core.poll(now);
    assert_eq!(jobs.len(), 2, "one comes, one goes: {jobs:?}");
    let removed = jobs.iter().any(|job| {
        matches!(job, Job::Pod(key, calls)
        if *key == gone.key && calls.iter().all(|call| matches!(call, Call::Deregister { .. })))
    });
    assert!(removed, "{jobs:?}");
}

#[test]
fn readiness_is_one_call_and_waits_for_nothing() {
    let mut world = world_with(&[pod(0, 1, 0, false, "web")]);
    world.apply(pod(0, 1, 0, true, "web"));
    let jobs = world.core.poll(world.now);
    let [Job::Pod(_, calls)] = jobs.as_slice() else {
        panic!("{jobs:?}")
    };
    let [Call::Checks { body, ids, .. }] = calls.as_slice() else {
        panic!("{calls:?}")
    };
    assert_eq!(ids, &[id("p-0-web"), id("p-0-web-sidecar-proxy")]);
    assert_eq!(body["Checks"][0]["Status"], "passing");
    // Changes while it is in flight cost one more call.
    world.apply(pod(0, 1, 0, false, "web"));
    world.apply(pod(0, 1, 0, true, "web"));
    world.apply(pod(0, 1, 0, false, "web"));
    assert_eq!(world.core.poll(world.now), []);
    let ended = world.servers.job(jobs[0].clone(), usize::MAX, false);
    world.core.ended(ended, world.now, 0.5);
    let jobs = world.core.poll(world.now);
    assert!(
        matches!(jobs.as_slice(), [Job::Pod(_, calls)] if calls.len() == 1),
        "{jobs:?}"
    );
}

#[test]
fn a_pod_that_ends_takes_nothing_new_and_stays_until_it_is_gone() {
    let mut world = world_with(&[pod(0, 1, 0, true, "web")]);
    let ending = Pod {
        terminating: true,
        ..pod(0, 1, 0, true, "web")
    };
    world.apply(ending.clone());
    world.settle();
    let check = &world.servers.checks[&("n1-virtual".to_owned(), id("ns/p-0-web"))];
    assert_eq!(check["Status"], "critical");
    world.pods.clear();
    world.core.pod(Change::Gone(ending), world.now);
    world.settle();
    world.check();
}

#[test]
fn a_refusal_is_reported_once_and_affects_no_other_pod() {
    let mut world = World::new();
    world.apply(pod(0, 1, 0, true, "refused"));
    world.apply(pod(1, 2, 0, true, "api"));
    world.settle();
    world.check();
    let notices = world.core.take_notices();
    assert_eq!(notices.len(), 1);
    assert_eq!(notices[0].pod, Key::new("ns", "p-0"));
    assert_eq!(
        notices[0].reason.message,
        "The servers refused the registration: a name that is refused"
    );
    let start = world.now;
    let mut tries = 0;
    while world.now < start + Duration::from_secs(600) {
        world.begin();
        tries += world.under_way.len();
        for job in std::mem::take(&mut world.under_way) {
            world.end(job, usize::MAX, false);
        }
        world.now = world.core.wake().max(world.now + Duration::from_millis(1));
    }
    assert!((9..=20).contains(&tries), "{tries}");
    assert_eq!(world.core.take_notices(), []);
}

#[test]
fn a_refused_virtual_ip_is_not_called_a_registration() {
    let mut world = world_with(&[pod(0, 1, 0, true, "web")]);
    let virtual_ip = VirtualIp {
        namespace: String::new(),
        service: "web".to_owned(),
        address: "10.96.0.1".to_owned(),
    };
    let outcome = Outcome::Refused("somebody else has it".to_owned());
    let results = vec![(Call::VirtualIp(virtual_ip), outcome)];
    let ended = Ended::Pod(Key::new("ns", "p-0"), results);
    world.core.ended(ended, world.now, 0.5);
    let notices = world.core.take_notices();
    assert_eq!(notices[0].reason.reason, "VirtualIPRefused");
    assert_eq!(
        notices[0].reason.message,
        "The servers refused the virtual IP 10.96.0.1 of web: somebody else has it"
    );
}

#[test]
fn during_an_outage_one_job_at_a_time_probes_the_servers() {
    let pods: Vec<Pod> = (0..PODS).map(|i| pod(i, 1, 0, true, "web")).collect();
    let mut world = world_with(&[]);
    for pod in &pods {
        world.apply(pod.clone());
    }
    let (start, mut tries) = (world.now, 0);
    while world.now < start + Duration::from_secs(60) {
        world.begin();
        tries += world.under_way.len();
        for job in std::mem::take(&mut world.under_way) {
            world.end(job, 0, false);
        }
        world.now = world.core.wake();
    }
    assert!(tries < 60, "{tries}");
    assert!(world.core.wake() < world.now + Duration::from_secs(5));
    world.settle();
    world.check();
}

#[test]
fn a_foreign_instance_with_the_same_id_is_left_alone() {
    let mut world = World::new();
    let taken = ("n1-virtual".to_owned(), id("p-1-api"));
    let service = json!({"ID": "p-1-api", "Service": "api", "Meta": {"owner": "someone"}});
    world.servers.services.insert(taken.clone(), service);
    world.foreign.push(taken);
    world.apply(pod(1, 1, 0, true, "api"));
    for _ in 0..20 {
        world.step(&Event::Work {
            calls: 9,
            lost: false,
        });
    }
    let notices = world.core.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    let message = &notices[0].reason.message;
    assert!(
        message.contains("\"p-1-api\" on node \"n1-virtual\""),
        "{message}"
    );
    let proxy = ("n1-virtual".to_owned(), id("p-1-api-sidecar-proxy"));
    assert!(!world.servers.services.contains_key(&proxy));
}

#[test]
fn progress_is_reported() {
    let mut world = world_with(&[pod(0, 1, 0, false, "web")]);
    assert!(
        world.core.take_compared(),
        "the catalog was read at the start"
    );
    assert!(!world.core.take_compared(), "once");
    let sizes = world.core.sizes();
    assert_eq!((sizes.pods, sizes.instances), (1, 2));
    assert_eq!((sizes.waiting, sizes.jobs, sizes.failing), (0, 0, 0));
    world.core.take_lags();

    world.apply(pod(0, 1, 0, true, "web"));
    assert_eq!(world.core.sizes().waiting, 1);
    world.begin();
    let sizes = world.core.sizes();
    assert_eq!((sizes.waiting, sizes.jobs), (0, 1));
    assert!(world.core.take_lags().is_empty(), "it is not written yet");
    // The servers are unreachable once; the delay counts from the change.
    let job = world.under_way.remove(0);
    world.end(job, 0, false);
    world.now += Duration::from_secs(5);
    world.settle();
    let [lag] = world.core.take_lags()[..] else {
        panic!("one change was written")
    };
    assert_eq!(lag, Duration::from_secs(5));

    // A change without effect on the catalog causes no delay.
    let mut labelled = pod(0, 1, 0, true, "web");
    labelled.labels.insert("x".to_owned(), "y".to_owned());
    world.apply(labelled);
    world.settle();
    assert!(world.core.take_lags().is_empty());

    world.apply(pod(2, 2, 0, true, "refused"));
    world.settle();
    assert_eq!(world.core.sizes().failing, 1);
    world.now += FULL_EVERY;
    world.settle();
    assert!(world.core.take_compared());
}

#[test]
fn a_comparison_does_not_end_before_its_list_has_come() {
    let now = Instant::now();
    let mut core = Core::new(settings(), false, now);
    assert_eq!(core.poll(now), [Job::ListNodes]);
    let nodes: Vec<String> = (0..JOBS + 3).map(|at| format!("n{at}-virtual")).collect();
    core.ended(Ended::Nodes(Ok(nodes)), now, 0.5);
    // More nodes than are read at once, so that some remain when the next comparison starts.
    let mut reads = core.poll(now);
    let later = now + FULL_EVERY;
    let mut list_under_way = false;
    while let Some(job) = reads.pop() {
        match job {
            Job::ReadNode(name) => core.ended(Ended::Node(name, Ok(None)), later, 0.5),
            Job::ListNodes => list_under_way = true,
            other => panic!("{other:?}"),
        }
        reads.extend(core.poll(later));
    }
    assert!(list_under_way && !core.take_compared());
    core.ended(Ended::Nodes(Ok(Vec::new())), later, 0.5);
    for job in core.poll(later) {
        if let Job::ReadNode(name) = job {
            core.ended(Ended::Node(name, Ok(None)), later, 0.5);
        }
    }
    assert!(core.take_compared());
}

#[test]
fn pods_of_the_same_name_in_two_namespaces_have_their_own_instances() {
    let flags = crate::tenancy::TenancyFlags {
        mirror_namespaces: Some("k8s-".to_owned()),
        ..Default::default()
    };
    let mut world = World::with(Settings {
        tenants: crate::tenancy::Tenants::of(&flags),
        ..settings()
    });
    let of = |namespace: &str, uid: u32| Pod {
        key: Key::new(namespace, "p-0"),
        ..pod(0, uid, 0, true, "web")
    };
    let early = Pod {
        ip: String::new(),
        ..of("shop", 1)
    };
    world.apply(early);
    world.settle();
    // Its sidecar logs in before the pod is ready.
    assert!(world.servers.namespaces.contains("k8s-shop"));
    world.apply(of("shop", 1));
    world.apply(of("stock", 2));
    world.settle();
    world.check();
    let place = |namespace: &str| {
        let namespace = namespace.to_owned();
        let id = "p-0-web".to_owned();
        ("n1-virtual".to_owned(), Id { namespace, id })
    };
    assert!(world.servers.services.contains_key(&place("k8s-shop")));
    assert!(world.servers.services.contains_key(&place("k8s-stock")));
    // Work on one does not affect the other, also after a restart.
    let gone = world.pods.remove(&Key::new("shop", "p-0")).unwrap();
    world.core.pod(Change::Gone(gone), world.now);
    world.settle();
    world.start();
    world.settle();
    world.check();
    assert!(!world.servers.services.contains_key(&place("k8s-shop")));

    // A deleted namespace is created again with the next registration.
    let stock = |(_, id): &InstanceKey| id.namespace != "k8s-stock";
    world.servers.namespaces.remove("k8s-stock");
    world.servers.services.retain(|place, _| stock(place));
    world.servers.checks.retain(|place, _| stock(place));
    world.apply(of("stock", 3));
    world.settle();
    world.check();
}
