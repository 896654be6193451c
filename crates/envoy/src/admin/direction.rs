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
    warming_state: Option<State>,
    draining_state: Option<State>,
    error_state: Option<Failure>,
}

#[derive(Deserialize)]
struct State {
    listener: Listener,
}

/// A listener that Envoy refused, perhaps without a word about it.
#[derive(Deserialize)]
struct Failure {
    failed_configuration: Option<Listener>,
}

#[derive(Deserialize)]
struct Listener {
    traffic_direction: Option<String>,
}

impl Named {
    /// In all of its states: a refused inbound listener tells a sidecar as well as one that serves.
    fn is_inbound(&self) -> bool {
        let states = [
            &self.active_state,
            &self.warming_state,
            &self.draining_state,
        ];
        let known = states.into_iter().flatten().map(|state| &state.listener);
        let refused = self.error_state.as_ref();
        let refused = refused.and_then(|failure| failure.failed_configuration.as_ref());
        known
            .chain(refused)
            .any(|listener| listener.traffic_direction.as_deref() == Some("INBOUND"))
    }
}

/// Whether there are listeners, and none of them is for an application's inbound traffic.
pub(super) fn is_gateway(dump: &[u8]) -> bool {
    let Ok(dump) = serde_json::from_slice::<Dump>(dump) else {
        return false;
    };
    let serves = dump.configs.iter().any(|one| one.active_state.is_some());
    serves && !dump.configs.iter().any(Named::is_inbound)
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
        // The application uses its outbound listeners while Envoy has no inbound one yet, or refuses it.
        for state in [
            json!({"warming_state": {"listener": of("INBOUND")}}),
            json!({"draining_state": {"listener": of("INBOUND")}}),
            json!({"error_state": {"failed_configuration": of("INBOUND"), "details": "refused"}}),
        ] {
            let configs = json!([{"active_state": {"listener": of("OUTBOUND")}}, state]);
            let dump = json!({ "configs": configs }).to_string();
            assert!(!is_gateway(dump.as_bytes()), "{dump}");
        }
        assert!(!is_gateway(b"{\"configs\":[{\"error_state\":{}}]}"));
        assert!(!is_gateway(b"{}"));
        assert!(!is_gateway(b"no JSON"));
    }
}
