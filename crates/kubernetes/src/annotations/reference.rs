//! Generates the reference page of all annotations from [`KEYS`].

use std::fmt::Write as _;

use super::keys::{KEYS, Treatment};

const HEAD: &str = "\
# Annotations of pods

<!-- Made from the declarations in crates/kubernetes/src/annotations/keys.rs by
     cargo run -q -p legate-kubernetes --example annotations_reference > docs/kubernetes-annotations.md -->

Every key begins with `consul.hashicorp.com/`, and keys and values are those of consul-k8s. They are set on
pods: in a Deployment under `spec.template.metadata.annotations`. Defaults are values of the chart, below
`connectInject` unless noted otherwise.

- An empty value counts as absent.
- An unknown key has no effect; the client that creates the pod gets a warning with the most similar
  key.
- A pod with an invalid value is refused with an error message.
- Booleans are in Go's syntax: `true`, `t`, `1`, `false`, `f`, `0`.

";

const UPSTREAMS: &str = "\
## Upstreams

Items of `connect-service-upstreams` are separated by commas. A port is a number, or the name of a
container's port.

| Item | Meaning |
|---|---|
| `db:5432` | the service `db`, called at port 5432 of 127.0.0.1 |
| `db:5432:dc2` | in another datacenter |
| `db:5432:OPTIONS`, `db:5432:dc2?OPTIONS` | with options separated by `&`: `local_bind_address=127.0.0.2`, `mesh_gateway_mode=none\\|local\\|remote`, `datacenter=dc2` |
| `db.stock:5432`, `db.stock.east:5432` | in another namespace of the mesh, and in another partition |
| `db.svc:5432`, `db.svc.stock.ns:5432`, `db.svc.stock.ns.east.ap:5432`, `db.svc.dc2.dc:5432`, `db.svc.east.peer:5432` | the labelled form: a namespace, then a partition, a datacenter or a cluster peer; options follow after a colon |
| `prepared_query:db:5432` | a prepared query |

Other datacenters require [`global.federation.enabled`](federation.md#on-kubernetes) or `externalServers`, and cluster
peers [`global.peering.enabled`](kubernetes-peering.md) or `externalServers`. Namespaces require `global.enableConsulNamespaces`, and partitions `global.adminPartitions`; an
upstream that sets none is in the pod's own. Ports of a destination (`destination_port`) are refused everywhere.

Each service becomes two variables in all containers of the pod: `DB_CONNECT_SERVICE_HOST` and
`DB_CONNECT_SERVICE_PORT`.

## Probes

When traffic is redirected, the kubelet cannot reach the application, because it has no certificate of
the mesh. Its probes are sent to ports of the sidecar that serve only these paths: 20300, 20400 and
20500 plus the index of the container, for liveness, readiness and startup.

- HTTP and gRPC probes are forwarded to the application.
- TCP probes become HTTP probes that the sidecar answers: it connects to the port itself.
- Exec probes are not changed.
- HTTPS probes and HTTP hooks (`postStart`, `preStop`) are refused, unless their port is among
  `transparent-proxy-exclude-inbound-ports`: then they reach the application directly, and so do
  all other clients.

## Files of the mesh

Containers that `connect-inject-mount-volume` lists share a volume in memory at `/consul/connect-inject` with each
other and with the sidecar. Before the application starts, an init container writes to it:

| File | Content |
|---|---|
| `proxyid` | the id of the pod's proxy in the catalog |
| `consul-ca.pem` | the CA certificates that servers are verified with; only with TLS |

## Start and stop

A native sidecar is the first init container after the redirection, so that the pod's other init
containers can use the mesh. When the pod terminates, the sidecar drains inbound connections at once and
soon refuses new ones; outbound connections are served until the application has exited. An application
container without a `preStop` hook gets one that sleeps for 2 s (Kubernetes 1.30 and later, and pods that
have more than 4 s to terminate): meanwhile callers switch to other instances.
";

/// The whole page in Markdown.
#[must_use]
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    section(&mut text, "Served", |one| *one == Treatment::Served);
    text.push_str(UPSTREAMS);
    text.push('\n');
    let written = |one: &Treatment| *one == Treatment::Written;
    section(&mut text, "Written by the operator or others", written);
    section(&mut text, "On pods of gateways", |one| {
        *one == Treatment::Gateway
    });
    let ignored = |one: &Treatment| matches!(one, Treatment::Ignored(_));
    section(&mut text, "Ignored with a warning", ignored);
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn section(text: &mut String, title: &str, wanted: impl Fn(&Treatment) -> bool) {
    let keys: Vec<_> = KEYS.iter().filter(|key| wanted(&key.treatment)).collect();
    let served = keys.iter().any(|key| key.treatment == Treatment::Served);
    let head = match served {
        true => "| Key | Values | Default | Effect |\n|---|---|---|---|",
        false => "| Key | |\n|---|---|",
    };
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "## {title}\n\n{head}");
    for key in keys {
        let _ = match served {
            true => writeln!(
                text,
                "| `{}` | {} | {} | {} |",
                key.name, key.values, key.default, key.effect
            ),
            false => writeln!(text, "| `{}` | {} |", key.name, key.effect),
        };
    }
    text.push('\n');
}
