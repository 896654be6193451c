//! Values of a snapshot: how they are compared and reused, and how much is made from them.
//!
//! A struct that is declared in [`values!`] gets all of this from the types of its fields, so no
//! field can be missed.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_ca::Leaf;
use legate_intentions::Action;
use legate_model::{CaRoots, Intention, Mesh, Protocol, ServiceInstance, TrustDomain, Upstream};

use crate::queries::JwtProviders;
use crate::same::{self, Compare};
use crate::snapshot::ProxyId;

/// A value in a snapshot.
pub(crate) trait Value {
    /// Whether both configure a proxy in the same way.
    fn is_same(&self, other: &Self, by: Compare) -> bool;

    /// Replaces parts that have not changed by those of the proxy's last snapshot, so that they are
    /// the same `Arc`s and later stages detect changes by comparing addresses.
    fn adopt(&mut self, last: &Self, by: Compare);

    /// About how many resources, or lists in them, are made from the value. Values that every proxy
    /// has count nothing.
    fn size(&self) -> usize;
}

/// A value that snapshots share as an `Arc`.
pub(crate) trait Shared {
    /// Whether both configure a proxy in the same way.
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, by: Compare) -> bool;

    /// See [`Value::size`].
    fn size(&self) -> usize {
        0
    }
}

/// An element of a list: it keeps its values when its position changes.
pub(crate) trait Element: Value {
    /// Whether this is what the other element was in an earlier list.
    fn is_counterpart(&self, earlier: &Self) -> bool;
}

/// Declares structs whose [`Value`] follows from the types of their fields.
macro_rules! values {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident {
            $( $(#[$of_field:meta])* pub $field:ident: $kind:ty, )*
        }
    )*) => {$(
        $(#[$about])*
        pub struct $name {
            $( $(#[$of_field])* pub $field: $kind, )*
        }

        impl $crate::value::Value for $name {
            fn is_same(&self, other: &Self, by: $crate::same::Compare) -> bool {
                true $( && $crate::value::Value::is_same(&self.$field, &other.$field, by) )*
            }

            fn adopt(&mut self, last: &Self, by: $crate::same::Compare) {
                $( $crate::value::Value::adopt(&mut self.$field, &last.$field, by); )*
            }

            fn size(&self) -> usize {
                0 $( + $crate::value::Value::size(&self.$field) )*
            }
        }
    )*};
}
pub(crate) use values;

impl<T: Shared + ?Sized> Value for Arc<T> {
    fn is_same(&self, other: &Self, by: Compare) -> bool {
        Arc::ptr_eq(self, other) || T::is_same(self, other, by)
    }

    fn adopt(&mut self, last: &Self, by: Compare) {
        if Value::is_same(self, last, by) {
            *self = Arc::clone(last);
        }
    }

    fn size(&self) -> usize {
        Shared::size(&**self)
    }
}

impl<T: Value> Value for Option<T> {
    fn is_same(&self, other: &Self, by: Compare) -> bool {
        match (self, other) {
            (Some(a), Some(b)) => a.is_same(b, by),
            (None, None) => true,
            _ => false,
        }
    }

    fn adopt(&mut self, last: &Self, by: Compare) {
        if let (Some(now), Some(last)) = (self, last) {
            now.adopt(last, by);
        }
    }

    fn size(&self) -> usize {
        self.as_ref().map_or(0, Value::size)
    }
}

impl<T: Element> Value for Vec<T> {
    fn is_same(&self, other: &Self, by: Compare) -> bool {
        self.len() == other.len() && self.iter().zip(other).all(|(a, b)| a.is_same(b, by))
    }

    fn adopt(&mut self, last: &Self, by: Compare) {
        for (place, now) in self.iter_mut().enumerate() {
            let is = |earlier: &&T| now.is_counterpart(earlier);
            let in_place = last.get(place).filter(is);
            if let Some(earlier) = in_place.or_else(|| last.iter().find(is)) {
                now.adopt(earlier, by);
            }
        }
    }

    fn size(&self) -> usize {
        self.iter().map(Value::size).sum()
    }
}

/// Each key counts as one.
impl<K: Ord, T: Value> Value for BTreeMap<K, T> {
    fn is_same(&self, other: &Self, by: Compare) -> bool {
        let same = |((a, one), (b, other)): ((&K, &T), (&K, &T))| a == b && one.is_same(other, by);
        self.len() == other.len() && self.iter().zip(other).all(same)
    }

    fn adopt(&mut self, last: &Self, by: Compare) {
        for (key, now) in self {
            if let Some(last) = last.get(key) {
                now.adopt(last, by);
            }
        }
    }

    fn size(&self) -> usize {
        self.len() + self.values().map(Value::size).sum::<usize>()
    }
}

/// Small values, compared as they are.
macro_rules! plain {
    ($($kind:ty),*) => {$(
        impl Value for $kind {
            fn is_same(&self, other: &Self, _: Compare) -> bool {
                self == other
            }

            fn adopt(&mut self, _: &Self, _: Compare) {}

            fn size(&self) -> usize {
                0
            }
        }
    )*};
}

plain!(bool, u16, Action, Protocol, TrustDomain, ProxyId);

/// Results of shared queries. Those of one store are compared by address.
macro_rules! queried {
    ($($kind:ty, |$one:pat_param| $size:expr;)*) => {$(
        impl $crate::value::Shared for $kind {
            fn is_same(a: &std::sync::Arc<Self>, b: &std::sync::Arc<Self>, by: $crate::same::Compare) -> bool {
                by.same(a, b)
            }

            fn size(&self) -> usize {
                let $one = self;
                $size
            }
        }
    )*};
}
pub(crate) use queried;

queried! {
    Vec<Arc<Intention>>, |all| all.iter().map(|one| 1 + one.permissions.len()).sum();
    JwtProviders, |all| all.len();
    Option<Mesh>, |_| 0;
}

impl Shared for str {
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, _: Compare) -> bool {
        a == b
    }
}

impl Shared for CaRoots {
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, _: Compare) -> bool {
        a == b
    }
}

/// Each counts as one.
impl Shared for Upstream {
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, _: Compare) -> bool {
        a == b
    }

    fn size(&self) -> usize {
        1
    }
}

impl Shared for Leaf {
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, _: Compare) -> bool {
        same::leaf(a, b)
    }
}

/// The proxy's own registration. Its lists count.
impl Shared for ServiceInstance {
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, _: Compare) -> bool {
        same::registration(a, b)
    }

    fn size(&self) -> usize {
        let limits = self.proxy.rate_limits.as_ref();
        self.proxy.expose.paths.len() + limits.map_or(0, |limits| limits.routes.len())
    }
}
