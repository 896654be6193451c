//! The macro that turns the list of config entry kinds into one type.

/// Generates and exports [`super::ConfigKind`] and [`super::ConfigEntry`] from a list of types and
/// their JSON names.
macro_rules! config_entries {
    ($($(#[$doc:meta])+ $module:ident::$entry:ident = $name:literal,)+) => {
        $(pub use $module::$entry;)+

        /// A kind of config entry that is served.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ConfigKind {
            $($(#[$doc])+ $entry,)+
        }

        impl ConfigKind {
            /// Every kind.
            pub const ALL: [ConfigKind; [$($name),+].len()] = [$(ConfigKind::$entry),+];

            /// The name in JSON and in URLs.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(ConfigKind::$entry => $name,)+
                }
            }

            /// Permissions for entries of this kind.
            pub const fn rights(self) -> EntryRights {
                match self {
                    $(ConfigKind::$entry => $entry::RIGHTS,)+
                }
            }

            /// Whether entries of this kind have any effect.
            pub const fn is_in_effect(self) -> bool {
                match self {
                    $(ConfigKind::$entry => $entry::IN_EFFECT,)+
                }
            }
        }

        /// One config entry.
        ///
        /// In JSON, the kind is a field of the entry (`Kind`). Decode requests with
        /// [`crate::json::from_slice`], which accepts every spelling and can refuse unknown fields.
        #[derive(Debug, Clone, PartialEq)]
        pub enum ConfigEntry {
            $($(#[$doc])+ $entry($entry),)+
        }

        impl ConfigEntry {
            /// The entry's kind.
            pub const fn kind(&self) -> ConfigKind {
                match self {
                    $(ConfigEntry::$entry(_) => ConfigKind::$entry,)+
                }
            }

            /// Its name, unique within its kind.
            pub fn name(&self) -> &str {
                if let ConfigEntry::Mesh(_) = self {
                    return Mesh::NAME;
                }
                match self {
                    $(ConfigEntry::$entry(entry) => &entry.name,)+
                }
            }

            /// The entry's name and tenancy.
            pub fn full_name(&self) -> ServiceName {
                let (partition, namespace) = self.named_tenancy();
                ServiceName::new(&Tenancy::new(partition, namespace), self.name())
            }

            /// The partition and namespace fields, as set in the entry.
            pub const fn named_tenancy(&self) -> (&TenancyName, &TenancyName) {
                match self {
                    $(ConfigEntry::$entry(entry) => (&entry.partition, &entry.namespace),)+
                }
            }

            /// Sets the tenancy.
            pub fn set_tenancy(&mut self, tenancy: &Tenancy) {
                match self {
                    $(ConfigEntry::$entry(entry) => {
                        entry.partition = tenancy.shown_partition();
                        entry.namespace = tenancy.shown_namespace();
                    })+
                }
            }

            /// Other services that the entry may route requests to, without duplicates. Their
            /// discovery chains are part of its own service's chain.
            pub fn destinations(&self) -> Vec<ServiceName> {
                let references = match self {
                    $(ConfigEntry::$entry(entry) => Entry::destinations(entry),)+
                };
                let own = self.full_name();
                let mut all: Vec<_> = references.iter().map(|to| to.resolve(&own)).collect();
                all.retain(|service| *service != own);
                all.sort_unstable();
                all.dedup();
                all
            }

            /// Index of the write that created it.
            pub const fn create_index(&self) -> u64 {
                match self {
                    $(ConfigEntry::$entry(entry) => entry.create_index,)+
                }
            }

            /// Index of the last write that changed it.
            pub const fn modify_index(&self) -> u64 {
                match self {
                    $(ConfigEntry::$entry(entry) => entry.modify_index,)+
                }
            }

            /// Sets both indexes, which the store owns.
            pub fn set_indexes(&mut self, create: u64, modify: u64) {
                match self {
                    $(ConfigEntry::$entry(entry) => {
                        (entry.create_index, entry.modify_index) = (create, modify);
                    })+
                }
            }

            /// Normalises the entry into the form that is stored: lower-case protocol, computed
            /// precedence, sources in order of precedence. Call it after [`ConfigEntry::validate`].
            pub fn normalise(&mut self) {
                match self {
                    $(ConfigEntry::$entry(entry) => Entry::normalise(entry),)+
                }
            }

            /// # Errors
            ///
            /// [`Invalid`] names the first field that cannot be accepted.
            pub fn validate(&self) -> Result<(), Invalid> {
                match self {
                    $(ConfigEntry::$entry(entry) => Entry::validate(entry),)+
                }
            }
        }

        /// An entry's fields, preceded by the kind.
        #[derive(Serialize)]
        #[serde(tag = "Kind")]
        enum Tagged<'a> {
            $(#[serde(rename = $name)] $entry(&'a $entry),)+
        }

        impl Serialize for ConfigEntry {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let tagged = match self {
                    $(ConfigEntry::$entry(entry) => Tagged::$entry(entry),)+
                };
                tagged.serialize(serializer)
            }
        }

        /// Decodes the fields of an entry of one kind.
        fn decode<'de, A: VariantAccess<'de>>(
            kind: ConfigKind,
            fields: A,
        ) -> Result<ConfigEntry, A::Error> {
            Ok(match kind {
                $(ConfigKind::$entry => ConfigEntry::$entry(fields.newtype_variant()?),)+
            })
        }
    };
}

pub(super) use config_entries;
