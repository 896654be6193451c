//! Writes that a browser sends for a web page.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;

use crate::http_client::{Client, start};

/// The headers of a request that a browser sends, and those that other clients may send.
type Headers = &'static [(&'static str, &'static str)];

async fn status(client: &Client, method: Method, path: &str, headers: Headers) -> StatusCode {
    let body = r#"{"SourceName": "web", "DestinationName": "api", "Action": "allow"}"#;
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    client.exchange(request).await.status
}

async fn creates(client: &Client, headers: Headers) -> StatusCode {
    let path = "/v1/connect/intentions";
    let status = status(client, Method::POST, path, headers).await;
    let of_web = "/v1/connect/intentions/exact?source=web&destination=api";
    let there = client.get(of_web).await.status == StatusCode::OK;
    assert_eq!(there, status == StatusCode::OK, "{headers:?}");
    client.delete(of_web).await;
    status
}

#[tokio::test]
async fn pages_of_other_sites_cannot_write() {
    let (_server, client) = start(|config| {
        config.http_policy.hosts = vec!["mesh.example.com".to_owned()];
    })
    .await;
    let forbidden = StatusCode::FORBIDDEN;
    let misdirected = StatusCode::MISDIRECTED_REQUEST;
    let cases: [(Headers, StatusCode); 14] = [
        // A simple request of a page, which browsers send without asking first.
        (
            &[
                ("host", "127.0.0.1:8500"),
                ("origin", "https://evil.example.com"),
                ("sec-fetch-site", "cross-site"),
                ("content-type", "text/plain"),
            ],
            forbidden,
        ),
        (&[("origin", "https://evil.example.com")], forbidden),
        (&[("origin", "null")], forbidden),
        (&[("sec-fetch-site", "same-site")], forbidden),
        // Another port of the machine is another origin.
        (
            &[
                ("host", "localhost:8500"),
                ("origin", "http://localhost:3000"),
            ],
            forbidden,
        ),
        // A name of the page's owner that resolves to this server.
        (
            &[
                ("host", "evil.example.com:8500"),
                ("origin", "http://evil.example.com:8500"),
            ],
            misdirected,
        ),
        (
            &[
                ("host", "evil.example.com:8500"),
                ("sec-fetch-site", "same-origin"),
            ],
            misdirected,
        ),
        // Pages of this server, and requests that the user made.
        (
            &[
                ("host", "localhost:8500"),
                ("origin", "http://localhost:8500"),
            ],
            StatusCode::OK,
        ),
        (
            &[
                ("sec-fetch-site", "same-origin"),
                ("origin", "http://localhost"),
            ],
            StatusCode::OK,
        ),
        (&[("sec-fetch-site", "none")], StatusCode::OK),
        (
            &[
                ("host", "mesh.example.com"),
                ("origin", "http://mesh.example.com"),
            ],
            StatusCode::OK,
        ),
        // Clients that are no browsers.
        (&[], StatusCode::OK),
        (&[("host", "any.example.com:8500")], StatusCode::OK),
        (
            &[
                ("referer", "https://evil.example.com/"),
                ("user-agent", "curl/8"),
            ],
            StatusCode::OK,
        ),
    ];
    for (headers, expected) in cases {
        assert_eq!(creates(&client, headers).await, expected, "{headers:?}");
    }
}

/// Nothing is changed by reading, and every method but GET, HEAD and OPTIONS can write.
#[tokio::test]
async fn every_method_that_can_write_is_judged() {
    let (_server, client) = start(|_| {}).await;
    let forbidden = StatusCode::FORBIDDEN;
    let foreign: Headers = &[("sec-fetch-site", "cross-site")];
    for (method, path, expected) in [
        (Method::GET, "/v1/catalog/nodes", StatusCode::OK),
        (Method::OPTIONS, "/v1/catalog/nodes", StatusCode::OK),
        (Method::PUT, "/v1/kv/a", forbidden),
        (Method::DELETE, "/v1/kv/a", forbidden),
        (Method::PUT, "/v1/agent/leave", forbidden),
    ] {
        assert_eq!(
            status(&client, method, path, foreign).await,
            expected,
            "{path}"
        );
    }
}

#[tokio::test]
async fn origins_of_the_configured_header_may_write() {
    for (allowed, expected) in [
        ("https://app.example.com", StatusCode::OK),
        ("*", StatusCode::OK),
        ("https://other.example.com", StatusCode::FORBIDDEN),
    ] {
        let (_server, client) = start(|config| {
            let name = http::header::ACCESS_CONTROL_ALLOW_ORIGIN;
            let value = HeaderValue::from_static(allowed);
            config.http_policy.response_headers = vec![(name, value)];
        })
        .await;
        let headers: Headers = &[
            ("origin", "https://app.example.com"),
            ("sec-fetch-site", "cross-site"),
        ];
        assert_eq!(creates(&client, headers).await, expected, "{allowed}");
    }
}
