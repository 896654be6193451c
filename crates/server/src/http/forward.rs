//! Requests with `?dc=`: passed on to a server of that datacenter, which authorizes and answers them. Blocking
//! queries wait there, with the indexes of that datacenter.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Uri, Version};
use http_body_util::BodyExt;
use legate_model::Tenancy;
use legate_model::acl::ANONYMOUS_SECRET;
use legate_runtime::BoxError;
use legate_wan::Wan;

use super::call::{Call, token_in};
use super::params::Params;
use super::primary::{FOR_PRIMARY, Primary};
use crate::acl::Rights;
use crate::api_error::ApiError;
use crate::wan;

/// Paths about the server that is asked, or about all datacenters.
const HERE: [&str; 4] = [
    "/v1/agent/",
    "/v1/catalog/datacenters",
    "/v1/coordinate/datacenters",
    "/v1/internal/legate/",
];
/// The parameter with the digest that a config entry must have to be changed.
pub(super) const IF_SAME: &str = "if-same";
/// Headers of one connection, which are not passed on.
const OF_CONNECTION: [HeaderName; 6] = [
    CONNECTION,
    HOST,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
];
/// The value of [`FOR_PRIMARY`].
const MARK: HeaderValue = HeaderValue::from_static("1");
const TOKEN: HeaderName = HeaderName::from_static("x-consul-token");
/// The datacenter whose clients get addresses for other datacenters from those: set by a server that translates addresses.
pub(super) const TRANSLATE_FOR: HeaderName = HeaderName::from_static("x-legate-translate-for");

/// The error for another datacenter if there is no port for servers.
pub(super) fn no_path(local: &str, datacenter: &str) -> ApiError {
    ApiError::internal(format!(
        "No path to datacenter {datacenter:?}: this server serves {local:?} only; leave Datacenter out, or ask a server \
         of that datacenter"
    ))
}

/// Passes a write on whose body names another datacenter.
pub(super) async fn write(
    call: &Call,
    wan: Option<Wan>,
    datacenter: &str,
    path: &str,
) -> Result<Response, ApiError> {
    let (partition, namespace) = (&call.tenancy.partition, &call.tenancy.namespace);
    let path = format!("{path}?partition={partition}&ns={namespace}");
    pass(call, wan, datacenter, (Method::PUT, &path), false).await
}

/// Passes a write of a config entry on to the primary, provided that the entry there is the one of this digest.
pub(super) async fn compared(
    call: &Call,
    wan: Option<Wan>,
    primary: &str,
    (method, path): (Method, &str),
    (tenancy, digest): (&Tenancy, &str),
) -> Result<Response, ApiError> {
    let (partition, namespace) = (&tenancy.partition, &tenancy.namespace);
    let path = format!("{path}?partition={partition}&ns={namespace}&{IF_SAME}={digest}");
    pass(call, wan, primary, (method, &path), true).await
}

/// Passes a call on with its body and token. `for_primary`: as [`Forward::pass_to_primary`] does.
async fn pass(
    call: &Call,
    wan: Option<Wan>,
    datacenter: &str,
    (method, path): (Method, &str),
    for_primary: bool,
) -> Result<Response, ApiError> {
    let wan = wan.ok_or_else(|| no_path(&call.config.datacenter, datacenter))?;
    let datacenter = datacenter.to_ascii_lowercase();
    let body = Bytes::copy_from_slice(call.body());
    let request = wan::request(method, &datacenter, path, &call.token, body);
    let invalid = |_| {
        ApiError::bad_request(format!(
            "Invalid datacenter {datacenter:?} or path {path:?}"
        ))
    };
    let mut request = request.map_err(invalid)?;
    if for_primary {
        request.headers_mut().insert(FOR_PRIMARY, MARK);
    }
    match wan.forward(&datacenter, request).await {
        Ok(response) => Ok(response.map(Body::new)),
        Err(error) => Err(ApiError::internal(error.to_string())),
    }
}

/// Gives a request of another datacenter without a token the anonymous one: the default token of this server is for its
/// own clients.
pub(super) fn keep_anonymous<B>(request: &mut Request<B>) {
    let in_url = Params::parse(request.uri()).unwrap_or_default();
    let has_token = in_url.get("token").is_some_and(|token| !token.is_empty());
    if !has_token && token_in(request.headers()).is_empty() {
        let anonymous = HeaderValue::from_static(ANONYMOUS_SECRET);
        request.headers_mut().insert(TOKEN, anonymous);
    }
}

/// What became of a request.
pub(super) enum Passed {
    /// It is answered here.
    Not(Request<Body>),
    /// It was passed on, or refused.
    Answered(Response),
}

/// Removes the datacenter from the URL of a request: another one has to answer it.
fn remove_datacenter(request: &mut Request<Body>) -> Result<(), ApiError> {
    let uri = request.uri();
    let Some(query) = uri
        .query()
        .filter(|query| query.contains("dc=") || query.contains("datacenter="))
    else {
        return Ok(());
    };
    let parameters = query
        .split('&')
        .filter(|one| !one.starts_with("dc=") && !one.starts_with("datacenter="));
    let query = parameters.collect::<Vec<_>>().join("&");
    let path = format!("{}?{query}", uri.path());
    let invalid = |_| ApiError::bad_request("Invalid query string");
    *request.uri_mut() = path.parse().map_err(invalid)?;
    Ok(())
}

/// Passes requests on.
pub(super) struct Forward {
    pub(super) wan: Wan,
    /// The own datacenter.
    pub(super) datacenter: String,
    /// The primary datacenter, if it is another one.
    pub(super) primary: Option<Primary>,
    pub(super) rights: Rights,
    /// Whether addresses of other datacenters are translated.
    pub(super) translates: bool,
}

impl Forward {
    /// The other datacenter that a request is for.
    pub(super) fn datacenter_of(&self, uri: &Uri) -> Option<String> {
        let is_here = HERE.iter().any(|path| uri.path().starts_with(path));
        if is_here || !uri.query()?.contains("dc=") {
            return None;
        }
        // What cannot be read is refused where all parameters are.
        let params = Params::parse(uri).ok()?;
        let datacenter = params
            .get("dc")
            .filter(|datacenter| !datacenter.is_empty())?;
        let is_own = datacenter.eq_ignore_ascii_case(&self.datacenter);
        (!is_own).then(|| datacenter.to_ascii_lowercase())
    }

    /// Whether a request may be for the primary datacenter; see [`Self::pass_to_primary`].
    pub(super) fn may_be_for_primary(&self, request: &Request<Body>) -> bool {
        let primary = self.primary.as_ref();
        primary.is_some_and(|primary| primary.may_decide(request.method(), request.uri().path()))
    }

    /// Passes a write of what all datacenters have on to the primary. Returns any other request.
    pub(super) async fn pass_to_primary(&self, request: Request<Body>) -> Passed {
        let Some(primary) = &self.primary else {
            return Passed::Not(request);
        };
        let mut request = match primary.decides(request).await {
            Ok((true, request)) => request,
            Ok((false, request)) => return Passed::Not(request),
            Err(error) => return Passed::Answered(error.into_response()),
        };
        if let Err(error) = remove_datacenter(&mut request) {
            return Passed::Answered(error.into_response());
        }
        if request.headers_mut().insert(FOR_PRIMARY, MARK).is_some() {
            let refused = ApiError::internal(format!(
                "{:?} is not the primary datacenter, since it follows {:?}: primary_datacenter must be the same in all \
                 datacenters",
                self.datacenter, primary.datacenter
            ));
            return Passed::Answered(refused.into_response());
        }
        let is_login = request.uri().path() == "/v1/acl/login";
        if is_login {
            // The answer is read here.
            request.headers_mut().remove(ACCEPT_ENCODING);
        }
        let response = self.send(primary.datacenter.clone(), request).await;
        Passed::Answered(match is_login && response.status().is_success() {
            true => primary.known_here(response).await,
            false => response,
        })
    }

    /// Sends a request to a datacenter, and returns the answer as it comes.
    pub(super) fn send(
        &self,
        datacenter: String,
        request: Request<Body>,
    ) -> impl Future<Output = Response> + Send + 'static {
        let (wan, request) = (self.wan.clone(), self.prepare(&datacenter, request));
        async move {
            let answered = match request {
                Ok(request) => wan.forward(&datacenter, request).await,
                Err(refused) => return refused.into_response(),
            };
            match answered {
                Ok(response) => response.map(Body::new),
                Err(error) => ApiError::internal(error.to_string()).into_response(),
            }
        }
    }

    /// The request as another server gets it: with the token that this server would use.
    fn prepare(
        &self,
        datacenter: &str,
        request: Request<Body>,
    ) -> Result<Request<legate_wan::Body>, ApiError> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        // The authority is not used: the connection is to a server of that datacenter.
        head.uri = format!("https://server.{datacenter}{path}")
            .parse()
            .map_err(|_| ApiError::bad_request(format!("Invalid datacenter {datacenter:?}")))?;
        head.version = Version::HTTP_2;
        head.extensions.clear();
        for header in OF_CONNECTION {
            head.headers.remove(header);
        }
        head.headers.remove(TRANSLATE_FOR);
        if self.translates
            && let Ok(own) = HeaderValue::try_from(&*self.datacenter)
        {
            head.headers.insert(TRANSLATE_FOR, own);
        }
        let in_url = Params::parse(&head.uri).unwrap_or_default();
        let has_token = in_url.get("token").is_some_and(|token| !token.is_empty());
        let default = self.rights.default_token();
        if !has_token && token_in(&head.headers).is_empty() && !default.is_empty() {
            let invalid = |_| ApiError::internal("The default token is not valid in a header");
            let mut value = HeaderValue::try_from(default).map_err(invalid)?;
            value.set_sensitive(true);
            head.headers.insert(TOKEN, value);
        }
        let body = body.map_err(BoxError::from).boxed_unsync();
        Ok(Request::from_parts(head, body))
    }
}
