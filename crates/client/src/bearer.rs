//! The bearer token of logins: where it is read from, whether it has changed, and when it expires.
//!
//! The expiry is the unverified `exp` claim. It is shown in errors and on status pages only; no
//! decision depends on it.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use legate_model::Secret;
use legate_runtime::file_stamp::FileStamp;
use serde_json::Value;

use crate::config::Bearer;
use crate::error::{ErrorKind, SessionError};

/// Maximum size of a bearer token's file, in bytes.
const SIZE: u64 = 64 * 1024;

/// The current token. A file is read for every login, so that a rotated token is used.
pub(crate) fn read(bearer: &Bearer) -> Result<Secret, SessionError> {
    match bearer {
        Bearer::Token(token) => Ok(token.clone()),
        Bearer::File(path) => read_file(path).map_err(|reason| {
            let path = path.display();
            let text = format!(
                "cannot read the bearer token from {path} (-login-bearer-token-path): {reason}"
            );
            SessionError::new(ErrorKind::Rejected, None, text)
        }),
    }
}

fn read_file(path: &Path) -> Result<Secret, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let length = file
        .take(SIZE + 1)
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    if length as u64 > SIZE {
        return Err(format!("it holds more than {SIZE} bytes"));
    }
    match text.trim() {
        "" => Err("it is empty".to_owned()),
        token => Ok(Secret::new(token)),
    }
}

/// The `exp` claim of a token; `None` if it is not a JWT or has no such claim.
pub(crate) fn expires(token: &Secret) -> Option<SystemTime> {
    let mut parts = token.expose().split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    let seconds = claims.get("exp")?.as_f64()?;
    let after = Duration::try_from_secs_f64(seconds).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(after)
}

/// A note for errors if the token has expired; otherwise empty.
pub(crate) fn note(expires: Option<SystemTime>, now: SystemTime) -> String {
    let ago = expires.and_then(|expires| now.duration_since(expires).ok());
    match ago {
        Some(ago) => format!(", which expired {} s ago", ago.as_secs()),
        None => String::new(),
    }
}

/// A stamp of the bearer token's file. It never changes if the token is not in a file.
pub(crate) fn stamp(bearer: &Bearer) -> FileStamp {
    FileStamp::of(match bearer {
        Bearer::Token(_) => None,
        Bearer::File(path) => Some(path.as_path()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use legate_testkit::jwt::TestSigner;
    use serde_json::json;
    use tempfile::NamedTempFile;

    use super::*;

    #[test]
    fn a_bearer_file_is_trimmed_and_bounded() {
        let mut file = NamedTempFile::new().unwrap();
        let read = |file: &NamedTempFile| {
            read(&Bearer::File(file.path().to_owned())).map_err(|error| error.to_string())
        };
        assert!(read(&file).unwrap_err().contains("it is empty"));
        writeln!(file, " jwt").unwrap();
        assert_eq!(read(&file).unwrap().expose(), "jwt");
        write!(file, "{}", "x".repeat(70_000)).unwrap();
        assert!(read(&file).unwrap_err().contains("more than 65536"));
        let missing = super::read(&Bearer::File("/no/such/token".into()))
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("/no/such/token (-login-bearer-token-path)"),
            "{missing}"
        );
    }

    #[test]
    fn only_a_jwt_has_an_expiry() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let of = |claims| expires(&Secret::new(TestSigner::generate().sign(&claims)));
        assert_eq!(of(json!({"exp": 1_700_000_000})), Some(at(1_700_000_000)));
        assert_eq!(of(json!({"exp": 1.5e9})), Some(at(1_500_000_000)));
        for claims in [
            json!({}),
            json!({"exp": "soon"}),
            json!({"exp": -1}),
            json!({"exp": 1e300}),
        ] {
            assert_eq!(of(claims.clone()), None, "{claims}");
        }
        for text in ["", "token", "a.b", "a.b.c", "..", "a.e30.c"] {
            assert_eq!(expires(&Secret::new(text)), None, "{text:?}");
        }
    }

    #[test]
    fn an_expired_token_is_noted() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let before = now - Duration::from_secs(60);
        assert_eq!(note(Some(before), now), ", which expired 60 s ago");
        assert_eq!(note(Some(now + Duration::from_secs(1)), now), "");
        assert_eq!(note(None, now), "");
    }
}
