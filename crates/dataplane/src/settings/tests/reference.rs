//! The reference of all settings as a page of Markdown, derived from the table.

use std::fmt::Write;

use super::super::table::{Item, Kind, SETTINGS, Setting};

/// Headings, each with the first setting of its part of the table.
const SECTIONS: [(&str, Item); 9] = [
    ("The program", Item::Version),
    ("Servers", Item::Addresses),
    ("Credentials", Item::CredentialType),
    ("The proxy", Item::ProxyNodeName),
    ("Log", Item::LogLevel),
    ("xDS and DNS", Item::XdsBindAddr),
    ("Telemetry", Item::TelemetryUseCentralConfig),
    ("Envoy", Item::AdminBindAddress),
    ("Start and stop", Item::ShutdownDrainListeners),
];

const INTRODUCTION: &str = r#"# Settings of `legate-dataplane`

<!-- Made from the declarations in crates/dataplane/src/settings/table.rs by
     UPDATE_GOLDEN=1 cargo test -p legate-dataplane --lib the_page_of_all_settings -->

Every setting can come from a flag, most from an environment variable or a configuration file too.
A flag takes precedence over a variable, a variable over the file, and the file over the default.

- **Flags** take one dash or two: `-name value` or `-name=value`. A boolean flag takes no separate
  value: `-name` or `-name=false`. Flags end at `--` or at the first argument that is not a flag; the
  remaining arguments are passed to Envoy. An empty value counts as set.
- **Variables** that are empty count as unset. Each of `DP_CREDENTIAL_LOGIN_META1` to `META9`
  holds one `key=value`.
- **The file** (`-config-file`) holds one JSON object. A dot in the key column means an object
  within an object. Keys are case-insensitive, `null` counts as absent, and a key that is not in
  this list is an error.
- Metadata (`-login-meta`) from several sources is merged; for each key the stronger source takes
  precedence.
- **Durations** are numbers with units, such as `90s`, `1h30m` or `250ms`. A bare number in the file
  is nanoseconds.
- **IP addresses** may be in brackets.
- **Secrets** are never shown: logs, errors and status print `***` instead. Other users of the
  machine can see command lines: pass secrets in variables or files.
- The deprecated `-service-*` and `-proxy-service-*` settings are ignored if any of the `-proxy-*`
  settings is set by any source.

```json
{
  "consul": {
    "addresses": "consul-server.consul.svc",
    "tls": { "caCertsPath": "/etc/consul/ca.pem", "serverName": "server.dc1.consul" },
    "credentials": {
      "type": "login",
      "login": { "authMethod": "kubernetes", "bearerTokenPath": "/run/token", "meta": { "pod": "default/web" } }
    }
  },
  "proxy": { "nodeName": "node-1", "id": "web-sidecar-proxy" },
  "logging": { "logLevel": "debug" },
  "telemetry": { "prometheus": { "retentionTime": "5m" } }
}
```
"#;

/// The content of `docs/settings.md`.
pub(super) fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    for setting in SETTINGS {
        if let Some((title, _)) = SECTIONS.iter().find(|(_, first)| *first == setting.key) {
            let _ = write!(
                text,
                "\n## {title}\n\n\
                 | Flag | Environment variable | File key | Type | Default | Meaning |\n\
                 |---|---|---|---|---|---|\n"
            );
        }
        text.push_str(&row(setting));
    }
    text
}

fn row(setting: &Setting) -> String {
    let code = |value: Option<&str>| value.map_or("–".to_owned(), |value| format!("`{value}`"));
    let env = match (setting.env, setting.kind) {
        (Some(name), Kind::Pairs) => format!("`{name}1` … `{name}9`"),
        (name, _) => code(name),
    };
    let kind = match setting.kind {
        Kind::Text => "text",
        Kind::Secret => "secret",
        Kind::Int => "integer",
        Kind::Bool => "boolean",
        Kind::Duration => "duration",
        Kind::Pairs => "`key=value`, repeatable",
    };
    format!(
        "| `-{}` | {env} | {} | {kind} | {} | {} |\n",
        setting.flag,
        code(setting.file),
        code(setting.default),
        // A bar would end the cell.
        setting.doc.replace('|', "\\|")
    )
}
