//! Which metadata of Envoy's stream goes on to the server: everything that is not about this
//! connection or about who may do what. An `x-consul-token` of Envoy's never does; the session's
//! own takes its place.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, USER_AGENT};
use legate_api::metadata;
use tonic::metadata::MetadataMap;

/// The metadata of an Envoy's stream that servers get to see.
pub(super) fn of_envoy(headers: &HeaderMap) -> MetadataMap {
    let own = [CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, USER_AGENT];
    let forwarded = headers.iter().filter(|(name, _)| {
        !own.contains(name) && !name.as_str().starts_with("grpc-") && *name != metadata::TOKEN
    });
    let forwarded = forwarded.map(|(name, value)| (name.clone(), value.clone()));
    let mut headers = HeaderMap::new();
    for (name, value) in forwarded {
        headers.append(name, value);
    }
    MetadataMap::from_headers(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_but_for_what_is_reserved() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "envoy"),
            ("grpc-timeout", "1S"),
            ("grpc-accept-encoding", "gzip"),
            ("x-consul-token", "of Envoy"),
            ("x-envoy-internal", "true"),
            ("x-twice", "a"),
            ("x-twice", "b"),
            ("x-some-bin", "AAEC"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let forwarded = of_envoy(&headers).into_headers();
        let mut left: Vec<_> = forwarded
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                ("x-envoy-internal", "true"),
                ("x-some-bin", "AAEC"),
                ("x-twice", "a"),
                ("x-twice", "b"),
            ]
        );
    }
}
