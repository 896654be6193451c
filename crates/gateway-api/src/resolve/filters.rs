//! What happens to requests before they are forwarded.
//!
//! An error is the path of what is not served, from the rule, with its value.

use std::sync::Arc;
use std::time::Duration;

use legate_model::{HeaderModifiers, WILDCARD};
use legate_routes::{Cors, Mirror, Redirect, Rewrite, Rule, TextMatch, is_host, quoted};

use super::backend::{Collected, RouteContext};
use crate::kind::Protocol;
use crate::types::{
    Cors as WrittenCors, Header, HeaderFilter, PathModifier, Redirect as WrittenRedirect,
    RequestMirror, UrlRewrite,
};

/// What is not served, or is not there although it must be.
pub(super) fn unserved<T: std::fmt::Debug>(path: &str, value: T) -> String {
    format!("{path}: {value:?} is not served")
}

/// A filter without the field that its type names.
pub(super) fn required<'a, T>(field: Option<&'a T>, path: &str) -> Result<&'a T, String> {
    field.ok_or_else(|| format!("{path} is not set"))
}

/// Changes to headers.
pub(super) fn headers(written: &HeaderFilter, path: &str) -> Result<HeaderModifiers, String> {
    let mut changes = HeaderModifiers::default();
    for (list, into, field) in [
        (&written.set, &mut changes.set, "set"),
        (&written.add, &mut changes.add, "add"),
    ] {
        for Header { name, value } in list {
            let name = header_name(name, &format!("{path}.{field}"))?;
            if !is_value(value) {
                return Err(unserved(&format!("{path}.{field}[{name}]"), value));
            }
            // The first of several with one name counts. A percent sign would begin a command.
            into.entry(name).or_insert_with(|| value.replace('%', "%%"));
        }
    }
    for name in &written.remove {
        changes
            .remove
            .push(header_name(name, &format!("{path}.remove"))?);
    }
    Ok(changes)
}

/// Whether a text can be the value of a header, or a part of one. Envoy refuses everything on a port
/// for another one.
fn is_value(text: &str) -> bool {
    const LONGEST: usize = 8 * 1024;
    let is_control = |byte: u8| (byte < 0x20 && byte != b'\t') || byte == 0x7f;
    text.len() <= LONGEST && !text.bytes().any(is_control)
}

/// Whether a text can be a path without a query.
pub(super) fn is_path(text: &str) -> bool {
    text.starts_with('/') && is_value(text) && !text.contains(['?', '#', ' ', '\t'])
}

/// The name of a header in lower case. Proxies choose `Host` themselves.
pub(super) fn header_name(name: &str, path: &str) -> Result<String, String> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let lower = name.to_ascii_lowercase();
    if lower.is_empty() || !lower.chars().all(is_token) || lower == "host" {
        return Err(unserved(path, name));
    }
    Ok(lower)
}

/// A backend that gets copies; `None` if there is none to get any.
pub(super) fn mirror(
    context: &RouteContext<'_>,
    written: &RequestMirror,
    collected: &mut Collected,
    path: &str,
) -> Result<Option<Mirror>, String> {
    const ALL: u64 = 1_000_000;
    let per_million = match (written.percent, &written.fraction) {
        (None, None) => Some(ALL),
        (Some(percent), None) => Some(u64::from(percent) * (ALL / 100)),
        (None, Some(part)) => {
            let scaled = part.numerator.checked_mul(ALL);
            scaled.and_then(|scaled| scaled.checked_div(part.denominator.unwrap_or(100)))
        }
        (Some(_), Some(_)) => None,
    };
    let per_million = per_million.filter(|part| *part <= ALL);
    let per_million = per_million.ok_or_else(|| unserved(path, written))?;
    let target = context.target(&written.backend_ref, collected);
    let gets_any = per_million > 0 && !matches!(target, legate_routes::Target::Answer(_));
    Ok(gets_any.then(|| Mirror {
        target,
        per_million: u32::try_from(per_million).unwrap_or(u32::MAX),
    }))
}

fn path_rewrite(written: &PathModifier, path: &str) -> Result<Rewrite, String> {
    let absolute = |value: &str| match value.is_empty() || is_path(value) {
        true => Ok(value.to_owned()),
        false => Err(unserved(path, value)),
    };
    let (whole, prefix) = (
        written.replace_full_path.as_deref(),
        written.replace_prefix_match.as_deref(),
    );
    match (written.r#type.as_str(), whole, prefix) {
        ("ReplaceFullPath", Some(value), _) => Ok(Rewrite::Whole(absolute(value)?)),
        ("ReplacePrefixMatch", _, Some(value)) => Ok(Rewrite::Segments(absolute(value)?)),
        (other, ..) => Err(unserved(&format!("{path}.type"), other)),
    }
}

fn host(name: Option<&String>, path: &str) -> Result<Option<String>, String> {
    match name {
        Some(name) if !is_host(name) || name.starts_with('*') => Err(unserved(path, name)),
        name => Ok(name.cloned()),
    }
}

/// Changes to host and path.
pub(super) fn rewrite(rule: &mut Rule, written: &UrlRewrite, path: &str) -> Result<(), String> {
    rule.host_rewrite = host(written.hostname.as_ref(), &format!("{path}.hostname"))?;
    let change = written.path.as_ref();
    rule.rewrite = change
        .map(|change| path_rewrite(change, &format!("{path}.path")))
        .transpose()?;
    Ok(())
}

/// An answer that names another place. The port is that of the listener, which clients have used.
pub(super) fn redirect(
    context: &RouteContext<'_>,
    written: &WrittenRedirect,
    path: &str,
) -> Result<Redirect, String> {
    let usual = |scheme: &str| if scheme == "https" { 443 } else { 80 };
    let is_secure = context.protocol.is_some_and(Protocol::is_secure);
    let own = if is_secure { "https" } else { "http" };
    let scheme = written.scheme.as_deref();
    if let Some(other) = scheme.filter(|scheme| !["http", "https"].contains(scheme)) {
        return Err(unserved(&format!("{path}.scheme"), other));
    }
    let host = host(written.hostname.as_ref(), &format!("{path}.hostname"))?;
    let port = written.port.unwrap_or(scheme.map_or(context.port, usual));
    // Without a host, the port of the request would stay.
    let is_needed = host.is_none() || port != usual(scheme.unwrap_or(own));
    let change = written.path.as_ref();
    let status = written.status_code.unwrap_or(302);
    if ![301, 302, 303, 307, 308].contains(&status) {
        return Err(unserved(&format!("{path}.statusCode"), status));
    }
    Ok(Redirect {
        scheme: scheme.map(str::to_owned),
        host,
        port: is_needed.then_some(port),
        path: change
            .map(|change| path_rewrite(change, &format!("{path}.path")))
            .transpose()?,
        status,
    })
}

/// Which pages of other origins may send requests.
pub(super) fn cors(written: &WrittenCors, path: &str) -> Result<Arc<Cors>, String> {
    const MAX_AGE: u32 = 5;
    let lists = [
        &written.allow_origins,
        &written.allow_methods,
        &written.allow_headers,
        &written.expose_headers,
    ];
    let is_one = |text: &&String| !text.is_empty() && is_value(text) && !text.contains(',');
    if let Some(odd) = lists.into_iter().flatten().find(|text| !is_one(text)) {
        return Err(unserved(path, odd));
    }
    let origins = written
        .allow_origins
        .iter()
        .map(|origin| match origin.as_str() {
            WILDCARD => TextMatch::Regex(".*".to_owned()),
            origin if origin.contains('*') => TextMatch::Regex(quoted(origin).replace(r"\*", ".+")),
            origin => TextMatch::Exact(origin.to_owned()),
        });
    Ok(Arc::new(Cors {
        origins: origins.collect(),
        credentials: written.allow_credentials.unwrap_or_default(),
        methods: written.allow_methods.clone(),
        headers: written.allow_headers.clone(),
        exposed: written.expose_headers.clone(),
        max_age: Duration::from_secs(written.max_age.unwrap_or(MAX_AGE).into()),
    }))
}
