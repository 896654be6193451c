//! Whether proxies serve what a gateway asks for.

use crate::condition::Problem;
use crate::object::Object;
use crate::types::{Gateway, GatewayAddress};
use crate::world::Front;

const PENDING: &str = "Pending";

/// Why a gateway is not served as it asks for.
pub(super) fn gateway(object: &Object<Gateway>, front: Option<&Front>) -> Option<Problem> {
    let Some(front) = front else {
        return Some(Problem::new(PENDING, "nothing was made for it yet"));
    };
    let has = |wanted: &&GatewayAddress| {
        wanted.value.is_empty() || front.addresses.iter().any(|one| is_same(one, wanted))
    };
    let mut wanted = object.spec.addresses.iter();
    if front.addresses.is_empty() && wanted.all(|one| one.value.is_empty()) {
        if let Some(reason) = &front.failed {
            return Some(Problem::new(PENDING, reason));
        }
        return Some(Problem::new("AddressNotAssigned", "it has no address yet"));
    }
    let mut wanted = object.spec.addresses.iter();
    if let Some(missing) = wanted.find(|one| !has(one)) {
        let message = format!("the address {} was not given to it", missing.value);
        return Some(Problem::new("AddressNotUsable", message));
    }
    acknowledged(Some(front), front.generation >= object.meta.generation)
}

fn is_same(one: &GatewayAddress, other: &GatewayAddress) -> bool {
    one.value == other.value && kind(one) == kind(other)
}

fn kind(address: &GatewayAddress) -> &str {
    address.r#type.as_deref().unwrap_or("IPAddress")
}

/// Why proxies do not serve something, if they have acknowledged it or not.
pub(super) fn acknowledged(front: Option<&Front>, is_acknowledged: bool) -> Option<Problem> {
    let failed = front.and_then(|front| front.failed.as_deref());
    let problem = |message| Some(Problem::new(PENDING, failed.unwrap_or(message)));
    match front {
        Some(front) if !front.ready => problem("no proxy is ready"),
        Some(_) if is_acknowledged => None,
        _ => problem("no proxy has acknowledged it yet"),
    }
}
