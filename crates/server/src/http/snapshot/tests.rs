use std::convert::Infallible;
use std::io::Read;

use axum::response::IntoResponse;
use http::StatusCode;
use legate_runtime::Scope;

use super::*;

/// A body of parts, without a length.
fn streamed(parts: &[&'static [u8]]) -> Body {
    let parts: Vec<_> = parts
        .iter()
        .map(|part| Ok::<_, Infallible>(*part))
        .collect();
    Body::from_stream(stream::iter(parts))
}

#[tokio::test]
async fn a_body_without_an_announced_length_is_limited() {
    let scope = Scope::new("test");
    let pool = Pool::with(scope.spawner(), NonZeroUsize::MIN);
    let place = tempfile::tempdir().unwrap();
    let receive = |body| receive(&pool, place.path().to_owned(), body, 6);

    let mut file = receive(streamed(&[b"abc", b"", b"def"])).await.unwrap();
    file.rewind().unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "abcdef");

    // Not read further than the limit.
    let more = [b"abc", b"def", b"g__"].map(|part| Ok::<&[u8], Infallible>(&part[..]));
    let rest = || -> Result<&[u8], Infallible> { unreachable!("it is refused before") };
    let endless = stream::iter(more).chain(stream::repeat_with(rest));
    let error = receive(Body::from_stream(endless)).await.unwrap_err();
    let status = error.into_response().status();
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    drop(file);
    assert_eq!(
        place.path().read_dir().unwrap().count(),
        0,
        "nothing is left"
    );
    scope.stop(Duration::from_secs(5)).await.unwrap();
}
