//! The registration of a gateway for `connect envoy -register`. Pure, except for a check of local
//! addresses.

use std::net::{IpAddr, UdpSocket};

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

use super::envoy_flags::Register;
use super::envoy_proxy::Proxy;

/// The default port of a gateway.
const DEFAULT_PORT: u16 = 8443;

/// The key of a mesh gateway's meta that tells that servers of other datacenters may use it.
const FEDERATION: &str = "consul-wan-federation";

/// An address with its port.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    host: String,
    port: u16,
}

impl Address {
    fn parse(text: &str) -> anyhow::Result<Address> {
        ensure!(
            !text.contains("{{"),
            "Error parsing address {text:?}: templates are not supported here, use an address"
        );
        if text.is_empty() || text.parse::<IpAddr>().is_ok() {
            return Ok(Address {
                host: text.to_owned(),
                port: DEFAULT_PORT,
            });
        }
        let parts = text.rsplit_once(':');
        let (host, port) =
            parts.with_context(|| format!("Error parsing address {text:?}: not an IP address"))?;
        let port = match port {
            "" => DEFAULT_PORT,
            port => port
                .parse()
                .with_context(|| format!("Error parsing port {port:?}"))?,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Address {
            host: host.to_owned(),
            port,
        })
    }

    fn json(&self) -> Value {
        json!({"Address": self.host, "Port": self.port})
    }

    /// Whether this machine has the address.
    fn is_ours(&self) -> bool {
        let ip = self.host.parse::<IpAddr>();
        ip.is_ok_and(|ip| UdpSocket::bind((ip, 0)).is_ok())
    }
}

/// The service to register.
pub(super) fn service(
    register: &Register,
    proxy: &Proxy,
    kind: &'static str,
) -> anyhow::Result<Value> {
    let lan = Address::parse(&register.address)?;
    let wan = Address::parse(&register.wan_address)?;
    let mut tagged = Map::new();
    for (name, address) in [("lan", &lan), ("wan", &wan)] {
        if !address.host.is_empty() {
            tagged.insert(name.to_owned(), address.json());
        }
    }
    let mut service = json!({
        "Kind": kind,
        "ID": proxy.id,
        "Name": proxy.stands_for,
        "Address": lan.host,
        "Port": lan.port,
        "TaggedAddresses": tagged,
    });
    if register.expose_servers {
        service["Meta"] = json!({FEDERATION: "1"});
    }
    if !register.bind_address.is_empty() {
        let mut addresses = Map::new();
        for (name, address) in &register.bind_address {
            addresses.insert(name.clone(), Address::parse(address)?.json());
        }
        service["Proxy"] = json!({"Config": {
            "envoy_gateway_no_default_bind": true,
            "envoy_gateway_bind_addresses": addresses,
        }});
    } else if lan.is_ours() && wan.is_ours() {
        service["Proxy"] = json!({"Config": {
            "envoy_gateway_no_default_bind": true,
            "envoy_gateway_bind_tagged_addresses": true,
        }});
    } else if !lan.host.is_empty() && !lan.is_ours() {
        bail!(
            "The LAN address {:?} will not be bindable. Either set a bindable address or override the \
             bind addresses with -bind-address",
            lan.host
        );
    }
    if kind != "api-gateway" {
        let host = match lan.host.as_str() {
            "" => "127.0.0.1".to_owned(),
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        };
        service["Check"] = json!({
            "Name": format!("{kind} listening"),
            "TCP": format!("{host}:{}", lan.port),
            "Interval": "10s",
            "DeregisterCriticalServiceAfter": register.deregister_after_critical,
        });
    }
    Ok(service)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(address: &str) -> Register {
        parsed(&["--address", address])
    }

    fn parsed(flags: &[&str]) -> Register {
        use clap::Parser;
        #[derive(Parser)]
        struct Program {
            #[command(flatten)]
            register: Register,
        }
        let flags = ["x"].iter().chain(flags);
        Program::parse_from(flags).register
    }

    fn gateway() -> Proxy {
        Proxy {
            id: "g".to_owned(),
            stands_for: "gateway".to_owned(),
            kind: Some("mesh-gateway"),
        }
    }

    #[test]
    fn a_gateway_for_servers_is_marked() {
        let flags = parsed(&["--expose-servers"]);
        let made = service(&flags, &gateway(), "mesh-gateway").unwrap();
        assert_eq!(made["Meta"], json!({"consul-wan-federation": "1"}));
        let made = service(&parsed(&[]), &gateway(), "mesh-gateway").unwrap();
        assert!(made.get("Meta").is_none());
    }

    #[test]
    fn named_addresses_replace_the_default_one() {
        let flags = parsed(&[
            "--bind-address",
            "public=0.0.0.0:443",
            "--address",
            "192.0.2.1:8443",
        ]);
        let made = service(&flags, &gateway(), "mesh-gateway").unwrap();
        let expected = json!({
            "envoy_gateway_no_default_bind": true,
            "envoy_gateway_bind_addresses": {"public": {"Address": "0.0.0.0", "Port": 443}},
        });
        assert_eq!(made["Proxy"]["Config"], expected);
    }

    #[test]
    fn a_gateway_is_checked_where_it_listens() {
        let proxy = gateway();
        let made = service(&register("127.0.0.1:9000"), &proxy, "mesh-gateway").unwrap();
        assert_eq!(made["Check"]["TCP"], "127.0.0.1:9000");
        assert_eq!(made["TaggedAddresses"]["lan"]["Port"], 9000);
        let elsewhere = service(&register("192.0.2.1"), &proxy, "mesh-gateway").unwrap_err();
        assert!(elsewhere.to_string().contains("will not be bindable"));
    }

    #[test]
    fn addresses_have_a_port() {
        let of = |text| {
            Address::parse(text)
                .map(|one| (one.host, one.port))
                .unwrap()
        };
        assert_eq!(of(""), (String::new(), DEFAULT_PORT));
        assert_eq!(of("::1"), ("::1".to_owned(), DEFAULT_PORT));
        assert_eq!(of("[::1]:1"), ("::1".to_owned(), 1));
        assert_eq!(of(":1"), (String::new(), 1));
        assert!(Address::parse("{{ GetPrivateIP }}").is_err());
    }
}
