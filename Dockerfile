# syntax=docker/dockerfile:1

# The images. The image of the sidecar replaces that of consul-dataplane: same program names, same flags.
#
#   docker build -t legate-dataplane .
#   docker build -t legate-dataplane --target with-discover .    # with go-discover's `discover`
#   docker build -t legate-server --target legate-server .
#   docker build -t legate-k8s --target legate-k8s .
#   docker build -t legate-example --target legate-example .    # the application of docs/kubernetes.md
#
#   docker build --target symbols --output symbols .    # what was stripped from the programs
#
# `docker buildx build --platform linux/amd64,linux/arm64` builds them for both platforms.
#
# `cargo xtask tidy` checks that the versions match rust-toolchain.toml and [workspace.metadata.envoy] in
# Cargo.toml, and that the paths that charts use exist. `cargo xtask test` and `cargo xtask kind` build root
# file systems with the same scripts, and run the programs in them.

ARG RUST=1.95.0
ARG ENVOY=1.38.2

FROM docker.io/envoyproxy/envoy:v${ENVOY} AS envoy

# Debian 12, as below: the programs need the C library that they were built with.
FROM docker.io/library/rust:${RUST}-bookworm AS source
ARG RUST
# The image's own compiler: rust-toolchain.toml also requires tools that builds do not need.
ENV RUSTUP_TOOLCHAIN=${RUST}
WORKDIR /src
COPY . .
# The revision in the output of `-version`; pass --build-arg LEGATE_REVISION="$(git rev-parse HEAD)".
ARG LEGATE_REVISION=unknown

# Caches are not part of the layer, so the program is copied out of the target folder. Concurrent builds wait for
# each other's caches.
FROM source AS build-dataplane
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --locked --profile sidecar --package legate-dataplane \
    && images/strip target/sidecar/legate-dataplane /out

# Kernels on arm64 have pages of 4, 16 or 64 KiB: the allocator must be built for the largest.
FROM source AS build-server
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    case "$(uname -m)" in aarch64) export JEMALLOC_SYS_WITH_LG_PAGE=16 ;; esac; \
    cargo build --locked --profile release --package legate-server \
    && images/strip target/release/legate-server /out

FROM source AS build-k8s
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --locked --profile release --package legate-kubernetes \
    && images/strip target/release/legate-k8s /out

FROM source AS build-example
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --locked --profile release --package legate-example \
    && images/strip target/release/legate-example /out

FROM docker.io/library/debian:bookworm-slim AS tools
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iptables libcap2-bin nftables \
    && rm -rf /var/lib/apt/lists/*

FROM tools AS layout-dataplane
COPY --from=build-dataplane /out/legate-dataplane /in/legate-dataplane
COPY --from=envoy /usr/local/bin/envoy /in/envoy
COPY images/dataplane/layout /in/layout
COPY LICENSE /image/usr/share/doc/legate-dataplane/LICENSE
RUN /in/layout /in/legate-dataplane /in/envoy /image

FROM tools AS layout-k8s
COPY --from=build-k8s /out/legate-k8s /in/legate-k8s
COPY images/k8s/layout /in/layout
COPY LICENSE /image/usr/share/doc/legate-k8s/LICENSE
RUN /in/layout /in/legate-k8s /image

# `-addresses exec=discover …` finds servers through the APIs of clouds. Few users need it, and it adds 30 MB.
FROM docker.io/library/golang:1.26-bookworm AS discover
ARG DISCOVER=v1.1.1-0.20250922102917-55e5010ad859
RUN CGO_ENABLED=0 GOBIN=/out go install -trimpath -ldflags=-s \
    github.com/hashicorp/go-discover/cmd/discover@${DISCOVER}

# The symbols of the programs, for debuggers. The images do without them.
FROM scratch AS symbols
COPY --from=build-dataplane /out/legate-dataplane.debug /
COPY --from=build-server /out/legate-server.debug /
COPY --from=build-k8s /out/legate-k8s.debug /
COPY --from=build-example /out/legate-example.debug /

# Contains the C library, GCC's library for unwinding, and Debian's CA bundle for servers with public certificates;
# no shell and no package manager, because nothing uses them. It has no versions: for reproducible builds, use
# its digest.
FROM gcr.io/distroless/cc-debian12 AS base
# Numeric, because Kubernetes can verify only for a number that the user is not root (runAsNonRoot). The programs
# run as any user, in /etc/passwd or not.
USER 100:100

FROM base AS legate-server
COPY --from=build-server /out/legate-server /usr/local/bin/legate-server
COPY LICENSE /usr/share/doc/legate-server/LICENSE
ENTRYPOINT ["/usr/local/bin/legate-server"]

FROM base AS legate-example
COPY --from=build-example /out/legate-example /usr/local/bin/legate-example
COPY LICENSE /usr/share/doc/legate-example/LICENSE
ENTRYPOINT ["/usr/local/bin/legate-example"]

FROM base AS legate-k8s
COPY --from=layout-k8s /image/ /
ENTRYPOINT ["/usr/local/bin/legate-k8s"]

FROM base AS legate-dataplane
COPY --from=layout-dataplane /image/ /
# The program is process 1: it forwards signals and reaps orphans, so no init is needed.
ENTRYPOINT ["/usr/local/bin/legate-dataplane"]

FROM legate-dataplane AS with-discover
COPY --from=discover /out/discover /usr/local/bin/discover

# The default target.
FROM legate-dataplane
