//! Settings: declared once each, read from flags, environment and file, merged and checked.
//! Nothing outside this module reads the environment or a configuration file, and nothing here
//! acts on a setting.

mod types;

pub use types::{
    Bearer, Credentials, Environment, Envoy, Lifecycle, Logging, Login, Mode, PrometheusTls, Proxy,
    ServerTls, Servers, Settings, Telemetry, XdsBind,
};
