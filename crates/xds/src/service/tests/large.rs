//! Large configurations: they are generated in a pool, here with threads controlled by the tests,
//! and block nothing but the proxy itself.

use std::sync::mpsc as channel;

use legate_runtime::Share;
use tokio::sync::oneshot;

use super::*;
use crate::configuration::LARGE;

/// The sidecar of a service with this number of upstreams.
fn sidecar(service: &str, upstreams: usize) -> ServiceInstance {
    let upstream = |number: usize| Upstream {
        destination_name: format!("upstream-{number}"),
        local_bind_port: 10_000 + u16::try_from(number).unwrap(),
        ..Upstream::default()
    };
    ServiceInstance {
        kind: ServiceKind::ConnectProxy,
        id: format!("{service}-sidecar-proxy"),
        service: format!("{service}-sidecar-proxy"),
        port: 20_000,
        proxy: ConnectProxy {
            destination_service_name: service.to_owned(),
            local_service_port: 8_080,
            upstreams: (0..upstreams).map(upstream).map(Arc::new).collect(),
            ..ConnectProxy::default()
        },
        ..ServiceInstance::default()
    }
}

/// A busy thread of the pool, or a busy share.
struct Held {
    running: Pin<Box<dyn Future<Output = Option<()>> + Send>>,
    release: channel::Sender<()>,
}

impl Held {
    async fn hold(world: &World, share: &Share) -> Self {
        let (begin, begun) = oneshot::channel();
        let (release, released) = channel::channel();
        let work = move || {
            let _ = begin.send(());
            let _ = released.recv();
        };
        let (pool, share) = (world.pool.clone(), share.clone());
        let run = async move { pool.run("held", &share, work).await };
        let mut running: Pin<Box<dyn Future<Output = Option<()>> + Send>> = Box::pin(run);
        assert!(running.as_mut().now_or_never().is_none());
        begun.await.unwrap();
        Self { running, release }
    }

    async fn release(self) {
        self.release.send(()).unwrap();
        self.running.await.unwrap();
    }
}

/// A stream of this proxy after its first request.
async fn asked(world: &World, proxy: &str) -> (Requests, Responses) {
    let (requests, responses) = world.open();
    requests.send(Ok(first_of(proxy))).await.unwrap();
    (requests, responses)
}

/// The paused time does not advance automatically while a thread of the pool is busy.
async fn pass() {
    tokio::time::advance(Duration::from_secs(1)).await;
}

/// Lets everything happen that does not need the pool.
async fn settle(responses: &mut Responses) {
    for _ in 0..100 {
        assert!(responses.next().now_or_never().is_none(), "no response");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn other_streams_continue_while_a_large_configuration_is_made() {
    let world = World::new();
    let held = Held::hold(&world, &Share::default()).await;
    world.put(sidecar("large", LARGE));
    let (_large, mut large) = asked(&world, "large-sidecar-proxy").await;
    settle(&mut large).await;

    // A first configuration, an ACK, and a change of a small configuration.
    let (requests, mut responses, clusters) = running(&world).await;
    requests.send(Ok(ack(&clusters))).await.unwrap();
    world.register(9_090);
    pass().await;
    let changed = next(&mut responses).await;
    assert_eq!(changed.type_url, CLUSTER);
    settle(&mut large).await;

    held.release().await;
    let clusters = next(&mut large).await;
    assert_eq!(clusters.resources.len(), LARGE + 1);
}

#[tokio::test(start_paused = true)]
async fn the_stream_itself_continues_with_its_resources() {
    let world = World::new();
    let (requests, mut responses, clusters) = running(&world).await;
    assert_eq!(clusters.resources.len(), 1);
    requests.send(Ok(ack(&clusters))).await.unwrap();
    let held = Held::hold(&world, &Share::default()).await;
    world.put(sidecar("web", LARGE));
    pass().await;
    settle(&mut responses).await;
    let listeners = DeltaDiscoveryRequest {
        type_url: LISTENER.to_owned(),
        ..Default::default()
    };
    requests.send(Ok(listeners)).await.unwrap();
    let before = next(&mut responses).await;
    assert_eq!((&*before.type_url, before.resources.len()), (LISTENER, 1));
    // Two changes while it waits: only the last one counts.
    world.put(sidecar("web", LARGE + 1));
    pass().await;
    settle(&mut responses).await;
    world.put(sidecar("web", LARGE + 2));
    pass().await;
    settle(&mut responses).await;

    held.release().await;
    let mut resources = 0;
    while resources < LARGE + 2 {
        let response = next(&mut responses).await;
        requests.send(Ok(ack(&response))).await.unwrap();
        if response.type_url == CLUSTER {
            resources += response.resources.len();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_token_is_checked_again_when_it_is_made() {
    let world = World::new();
    world.put(sidecar("large", LARGE));
    let held = Held::hold(&world, &Share::default()).await;
    let (_requests, mut responses) = asked(&world, "large-sidecar-proxy").await;
    settle(&mut responses).await;
    world.authorizer.set(Reply::RefuseProxy);
    held.release().await;
    assert_eq!(end(&mut responses).await, Code::PermissionDenied);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_for_a_closed_stream() {
    let world = World::new();
    world.put(sidecar("large", LARGE));
    let held = Held::hold(&world, &Share::default()).await;
    for _ in 0..10 {
        let (_requests, mut responses) = asked(&world, "large-sidecar-proxy").await;
        settle(&mut responses).await;
    }
    held.release().await;
    world
        .pool
        .run("last", &Share::default(), || ())
        .await
        .unwrap();
    assert_eq!(world.service.shared.generator.work().computed, 0);
}

#[tokio::test(start_paused = true)]
async fn the_streams_of_one_proxy_have_one_place_together() {
    let world = World::with_threads(NonZeroUsize::new(2).unwrap());
    world.put(sidecar("greedy", LARGE));
    world.put(sidecar("large", LARGE));
    let greedy = ProxyId {
        tenancy: legate_model::Tenancy::default(),
        node: "server".into(),
        service_id: "greedy-sidecar-proxy".into(),
    };
    let watch = world.manager.watch(greedy).unwrap();
    let held = Held::hold(&world, watch.share()).await;
    let (_first, mut first) = asked(&world, "greedy-sidecar-proxy").await;
    let (_second, mut second) = asked(&world, "greedy-sidecar-proxy").await;
    settle(&mut first).await;
    settle(&mut second).await;
    // The other thread is free for other proxies.
    let (_large, mut large) = asked(&world, "large-sidecar-proxy").await;
    assert_eq!(next(&mut large).await.resources.len(), LARGE + 1);
    held.release().await;
    for responses in [&mut first, &mut second] {
        assert_eq!(next(responses).await.resources.len(), LARGE + 1);
    }
}
