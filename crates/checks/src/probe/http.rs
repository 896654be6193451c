//! HTTP checks: 2xx is passing, 429 is warning, all others are critical, as in Consul.

use ::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST, LOCATION, PROXY_AUTHORIZATION, USER_AGENT,
};
use ::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use legate_model::{CheckStatus, CheckType, printed_url};
use percent_encoding::percent_decode_str;
use url::Url;

use super::dial::Dialer;
use super::output::RunResult;

/// The maximum number of redirects, as in Go and Consul.
const MAX_REDIRECTS: usize = 10;

/// Runs the check. The first `size` bytes of the response are retained.
pub(super) async fn run(dialer: &Dialer, check: &CheckType, size: usize) -> RunResult {
    let method = match check.method.as_str() {
        "" => "GET",
        own => own,
    };
    let url = printed_url(&check.http);
    match follow(dialer, check, size, method).await {
        Err(error) => (
            CheckStatus::Critical,
            format!("HTTP {method} {url}: {error}"),
        ),
        Ok((status, body)) => {
            let found = match status {
                status if status.is_success() => CheckStatus::Passing,
                StatusCode::TOO_MANY_REQUESTS => CheckStatus::Warning,
                _ => CheckStatus::Critical,
            };
            let body = String::from_utf8_lossy(&body);
            (
                found,
                format!("HTTP {method} {url}: {status} Output: {body}"),
            )
        }
    }
}

/// Sends the request and follows redirects unless the check disables them.
async fn follow(
    dialer: &Dialer,
    check: &CheckType,
    size: usize,
    method: &str,
) -> Result<(StatusCode, Vec<u8>), String> {
    let mut method = Method::from_bytes(method.to_ascii_uppercase().as_bytes())
        .map_err(|error| error.to_string())?;
    let mut uri: Uri = check.http.parse().map_err(|e| format!("not a URL: {e}"))?;
    let mut body = Bytes::from(check.body.clone());
    for _ in 0..=MAX_REDIRECTS {
        let (response, text) = send_once(dialer, check, size, &method, &uri, body.clone()).await?;
        let status = response.status();
        let location = response
            .headers()
            .get(LOCATION)
            .and_then(|to| to.to_str().ok());
        let moved = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
        let Some(location) = location.filter(|_| moved && !check.disable_redirects) else {
            return Ok((status, text));
        };
        uri = target(&uri, location)?;
        if !matches!(status.as_u16(), 307 | 308) {
            body = Bytes::new();
            if method != Method::HEAD {
                method = Method::GET;
            }
        }
    }
    Err(format!("more than {MAX_REDIRECTS} redirects"))
}

/// The target of a redirect, which may be relative.
fn target(from: &Uri, location: &str) -> Result<Uri, String> {
    let shown = printed_url(location);
    let wrong = |error: &dyn std::fmt::Display| format!("redirected to {shown:?}: {error}");
    let from = Url::parse(&from.to_string());
    let mut to = from
        .and_then(|from| from.join(location))
        .map_err(|error| wrong(&error))?;
    to.set_fragment(None);
    to.as_str().parse().map_err(|error| wrong(&error))
}

/// Sends one request on a new connection.
async fn send_once(
    dialer: &Dialer,
    check: &CheckType,
    size: usize,
    method: &Method,
    uri: &Uri,
    body: Bytes,
) -> Result<(Response<()>, Vec<u8>), String> {
    let host = uri.host().ok_or("the URL has no host")?;
    let tls = match uri.scheme_str() {
        Some("http") => None,
        Some("https") => Some(b"http/1.1".as_slice()),
        _ => return Err("the URL is neither http nor https".to_owned()),
    };
    let port = uri
        .port_u16()
        .unwrap_or(if tls.is_some() { 443 } else { 80 });
    let address = format!("{host}:{port}");
    let stream = dialer.connect(check, &address, host, tls).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let request = request(check, method, uri, body)?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let answer = std::pin::pin!(async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| e.to_string())?;
        let (head, body) = response.into_parts();
        let text = read(body, size).await?;
        Ok((Response::from_parts(head, ()), text))
    });
    match select(answer, std::pin::pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The response may have been complete before the server closed the connection.
        Either::Right((_, answer)) => answer.await,
    }
}

fn request(
    check: &CheckType,
    method: &Method,
    uri: &Uri,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, String> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let (user, authority) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method.clone();
    *request.uri_mut() = path.parse().map_err(|e| format!("not a path: {e}"))?;
    let headers = request.headers_mut();
    let host = HeaderValue::from_str(authority).map_err(|error| error.to_string())?;
    headers.insert(HOST, host);
    headers.insert(USER_AGENT, HeaderValue::from_static("Legate Health Check"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/plain, text/*, */*"));
    let own = check.http.parse::<Uri>();
    let is_own = own.is_ok_and(|own| own.host() == uri.host());
    for (name, values) in &check.header {
        let wrong = |error: &dyn std::fmt::Display| format!("header {name:?}: {error}");
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|e| wrong(&e))?;
        // Credentials are for the configured server only, not for targets of redirects.
        let is_secret = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(&key);
        if key == CONTENT_LENGTH || is_secret && !is_own {
            continue;
        }
        headers.remove(&key);
        for value in values {
            let value = HeaderValue::from_str(value).map_err(|e| wrong(&e))?;
            headers.append(key.clone(), value);
        }
    }
    if let Some(user) = user.filter(|_| !headers.contains_key(AUTHORIZATION)) {
        headers.insert(AUTHORIZATION, basic(user)?);
    }
    Ok(request)
}

/// The authorization header for the `user:password` of a URL, as in Go's client. A relative redirect
/// retains the credentials; an absolute one has its own.
fn basic(user: &str) -> Result<HeaderValue, String> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let mut text: Vec<u8> = percent_decode_str(name).collect();
    text.push(b':');
    text.extend(percent_decode_str(password));
    let value = format!("Basic {}", STANDARD.encode(text));
    let mut value = HeaderValue::try_from(value).map_err(|error| error.to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads the start of a body without waiting for the rest.
async fn read(mut body: Incoming, size: usize) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        if let Some(data) = frame.data_ref() {
            text.extend_from_slice(data);
        }
        if text.len() >= size {
            text.truncate(size);
            break;
        }
    }
    Ok(text)
}
