//! What listeners must be, whoever wrote them: what Envoy would refuse, and more than a gateway is
//! made for, is refused by name.

use std::collections::BTreeSet;
use std::net::IpAddr;

use legate_filter::re2;
use legate_model::{HeaderModifiers, Invalid, name};

use crate::backend::{
    AltName, Authorities, Backend, BackendProtocol, Endpoint, Frontend, ServicePort, Transport,
};
use crate::host::is_host;
use crate::listener::{Certificate, Chain, Clients, Content, Datagrams, Listener, Tls};
use crate::matching::{Match, PathMatch, TextMatch, ValueMatch};
use crate::rule::{
    Action, Cors, Redirect, Retry, Rewrite, Rule, Target, VirtualHost, WeightedBackend,
};

/// The most filter chains and contents of a port.
const MAX_CHAINS: usize = 1_024;
/// The most rules of a port, each of which is a route of Envoy.
const MAX_RULES: usize = 20_000;
/// The most hosts of a content, and domains of a host.
const MAX_HOSTS: usize = 4_096;
/// The most elements of any other list.
const MAX_ITEMS: usize = 128;
/// The most bytes of a text, certificates excepted.
const MAX_TEXT: usize = 8 * 1024;
/// The most bytes of certificates in one text.
pub const MAX_PEM: usize = 128 * 1024;

type Checked = Result<(), Invalid>;

impl Listener {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be served.
    pub fn validate(&self) -> Checked {
        port(self.port)?;
        bounded("Chains", self.chains.len(), MAX_CHAINS)?;
        if self.chains.is_empty() {
            return invalid("Chains", "a port needs one");
        }
        bounded("Contents", self.contents.len(), MAX_CHAINS)?;
        let mut names = BTreeSet::new();
        each("Chains", &self.chains, |chain| {
            chain.validate(&self.contents)?;
            let mut all = chain.server_names.iter().map(String::as_str);
            let twice = match chain.server_names.is_empty() {
                true => (!names.insert("")).then_some("all other names"),
                false => all.find(|name| !names.insert(name)),
            };
            match twice {
                None => Ok(()),
                Some(name) => invalid("ServerNames", format!("{name} is in another chain, too")),
            }
        })?;
        if self.chains.len() > 1 && self.chains.iter().any(|chain| chain.tls == Tls::None) {
            return invalid("Chains", "without TLS there is one chain");
        }
        let rules = self.contents.iter().map(|content| match content {
            Content::Http(hosts) => hosts.iter().map(|host| host.rules.len()).sum(),
            Content::Tcp(_) => 0,
        });
        bounded("Contents", rules.sum(), MAX_RULES)?;
        each("Contents", &self.contents, |content| match content {
            Content::Http(hosts) => requests(hosts).map_err(|error| error.within("Http")),
            Content::Tcp(backends) => {
                connections(backends, &[BackendProtocol::Tcp]).map_err(|error| error.within("Tcp"))
            }
        })?;
        let used: BTreeSet<_> = self.chains.iter().map(|chain| chain.content).collect();
        match (0..self.contents.len()).find(|content| !used.contains(content)) {
            None => Ok(()),
            Some(at) => invalid(&format!("Contents[{at}]"), "no chain leads to it"),
        }
    }
}

impl Datagrams {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be served.
    pub fn validate(&self) -> Checked {
        port(self.port)?;
        connections(&self.backends, &[BackendProtocol::Udp]).map_err(|e| e.within("Backends"))?;
        each("Backends", &self.backends, |one| match &one.target {
            Target::Service(_) => invalid("Target", "services of the mesh take no datagrams"),
            Target::Backend(_) | Target::Answer(_) => Ok(()),
        })
    }
}

impl Backend {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be served.
    pub fn validate(&self) -> Checked {
        self.service_port().validate()?;
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        let server_name = &tls.server_name;
        if !is_host(server_name) || server_name.starts_with('*') {
            return invalid("Tls.ServerName", format!("{server_name:?} is not a host"));
        }
        if let Authorities::Pem(pem) = &tls.authorities {
            certificates("Tls.Authorities.Pem", pem)?;
        }
        if tls.names.is_empty() {
            return invalid("Tls.Names", "a certificate needs a name: any would do");
        }
        few("Tls.Names", &tls.names, |name| match name {
            AltName::Host(host) if !is_host(host) => {
                invalid("Host", format!("{host:?} is not a host"))
            }
            AltName::Host(text) | AltName::Uri(text) => some_text("", text),
        })?;
        tls.presented
            .as_ref()
            .map_or(Ok(()), |one| secret("Tls.Presented", one))
    }
}

impl ServicePort {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be served.
    pub fn validate(&self) -> Checked {
        object_name("Namespace", &self.namespace)?;
        object_name("Name", &self.name)?;
        port(self.port)
    }
}

impl Endpoint {
    /// Whether it can be behind a port of this transport.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be served.
    pub fn validate(&self, transport: Transport) -> Checked {
        if let Some(service) = &self.identity {
            if transport == Transport::Udp {
                return invalid("Identity", "sidecars take no datagrams");
            }
            name::validate_service_name(&service.name)
                .map_err(|error| Invalid::new("Identity.Name", error.to_string()))?;
        }
        if let Some(application) = self.application {
            if self.identity.is_none() {
                return invalid("Application", "only sidecars lead to other ports");
            }
            if application == 0 {
                return invalid("Application", "0 is not a port");
            }
        }
        address(self.address)?;
        port(self.port)
    }
}

impl Frontend {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be served.
    pub fn validate(&self) -> Checked {
        object_name("Namespace", &self.namespace)?;
        object_name("Name", &self.name)?;
        if self.addresses.is_empty() {
            return invalid("Addresses", "there is none");
        }
        bounded("Addresses", self.addresses.len(), MAX_ITEMS)?;
        each("Addresses", &self.addresses, |one| address(*one))?;
        bounded("MeshPorts", self.mesh_ports.len(), MAX_ITEMS)?;
        each("MeshPorts", &self.mesh_ports, |one| port(*one))?;
        let callers = self.callers.as_ref();
        callers.map_or(Ok(()), |namespace| object_name("Callers", namespace))
    }
}

fn address(address: IpAddr) -> Checked {
    match address.is_unspecified() || address.is_multicast() {
        true => invalid(
            "Address",
            format!("{address} is not the address of anything"),
        ),
        false => Ok(()),
    }
}

impl Chain {
    fn validate(&self, contents: &[Content]) -> Checked {
        text("Name", self.name.as_deref().unwrap_or_default())?;
        bounded("ServerNames", self.server_names.len(), MAX_HOSTS)?;
        each("ServerNames", &self.server_names, |name| {
            match is_host(name) && !name.contains(char::is_uppercase) {
                true => Ok(()),
                false => invalid("", format!("{name:?} is not a host in lower case")),
            }
        })?;
        let Some(content) = contents.get(self.content) else {
            return invalid("Content", "there is no content at this place");
        };
        if self.tls == Tls::PassedThrough && matches!(content, Content::Http(_)) {
            return invalid("Tls", "requests in it cannot be seen");
        }
        match &self.tls {
            Tls::None if !self.server_names.is_empty() => {
                invalid("ServerNames", "without TLS there is no server name")
            }
            Tls::None | Tls::PassedThrough => Ok(()),
            Tls::Terminated(tls) => {
                if tls.certificates.is_empty() {
                    return invalid("Tls.Certificates", "at least one is needed");
                }
                few("Tls.Certificates", &tls.certificates, |one| secret("", one))?;
                text("Tls.MinVersion", &tls.min_version)?;
                text("Tls.MaxVersion", &tls.max_version)?;
                few("Tls.CipherSuites", &tls.cipher_suites, |one| text("", one))?;
                tls.clients.as_ref().map_or(Ok(()), Clients::validate)
            }
        }
    }
}

impl Clients {
    fn validate(&self) -> Checked {
        certificates("Tls.Clients.Authorities", &self.authorities)
    }
}

fn requests(hosts: &[VirtualHost]) -> Checked {
    bounded("", hosts.len(), MAX_HOSTS)?;
    let mut domains = BTreeSet::new();
    each("", hosts, |host| {
        bounded("Domains", host.domains.len(), MAX_HOSTS)?;
        if host.domains.is_empty() {
            return invalid("Domains", "a host needs a name, or *");
        }
        each("Domains", &host.domains, |domain| {
            let is_known = domain == "*" || is_host(domain);
            if !is_known || domain.contains(char::is_uppercase) {
                return invalid("", format!("{domain:?} is not a host in lower case"));
            }
            match domains.insert(domain.as_str()) {
                true => Ok(()),
                false => invalid("", format!("{domain:?} is another host's, too")),
            }
        })?;
        status("Otherwise", host.otherwise)?;
        each("Rules", &host.rules, Rule::validate)
    })
}

impl Rule {
    fn validate(&self) -> Checked {
        self.matched
            .validate()
            .map_err(|error| error.within("Matched"))?;
        headers("Request", &self.request)?;
        headers("Response", &self.response)?;
        self.rewrite
            .as_ref()
            .map_or(Ok(()), |one| rewrite("Rewrite", one))?;
        if let Some(host) = &self.host_rewrite
            && (!is_host(host) || host.starts_with('*'))
        {
            return invalid("HostRewrite", format!("{host:?} is not a host"));
        }
        self.cors.as_ref().map_or(Ok(()), |cors| cors.validate())?;
        few("Mirrors", &self.mirrors, |mirror| {
            if mirror.per_million > 1_000_000 {
                return invalid("PerMillion", "it is more than all");
            }
            target("Target", &mirror.target, REQUESTS)
        })?;
        self.retry.as_ref().map_or(Ok(()), Retry::validate)?;
        no_token(self.token.is_some())?;
        match &self.action {
            Action::Answer(code) => status("Action.Answer", *code),
            Action::Redirect(redirect) => redirect.validate(),
            Action::Forward(backends) if backends.is_empty() => {
                invalid("Action.Forward", "at least one backend is needed")
            }
            Action::Forward(backends) => {
                connections(backends, REQUESTS).map_err(|error| error.within("Action.Forward"))
            }
        }
    }
}

/// What backends of requests understand.
const REQUESTS: &[BackendProtocol] = &[BackendProtocol::Http1, BackendProtocol::Http2];

impl Match {
    fn validate(&self) -> Checked {
        let path = self.path.text();
        match &self.path {
            PathMatch::Regex(_) => regex("Path.Regex", path)?,
            PathMatch::Segments(_) if path.ends_with('/') => {
                return invalid("Path.Segments", "it cannot end with a slash");
            }
            _ if !path.starts_with('/') => {
                return invalid("Path", format!("{path:?} does not begin with a slash"));
            }
            _ => some_text("Path", path)?,
        }
        if let Some(method) = &self.method
            && (method.is_empty() || !method.chars().all(|c| c.is_ascii_uppercase()))
        {
            return invalid("Method", format!("{method:?} is not a method"));
        }
        few("Headers", &self.headers, |one| {
            header_name("Name", one.name.strip_prefix(':').unwrap_or(&one.name))?;
            one.validate()
        })?;
        few("Query", &self.query, |one| {
            some_text("Name", &one.name)?;
            one.validate()
        })
    }
}

impl ValueMatch {
    fn validate(&self) -> Checked {
        text_match("Value", &self.value)
    }
}

impl Cors {
    fn validate(&self) -> Checked {
        few("Cors.Origins", &self.origins, |one| text_match("", one))?;
        for (field, list) in [
            ("Cors.Methods", &self.methods),
            ("Cors.Headers", &self.headers),
            ("Cors.Exposed", &self.exposed),
        ] {
            few(field, list, |name| match name.as_str() {
                "*" => Ok(()),
                name => header_name("", name),
            })?;
        }
        Ok(())
    }
}

impl Redirect {
    fn validate(&self) -> Checked {
        if ![301, 302, 303, 307, 308].contains(&self.status) {
            return invalid("Action.Redirect.Status", "it is not that of a redirect");
        }
        if let Some(scheme) = &self.scheme
            && !["http", "https"].contains(&scheme.as_str())
        {
            let reason = format!("{scheme:?} is neither http nor https");
            return invalid("Action.Redirect.Scheme", reason);
        }
        if let Some(host) = &self.host
            && !is_host(host)
        {
            return invalid("Action.Redirect.Host", format!("{host:?} is not a host"));
        }
        if self.port == Some(0) {
            return invalid("Action.Redirect.Port", "0 is not a port");
        }
        let path = self.path.as_ref();
        path.map_or(Ok(()), |path| rewrite("Action.Redirect.Path", path))
    }
}

impl Retry {
    fn validate(&self) -> Checked {
        few("Retry.Conditions", &self.conditions, |one| {
            some_text("", one)
        })?;
        few("Retry.Statuses", &self.statuses, |code| {
            match (100..600).contains(code) {
                true => Ok(()),
                false => invalid("", format!("{code} is not a status")),
            }
        })
    }
}

fn connections(backends: &[WeightedBackend], may: &[BackendProtocol]) -> Checked {
    let sum: u64 = backends.iter().map(|one| u64::from(one.weight)).sum();
    if u32::try_from(sum).is_err() {
        return invalid("", "the sum of the weights does not fit in 32 bits");
    }
    few("", backends, |one| {
        if one.weight == 0 {
            return invalid("Weight", "what gets nothing is left out");
        }
        headers("Request", &one.request)?;
        headers("Response", &one.response)?;
        no_token(one.token.is_some())?;
        target("Target", &one.target, may)
    })
}

fn target(field: &str, target: &Target, may: &[BackendProtocol]) -> Checked {
    match target {
        Target::Answer(code) => status(&format!("{field}.Answer"), *code),
        Target::Service(service) => some_text(&format!("{field}.Service.Name"), &service.name),
        Target::Backend(backend) => {
            let within = |error: Invalid| error.within(format!("{field}.Backend"));
            backend.validate().map_err(within)?;
            match may.contains(&backend.protocol) {
                true => Ok(()),
                false => invalid("Protocol", "it is not what arrives here").map_err(within),
            }
        }
    }
}

fn rewrite(field: &str, rewrite: &Rewrite) -> Checked {
    let (Rewrite::Matched(path) | Rewrite::Segments(path) | Rewrite::Whole(path)) = rewrite;
    text(field, path)
}

fn text_match(field: &str, matched: &TextMatch) -> Checked {
    match matched {
        TextMatch::Present => Ok(()),
        TextMatch::Exact(value) => text(field, value),
        TextMatch::Prefix(value) | TextMatch::Suffix(value) => some_text(field, value),
        TextMatch::Regex(value) => regex(field, value),
    }
}

fn regex(field: &str, value: &str) -> Checked {
    some_text(field, value)?;
    re2::validate(value).map_err(|reason| Invalid::new(field, reason))
}

fn headers(field: &str, changes: &HeaderModifiers) -> Checked {
    for (part, pairs) in [("Add", &changes.add), ("Set", &changes.set)] {
        bounded(&format!("{field}.{part}"), pairs.len(), MAX_ITEMS)?;
        for (name, value) in pairs {
            let at = format!("{field}.{part}[{name:?}]");
            header_name(&at, name)?;
            text(&at, value)?;
            // Envoy replaces commands: `%%` is a percent sign.
            if value.replace("%%", "").contains('%') {
                return invalid(&at, "a percent sign is written twice");
            }
        }
    }
    few(&format!("{field}.Remove"), &changes.remove, |name| {
        header_name("", name)
    })
}

fn header_name(field: &str, name: &str) -> Checked {
    some_text(field, name)?;
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    match name.chars().all(is_token) {
        true => Ok(()),
        false => invalid(field, format!("{name:?} is not the name of a header")),
    }
}

/// Nobody writes them here, and nobody has looked at what they name.
fn no_token(has_token: bool) -> Checked {
    match has_token {
        true => invalid("Token", "only config entries can require one"),
        false => Ok(()),
    }
}

fn secret(field: &str, certificate: &Certificate) -> Checked {
    match certificate {
        Certificate::OfGateway => Ok(()),
        Certificate::Secret(name) if !name.contains('/') => {
            let reason = format!("{name:?} has no slash: such names are for the proxy itself");
            invalid(field, reason)
        }
        Certificate::Secret(name) => text(field, name),
    }
}

fn certificates(field: &str, pem: &str) -> Checked {
    bounded(field, pem.len(), MAX_PEM)?;
    match pem.contains("-----BEGIN CERTIFICATE-----") {
        true => Ok(()),
        false => invalid(field, "there is no certificate in it"),
    }
}

/// Names of objects in Kubernetes, which become parts of names of clusters.
fn object_name(field: &str, name: &str) -> Checked {
    match is_host(name) && !name.starts_with('*') && !name.contains(char::is_uppercase) {
        true => Ok(()),
        false => invalid(field, format!("{name:?} is not the name of an object")),
    }
}

fn status(field: &str, code: u16) -> Checked {
    match (200..600).contains(&code) {
        true => Ok(()),
        false => invalid(field, format!("{code} is not the status of a response")),
    }
}

fn port(port: u16) -> Checked {
    match port {
        0 => invalid("Port", "0 is not a port"),
        _ => Ok(()),
    }
}

fn some_text(field: &str, value: &str) -> Checked {
    match value {
        "" => invalid(field, "it is empty"),
        value => text(field, value),
    }
}

fn text(field: &str, value: &str) -> Checked {
    bounded(field, value.len(), MAX_TEXT)?;
    match value.contains(['\0', '\r', '\n']) {
        true => invalid(field, "it cannot contain line breaks"),
        false => Ok(()),
    }
}

fn bounded(field: &str, count: usize, most: usize) -> Checked {
    match count > most {
        true => invalid(field, format!("{count} is more than {most}")),
        false => Ok(()),
    }
}

/// Checks the items of a list of at most [`MAX_ITEMS`].
fn few<'a, T>(field: &str, items: &'a [T], check: impl FnMut(&'a T) -> Checked) -> Checked {
    bounded(field, items.len(), MAX_ITEMS)?;
    each(field, items, check)
}

/// Checks the items of a list.
fn each<'a, T>(field: &str, items: &'a [T], mut check: impl FnMut(&'a T) -> Checked) -> Checked {
    let mut items = items.iter().enumerate();
    items.try_for_each(|(at, item)| check(item).map_err(|e| e.within(format!("{field}[{at}]"))))
}

fn invalid(field: &str, reason: impl Into<String>) -> Checked {
    Err(Invalid::new(field, reason))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::listener::{HostPorts, ServerTls};
    use crate::rule::{Mirror, Origin, Timeouts};

    /// A listener with something in most fields.
    fn listener() -> Listener {
        let backend = Backend {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            port: 8080,
            protocol: BackendProtocol::Http1,
            tls: None,
        };
        let target = Target::Backend(Arc::new(backend));
        let origin = Origin {
            route: "a".into(),
            rule: 0,
        };
        let forward = Action::Forward(vec![
            WeightedBackend::only(target.clone()),
            WeightedBackend::only(Target::Service("api".into())),
            WeightedBackend::only(Target::Answer(500)),
        ]);
        let mut rule = Rule::plain(origin, forward);
        rule.matched.path = PathMatch::Segments("/a".to_owned());
        rule.matched.headers = vec![ValueMatch {
            name: "x-version".to_owned(),
            value: TextMatch::Regex("[0-9]+".to_owned()),
        }];
        rule.request.set = [("x-a".to_owned(), "50%%".to_owned())].into();
        rule.rewrite = Some(Rewrite::Segments("/b".to_owned()));
        rule.timeouts = Timeouts {
            request: Some(Duration::from_millis(1500)),
            ..Timeouts::default()
        };
        rule.mirrors = vec![Mirror {
            target,
            per_million: 10_000,
        }];
        let tls = ServerTls {
            certificates: vec![Certificate::Secret("kubernetes/shop/cert".to_owned())],
            ..ServerTls::default()
        };
        Listener {
            port: 443,
            chains: vec![Chain {
                name: None,
                server_names: vec!["*.shop.test".to_owned()],
                tls: Tls::Terminated(tls),
                content: 0,
            }],
            contents: vec![Content::Http(vec![VirtualHost {
                domains: vec!["*.shop.test".to_owned()],
                rules: vec![rule],
                otherwise: 404,
            }])],
            host_ports: HostPorts::Any,
        }
    }

    #[test]
    fn a_listener_is_the_same_after_it_was_written() {
        let before = listener();
        before.validate().unwrap();
        let text = serde_json::to_string(&before).unwrap();
        let after: Listener = serde_json::from_str(&text).unwrap();
        assert_eq!(after, before, "{text}");
        assert!(text.contains(r#""Request":"1.5s""#), "{text}");
    }

    #[test]
    fn a_field_or_value_that_nobody_knows_is_an_error() {
        let rule = "/Contents/0/Http/0/Rules/0";
        for (at, value) in [
            ("/Surprise", json!(1)),
            ("/HostPorts", json!("Some")),
            (&format!("{rule}/Surprise"), json!(1)),
            (&format!("{rule}/Request/Surprise"), json!(1)),
            (&format!("{rule}/Matched/Path"), json!({"Glob": "/*"})),
            (&format!("{rule}/Action"), json!({"Teleport": []})),
            (&format!("{rule}/Timeouts/Request"), json!("-1s")),
        ] {
            let mut form = serde_json::to_value(listener()).unwrap();
            set(&mut form, at, value);
            let error = serde_json::from_value::<Listener>(form).unwrap_err();
            assert!(!error.to_string().is_empty(), "{at}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        let rule = "/Contents/0/Http/0/Rules/0";
        let backend = format!("{rule}/Action/Forward/0/Target/Backend");
        for (at, value, expected) in [
            ("/Port", json!(0), "Port: "),
            ("/Chains", json!([]), "Chains: "),
            ("/Chains/0/Content", json!(1), "Chains[0].Content: "),
            (
                "/Chains/0/ServerNames/0",
                json!("A.test"),
                "Chains[0].ServerNames[0]: ",
            ),
            (
                "/Chains/0/Tls/Terminated/Certificates",
                json!([]),
                "Chains[0].Tls.Certificates: ",
            ),
            (
                "/Chains/0/Tls/Terminated/Certificates/0",
                json!({"Secret": "leaf"}),
                "Chains[0].Tls.Certificates[0]: ",
            ),
            ("/Chains/0/Tls", json!("PassedThrough"), "Chains[0].Tls: "),
            (
                "/Contents/0/Http/0/Domains/0",
                json!("a b"),
                "Contents[0].Http[0].Domains[0]: ",
            ),
            (
                &format!("{rule}/Matched/Path"),
                json!({"Regex": "("}),
                "Contents[0].Http[0].Rules[0].Matched.Path.Regex: ",
            ),
            (
                &format!("{rule}/Request/Set/x-a"),
                json!("%REQ(cookie)%"),
                "Contents[0].Http[0].Rules[0].Request.Set[\"x-a\"]: ",
            ),
            (
                &format!("{rule}/Action/Forward/1/Weight"),
                json!(0),
                "Contents[0].Http[0].Rules[0].Action.Forward[1].Weight: ",
            ),
            (
                &format!("{backend}/Namespace"),
                json!("../x"),
                "Contents[0].Http[0].Rules[0].Action.Forward[0].Target.Backend.Namespace: ",
            ),
            (
                &format!("{backend}/Protocol"),
                json!("Udp"),
                "Contents[0].Http[0].Rules[0].Action.Forward[0].Target.Backend.Protocol: ",
            ),
            (
                &format!("{rule}/Token"),
                json!({"Providers": [{"Name": "a"}]}),
                "Contents[0].Http[0].Rules[0].Token: ",
            ),
        ] {
            let mut form = serde_json::to_value(listener()).unwrap();
            set(&mut form, at, value);
            let listener: Listener = serde_json::from_value(form).unwrap();
            let error = listener.validate().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{at}: {error}");
        }
    }

    fn set(form: &mut Value, at: &str, value: Value) {
        let (parent, field) = at.rsplit_once('/').unwrap();
        match form.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
            Value::Object(object) => {
                object.insert(field.to_owned(), value);
            }
            other => panic!("{at}: {other}"),
        }
    }
}
