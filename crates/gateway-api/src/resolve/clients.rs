//! How a gateway verifies its clients.

use legate_routes::Clients;

use super::lookup::{Lookup, Reasons, Referrer};
use crate::condition::Problem;
use crate::object::Object;
use crate::types::{Frontend, GROUP, Gateway, Validation};

/// How clients of a port are verified.
#[derive(Default)]
pub(super) struct OfPort {
    /// `None` if they are not asked for a certificate.
    pub(super) clients: Option<Clients>,
    /// Why some authorities cannot be used.
    pub(super) unresolved: Option<Problem>,
    /// Why the port stays closed.
    pub(super) refused: Option<Problem>,
}

fn of_frontend(gateway: &Gateway) -> Option<&Frontend> {
    gateway.tls.as_ref()?.frontend.as_ref()
}

fn validation(frontend: &Frontend, port: u16) -> Option<&Validation> {
    let own = frontend.per_port.iter().find(|one| one.port == port);
    let tls = own.map_or(&frontend.default, |own| &own.tls);
    tls.validation.as_ref()
}

/// Whether any or no certificate of clients will do somewhere, although they are asked for one.
pub(super) fn allows_any(gateway: &Gateway) -> bool {
    of_frontend(gateway).is_some_and(|frontend| {
        let own = frontend.per_port.iter().map(|one| &one.tls);
        let mut all = own.chain([&frontend.default]);
        all.any(|tls| {
            let mode = tls.validation.as_ref().and_then(|one| one.mode.as_deref());
            mode == Some(INSECURE)
        })
    })
}

const INSECURE: &str = "AllowInsecureFallback";

/// How clients of a port are verified. Without any certificate of an authority, and with an unknown
/// mode, the port stays closed.
pub(super) fn of_port(lookup: &Lookup<'_>, gateway: &Object<Gateway>, port: u16) -> OfPort {
    let frontend = of_frontend(&gateway.spec);
    let Some(validation) = frontend.and_then(|frontend| validation(frontend, port)) else {
        return OfPort::default();
    };
    let mut found = OfPort::default();
    let required = match validation.mode.as_deref() {
        None | Some("AllowValidOnly") => true,
        Some(INSECURE) => false,
        Some(other) => {
            let message = format!("the validation mode {other:?} is not served");
            found.refused = Some(Problem::new("UnsupportedValue", message));
            true
        }
    };
    let from = Referrer {
        group: GROUP,
        kind: "Gateway",
        namespace: &gateway.meta.namespace,
    };
    let reasons = Reasons {
        kind: "InvalidCACertificateKind",
        object: "InvalidCACertificateRef",
    };
    let mut authorities = String::new();
    for reference in &validation.ca_certificate_refs {
        match lookup.authorities(from, reference, reasons) {
            Ok(pem) => {
                authorities.push_str(pem.trim_end());
                authorities.push('\n');
            }
            Err(problem) => {
                found.unresolved.get_or_insert(problem);
            }
        }
    }
    if authorities.is_empty() && found.refused.is_none() {
        let message = "no certificate of an authority is left with which to verify clients";
        found.refused = Some(Problem::new("NoValidCACertificate", message));
    }
    found.clients = Some(Clients {
        authorities,
        required,
    });
    found
}
