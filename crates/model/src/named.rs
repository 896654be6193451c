//! Enums whose variants have a name in JSON, configuration or rules.

/// Gives the variants of an enum their names: `ALL`, `as_str`, `Display` and, with the type of the
/// error for other texts, `FromStr`.
macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal),+ $(,)? } $($error:ident)?) => {
        impl $type {
            /// All variants.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        $(impl std::str::FromStr for $type {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
                found.ok_or_else(|| $error(text.to_owned()))
            }
        })?
    };
}

pub(crate) use named;
