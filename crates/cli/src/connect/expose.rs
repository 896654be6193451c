//! `connect expose`: exposes a service through an ingress gateway, by a config entry and an
//! intention.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::output::{line, list, number, quoted, text};
use crate::server_api::{ApiOptions, encoded};

#[derive(Args)]
pub(crate) struct Options {
    /// The gateway
    #[arg(long, default_value = "", value_name = "NAME")]
    ingress_gateway: String,
    /// The service
    #[arg(long, default_value = "", value_name = "NAME")]
    service: String,
    /// Port of the gateway's listener
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Protocol of the listener
    #[arg(long, default_value = "tcp")]
    protocol: String,
    /// Host name that is routed to the service; may be repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    #[command(flatten)]
    api: ApiOptions,
}

pub(super) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let (gateway, service) = (&options.ingress_gateway, &options.service);
    ensure!(
        !service.is_empty(),
        "A service name must be given via the -service flag."
    );
    ensure!(
        !gateway.is_empty(),
        "An ingress gateway service must be given via the -ingress-gateway flag."
    );
    ensure!(
        options.port != 0,
        "A port must be provided via the -port flag."
    );
    ensure!(
        !gateway.contains('/') && !service.contains('/'),
        "a name with a tenant is not supported here: write the ingress-gateway entry with `config write`"
    );
    let api = options.api.connect()?;
    let path = format!("/v1/config/ingress-gateway/{}", encoded(gateway));
    let entry = api.get(path).found().await;
    let entry = entry.context("Error fetching existing ingress gateway configuration")?;
    let mut entry = entry.unwrap_or_else(|| json!({"Kind": "ingress-gateway", "Name": gateway}));
    if add(&mut entry, &options)? {
        line(&format!(
            "Updating service definition for {} on listener with port {}",
            quoted(service),
            options.port
        ))?;
    }
    let index = number(&entry, "ModifyIndex").to_string();
    let written = api
        .put("/v1/config")
        .query("cas", index)
        .json(&entry)
        .value()
        .await;
    let written = written.context("Error writing ingress config entry")?;
    ensure!(
        written == true,
        "Ingress config entry was changed while attempting to update, please try again."
    );
    line(&format!(
        "Successfully updated config entry for ingress service {}",
        quoted(gateway)
    ))?;
    let between = format!("{} -> {}", quoted(gateway), quoted(service));
    let exact = || {
        let ask = api
            .get("/v1/connect/intentions/exact")
            .query("source", gateway.as_str());
        ask.query("destination", service.as_str())
    };
    let known = exact()
        .found()
        .await
        .context("Error looking up existing intention")?;
    if known.is_some_and(|known| known["Action"] == "allow") {
        line(&format!("Intention already exists for {between}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let ask = api
        .put("/v1/connect/intentions/exact")
        .query("source", gateway.as_str());
    let ask = ask.query("destination", service.as_str());
    let intention = json!({"SourceType": "consul", "Action": "allow"});
    ask.json(&intention)
        .ok()
        .await
        .context("Error upserting intention")?;
    line(&format!("Successfully set up intention for {between}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Adds the service to the listener of its port. Returns whether it was there before.
fn add(entry: &mut Value, options: &Options) -> anyhow::Result<bool> {
    let mut service = json!({"Name": options.service});
    if !options.host.is_empty() {
        service["Hosts"] = options.host.clone().into();
    }
    let mut listeners = list(entry, "Listeners").to_vec();
    let same_port = |listener: &Value| listener["Port"] == options.port;
    let Some(at) = listeners.iter().position(same_port) else {
        listeners.push(json!({
            "Port": options.port, "Protocol": options.protocol, "Services": [service],
        }));
        entry["Listeners"] = listeners.into();
        return Ok(false);
    };
    let protocol = text(&listeners[at], "Protocol");
    ensure!(
        protocol == options.protocol,
        "Listener on port {} already configured with conflicting protocol {}",
        options.port,
        quoted(protocol)
    );
    let mut services = list(&listeners[at], "Services").to_vec();
    let known = services
        .iter()
        .position(|known| known["Name"] == service["Name"]);
    match known {
        Some(known) => services[known] = service,
        None => services.push(service),
    }
    listeners[at]["Services"] = services.into();
    entry["Listeners"] = listeners.into();
    Ok(known.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(port: u16, protocol: &str) -> Options {
        Options {
            ingress_gateway: "g".to_owned(),
            service: "web".to_owned(),
            port,
            protocol: protocol.to_owned(),
            host: Vec::new(),
            api: ApiOptions::default(),
        }
    }

    #[test]
    fn a_listener_has_one_protocol() {
        let mut entry = json!({});
        assert!(!add(&mut entry, &options(80, "http")).unwrap());
        assert!(add(&mut entry, &options(80, "http")).unwrap());
        let expected = json!([{"Port": 80, "Protocol": "http", "Services": [{"Name": "web"}]}]);
        assert_eq!(entry["Listeners"], expected);
        assert!(add(&mut entry, &options(80, "tcp")).is_err());
    }
}
