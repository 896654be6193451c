//! The certificates in use, one entry for each TLS context: `/certs`.

use std::collections::HashMap;
use std::time::SystemTime;

use legate_identity::{CertificateInfo, split_certificates};
use legate_l4::config::Secrets;
use legate_l4::model::{CommonTls, Secret, Source, Validation};
use legate_model::timestamp;
use serde_json::{Value, json};

use super::Admin;

impl Admin {
    pub(super) fn certs(&self) -> Value {
        let serving = self.built_in.shared.serving();
        let mut shown = Shown::default();
        let mut all = Vec::new();
        for listener in serving.listeners.values() {
            let chains = listener
                .spec
                .chains
                .iter()
                .chain(&listener.spec.default_chain);
            for tls in chains.filter_map(|chain| chain.tls.as_ref()) {
                all.push(shown.context(&tls.common, &listener.model.secrets));
            }
        }
        let mut clusters: Vec<_> = serving.clusters.iter().collect();
        clusters.sort_unstable_by_key(|(name, _)| *name);
        for (_, cluster) in clusters {
            let model = &cluster.model;
            if let (Some(tls), Some(secrets)) = (&model.spec.tls, &model.secrets) {
                all.push(shown.context(&tls.common, secrets));
            }
        }
        json!({ "certificates": all })
    }
}

/// What was parsed for a page: many contexts have the same certificates.
#[derive(Default)]
struct Shown(HashMap<String, Vec<Value>>);

impl Shown {
    fn context(&mut self, tls: &CommonTls, secrets: &Secrets) -> Value {
        let named = |name| secrets.get(name).map(|secret| &**secret);
        let own = match &tls.certificate {
            Some(Source::Inline(own)) => Some(&**own),
            Some(Source::Named(name)) => match named(name) {
                Some(Secret::Certificate(own)) => Some(&**own),
                _ => None,
            },
            None => None,
        };
        let trusted = match &tls.validation {
            Some(Source::Inline(trusted)) => Some(&**trusted),
            Some(Source::Named(name)) => match named(name) {
                Some(Secret::Validation(trusted)) => Some(&**trusted),
                _ => None,
            },
            None => None,
        };
        let chain = own.map(|own| self.certificates(&own.chain));
        // Envoy shows the first one.
        let authority = trusted.and_then(|trusted| {
            let pem = match trusted {
                Validation::Authorities(pem) => Some(pem),
                Validation::TrustDomains(domains) => domains.values().next(),
            };
            self.certificates(pem?).into_iter().next()
        });
        json!({
            "ca_cert": authority.into_iter().collect::<Vec<_>>(),
            "cert_chain": chain.unwrap_or_default(),
        })
    }

    fn certificates(&mut self, pem: &str) -> Vec<Value> {
        if let Some(known) = self.0.get(pem) {
            return known.clone();
        }
        // It was parsed when it was taken into use.
        let all = split_certificates(pem).unwrap_or_default();
        let infos = all
            .iter()
            .filter_map(|pem| CertificateInfo::from_pem(pem).ok());
        let shown: Vec<Value> = infos
            .map(|info| details(&info, SystemTime::now()))
            .collect();
        self.0.insert(pem.to_owned(), shown.clone());
        shown
    }
}

fn details(info: &CertificateInfo, now: SystemTime) -> Value {
    let time = |time| timestamp::format(time).unwrap_or_default();
    let left = info.not_after.duration_since(now).unwrap_or_default();
    let uris = info.uris.iter().map(|uri| json!({ "uri": uri }));
    let names = info.dns_names.iter().map(|name| json!({ "dns": name }));
    let ips = info
        .ips
        .iter()
        .map(|ip| json!({ "ip_address": ip.to_string() }));
    json!({
        "path": "<inline>",
        "serial_number": info.serial.replace(':', ""),
        "subject_alt_names": uris.chain(names).chain(ips).collect::<Vec<_>>(),
        "days_until_expiration": (left.as_secs() / (24 * 60 * 60)).to_string(),
        "valid_from": time(info.not_before),
        "expiration_time": time(info.not_after),
    })
}
