//! `service-intentions`: the intentions of one destination service.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::entry::{Entry, EntryRights, entry};
use crate::intention::{
    Intention, IntentionAction, IntentionPermission, SOURCE_TYPE_CONSUL, normalise_permissions,
    precedence, validate_source, validate_wildcards,
};
use crate::invalid::Invalid;
use crate::jwt_requirement::JwtRequirement;
use crate::name::WILDCARD;
use crate::schema;
use crate::tenancy::{NotServed, PeerName, ServiceName, Tenancy, TenancyName};
use crate::{meta, name, timestamp};

entry! {
    /// The intentions of one destination service.
    #[derive(JsonSchema)]
    #[schemars(extend("required" = ["Sources"]))]
    pub struct ServiceIntentions {
        /// The destination, or `*`.
        pub name: String,
        /// The sources; once normalised, in order of precedence.
        #[schemars(length(min = 1, max = 1024))]
        pub sources: Vec<SourceIntention>,
        /// The token that every request requires, independent of its source.
        #[serde(rename = "JWT", skip_serializing_if = "Option::is_none")]
        pub jwt: Option<JwtRequirement>,
    }
}

/// Permissions of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Name"]))]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule("{permissions} != {action}", "exactly one of action and permissions is needed"),
    schema::at_most_one(&["peer", "partition", "samenessGroup"]),
]))]
pub struct SourceIntention {
    /// The source service, or `*`.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Namespace; empty means the entry's own, or `default` for a service of a peer.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The peer whose service it is, by its local name; empty means a service of this cluster. Its partition is the one
    /// that is peered there.
    #[serde(skip_serializing_if = "PeerName::is_empty")]
    pub peer: PeerName,
    /// Refused: sameness groups are not served.
    #[serde(skip_serializing)]
    #[schemars(with = "String")]
    pub sameness_group: NotServed,
    /// Action for every connection; unset when there are permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "allow", "deny"]))]
    pub action: Option<IntentionAction>,
    /// Permissions by request attributes; empty when there is an action.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub permissions: Vec<IntentionPermission>,
    /// Computed from the names; values from clients are ignored.
    pub precedence: u32,
    /// Id for the legacy intention endpoints; empty if the intention was written by other endpoints.
    #[serde(rename = "LegacyID", skip_serializing_if = "String::is_empty")]
    pub legacy_id: String,
    /// Free key/value pairs of a legacy intention.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub legacy_meta: BTreeMap<String, String>,
    /// When a legacy intention was created.
    #[serde(
        deserialize_with = "legacy_time",
        serialize_with = "timestamp::option::serialize",
        skip_serializing_if = "Option::is_none"
    )]
    pub legacy_create_time: Option<SystemTime>,
    /// When a legacy intention was last changed.
    #[serde(
        deserialize_with = "legacy_time",
        serialize_with = "timestamp::option::serialize",
        skip_serializing_if = "Option::is_none"
    )]
    pub legacy_update_time: Option<SystemTime>,
    /// Always `consul`.
    pub r#type: String,
    /// Free text of at most 512 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub description: String,
}

/// A time in the form that servers write. Any other value is discarded.
fn legacy_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    let time = text.and_then(|text| timestamp::parse(&text).ok());
    Ok(time.filter(|time| *time > SystemTime::UNIX_EPOCH))
}

impl ServiceIntentions {
    /// The destination service.
    pub fn destination(&self) -> ServiceName {
        ServiceName::new(&Tenancy::new(&self.partition, &self.namespace), &self.name)
    }

    /// The entry's intentions, one for each source, in the order of the sources.
    pub fn intentions(&self) -> impl Iterator<Item = Intention> + '_ {
        let destination = self.destination();
        self.sources.iter().map(move |source| {
            let caller = source.service(&destination.tenancy);
            let mut intention = Intention {
                id: source.legacy_id.clone(),
                description: source.description.clone(),
                action: source.action,
                permissions: source.permissions.clone(),
                meta: match source.legacy_id.is_empty() {
                    true => self.meta.clone(),
                    false => source.legacy_meta.clone(),
                },
                jwt: self.jwt.clone(),
                precedence: precedence(&caller, &destination),
                created_at: source.legacy_create_time,
                updated_at: source.legacy_update_time,
                create_index: self.create_index,
                modify_index: self.modify_index,
                ..Intention::default()
            };
            intention.set_ends(&caller, &destination);
            intention
        })
    }
}

impl ServiceIntentions {
    /// Sets computed fields and sorts the sources by precedence.
    pub fn arrange(&mut self) {
        let destination = self.destination();
        for source in &mut self.sources {
            source.precedence = precedence(&source.service(&destination.tenancy), &destination);
            if source.r#type.is_empty() {
                source.r#type = SOURCE_TYPE_CONSUL.to_owned();
            }
            normalise_permissions(&mut source.permissions);
        }
        // Stable: sources of the same precedence retain the user's order.
        self.sources
            .sort_by_key(|source| Reverse(source.precedence));
    }
}

impl Entry for ServiceIntentions {
    const RIGHTS: EntryRights = EntryRights::Intention;

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_intention_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        let destination = self.destination();
        validate_wildcards(&destination).map_err(|reason| Invalid::new("Namespace", reason))?;
        if let Some(jwt) = &self.jwt {
            jwt.validate().map_err(|error| error.within("JWT"))?;
        }
        if self.sources.is_empty() {
            return Err(Invalid::new(
                "Sources",
                "At least one source is required; delete the entry to have no intentions",
            ));
        }
        for (i, source) in self.sources.iter().enumerate() {
            source
                .validate(&destination)
                .map_err(|error| error.within(format_args!("Sources[{i}]")))?;
            if self.sources[..i].iter().any(|other| {
                let own = &destination.tenancy;
                other.name == source.name && other.service(own) == source.service(own)
            }) {
                return Err(Invalid::new(
                    format!("Sources[{i}].Name"),
                    match source.peer.is_empty() {
                        true => format!("defines {:?} more than once", source.name),
                        false => format!(
                            "defines peer({:?}) {:?} more than once",
                            source.peer.as_str(),
                            source.name
                        ),
                    },
                ));
            }
        }
        meta::validate_entry("Meta", &self.meta)
    }

    /// Writing the whole entry drops the legacy fields, and with them the ids of the legacy
    /// endpoints.
    fn normalise(&mut self) {
        for source in &mut self.sources {
            source.legacy_id.clear();
            source.legacy_meta.clear();
            source.legacy_create_time = None;
            source.legacy_update_time = None;
        }
        self.arrange();
    }
}

impl SourceIntention {
    /// The source service, relative to the destination's tenancy. That of a peer is in a tenancy of the peer, so it never
    /// equals a service of this cluster.
    pub fn service(&self, destination: &Tenancy) -> ServiceName {
        let tenancy = match self.peer.is_empty() {
            true => destination.resolve(&self.partition, &self.namespace),
            // As in Consul, its namespace is not inherited.
            false => {
                let home = destination.of_partition().of_peer(self.peer.as_str());
                home.in_namespace(&self.namespace)
            }
        };
        ServiceName::new(&tenancy, &self.name)
    }

    fn validate(&self, destination: &ServiceName) -> Result<(), Invalid> {
        name::validate_intention_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        validate_wildcards(&self.service(&destination.tenancy))
            .map_err(|reason| Invalid::new("Namespace", reason))?;
        self.validate_peer()?;
        validate_source(
            &self.r#type,
            &self.description,
            self.action,
            &self.permissions,
            &destination.name,
        )
    }
}

impl SourceIntention {
    /// With Consul's error texts.
    fn validate_peer(&self) -> Result<(), Invalid> {
        let peer = self.peer.as_str();
        if peer.contains(WILDCARD) {
            return Err(Invalid::new("Peer", "cannot use wildcard '*' in peer"));
        }
        if !peer.is_empty() && !self.partition.is_empty() {
            let reason = "cannot set Peer and Partition at the same time.";
            return Err(Invalid::new("Peer", reason));
        }
        if !peer.is_empty() && !self.legacy_id.is_empty() {
            return Err(Invalid::new("Peer", "cannot be set by legacy intentions"));
        }
        Ok(())
    }
}

impl From<Intention> for SourceIntention {
    fn from(intention: Intention) -> Self {
        let (source, destination) = (intention.source(), intention.destination());
        let (of_source, of_destination) = (&source.tenancy, &destination.tenancy);
        let named = |own: &str, other: &str| match own == other {
            true => TenancyName::default(),
            false => own.parse().unwrap_or_default(),
        };
        let of_peer = !of_source.peer.is_empty();
        SourceIntention {
            precedence: precedence(&source, &destination),
            partition: match of_peer {
                true => TenancyName::default(),
                false => named(&of_source.partition, &of_destination.partition),
            },
            peer: of_source.shown_peer(),
            namespace: match of_peer {
                true => of_source.shown_namespace(),
                false => named(&of_source.namespace, &of_destination.namespace),
            },
            name: intention.source_name,
            action: intention.action,
            permissions: intention.permissions,
            r#type: intention.source_type,
            description: intention.description,
            legacy_meta: match intention.id.is_empty() {
                true => BTreeMap::new(),
                false => intention.meta,
            },
            legacy_id: intention.id,
            legacy_create_time: intention.created_at,
            legacy_update_time: intention.updated_at,
            ..SourceIntention::default()
        }
    }
}
