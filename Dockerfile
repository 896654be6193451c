# syntax=docker/dockerfile:1

# The image of a sidecar. It takes the place of consul-dataplane's: same program names, same flags.
#
#   docker build -t legate-dataplane .
#   docker build -t legate-dataplane --target with-discover .    # with go-discover's `discover`
#
# `cargo xtask tidy` checks this file: the versions are those of rust-toolchain.toml and of
# [workspace.metadata.envoy] in Cargo.toml, and what the chart relies on is here. The scenarios of
# `cargo xtask test` lay out a root as the stage `layout` does, with the same script, and run
# sidecars in it.

ARG RUST=1.95.0
ARG ENVOY=1.38.2

FROM docker.io/envoyproxy/envoy:v${ENVOY} AS envoy

# Debian 12, as below: the program runs with the C library that it was built with.
FROM docker.io/library/rust:${RUST}-bookworm AS build
ARG RUST
# The compiler that the image has: rust-toolchain.toml also asks for tools that building needs not.
ENV RUSTUP_TOOLCHAIN=${RUST}
WORKDIR /src
COPY . .
# What `-version` tells; pass --build-arg LEGATE_REVISION="$(git rev-parse HEAD)".
ARG LEGATE_REVISION=unknown
# Caches are no part of the layer, so that the program is copied out of the target folder.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --profile sidecar --package legate-dataplane \
    && install -D --mode=755 target/sidecar/legate-dataplane /out/legate-dataplane

FROM docker.io/library/debian:bookworm-slim AS layout
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libcap2-bin \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/legate-dataplane /in/legate-dataplane
COPY --from=envoy /usr/local/bin/envoy /in/envoy
COPY images/dataplane/layout /in/layout
COPY LICENSE /image/usr/share/doc/legate-dataplane/LICENSE
RUN /in/layout /in/legate-dataplane /in/envoy /image

# `-addresses exec=discover …` asks clouds for the addresses of servers. Few need that, and it would
# add 30 MB.
FROM docker.io/library/golang:1.26-bookworm AS discover
ARG DISCOVER=v1.1.1-0.20250922102917-55e5010ad859
RUN CGO_ENABLED=0 GOBIN=/out go install -trimpath -ldflags=-s \
    github.com/hashicorp/go-discover/cmd/discover@${DISCOVER}

# The C library and GCC's, which Rust programs unwind with; the CA bundle of Debian, for servers
# whose certificates are public. No shell and no package manager: nothing here calls them. It has no
# versions; whoever has to build the same image twice names it by its digest.
FROM gcr.io/distroless/cc-debian12 AS runtime
COPY --from=layout /image/ /
# A number, because Kubernetes can tell from a number only that it is not root (runAsNonRoot). The
# programs run as every user, known in /etc/passwd or not.
USER 100:100
# The program is process 1: it passes signals on and collects orphans, so that there is no init.
ENTRYPOINT ["/usr/local/bin/legate-dataplane"]

FROM runtime AS with-discover
COPY --from=discover /out/discover /usr/local/bin/discover

# What is built when no target is named.
FROM runtime
