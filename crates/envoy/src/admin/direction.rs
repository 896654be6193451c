//! Whether Envoy is a gateway, from the directions of its listeners. Pure; sends no requests.

use serde::Deserialize;

/// The listeners that a server has configured.
pub(super) const LISTENERS: &str = "/config_dump?resource=dynamic_listeners";

#[derive(Deserialize)]
struct Dump {
    #[serde(default)]
    configs: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    active_state: Option<State>,
}

#[derive(Deserialize)]
struct State {
    listener: Listener,
}

#[derive(Deserialize)]
struct Listener {
    traffic_direction: Option<String>,
}

/// Whether there are listeners, and none of them is for an application's inbound traffic.
pub(super) fn is_gateway(dump: &[u8]) -> bool {
    let Ok(dump) = serde_json::from_slice::<Dump>(dump) else {
        return false;
    };
    let active = || {
        dump.configs
            .iter()
            .filter_map(|one| one.active_state.as_ref())
    };
    let inbound = |state: &State| state.listener.traffic_direction.as_deref() == Some("INBOUND");
    active().next().is_some() && !active().any(inbound)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_gateway_has_listeners_and_none_is_inbound() {
        let gateway = |listeners: &[Value]| {
            let configs = listeners.iter();
            let configs = configs.map(|one| json!({"active_state": {"listener": one}}));
            let configs: Vec<Value> = configs.collect();
            is_gateway(json!({ "configs": configs }).to_string().as_bytes())
        };
        let of = |direction: &str| json!({"name": "a", "traffic_direction": direction});
        // Envoy leaves the direction out if it is not specified.
        assert!(gateway(&[json!({"name": "default"}), of("OUTBOUND")]));
        assert!(!gateway(&[of("OUTBOUND"), of("INBOUND")]));
        assert!(!gateway(&[]));
        assert!(!is_gateway(b"{\"configs\":[{\"error_state\":{}}]}"));
        assert!(!is_gateway(b"{}"));
        assert!(!is_gateway(b"no JSON"));
    }
}
