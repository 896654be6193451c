//! `legate agent` as the server of a datacenter.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::control_plane::{DNS, GRPC, GRPC_TLS, HTTP, SERVERS};
use crate::mesh::{Datacenter, MeshOptions};
use crate::server_process::ServerProcess;

/// The process, and the file for the roots that it has when it runs.
pub(crate) struct Agent {
    pub(crate) process: ServerProcess,
    pub(crate) roots: PathBuf,
}

impl Agent {
    /// Writes the configuration; the process is started later.
    ///
    /// # Panics
    ///
    /// If the options name no datacenter with the address of a node.
    pub(crate) fn new(address: IpAddr, options: &MeshOptions, folder: &Path) -> Self {
        let datacenter = options.datacenter.as_ref().expect("a datacenter");
        let node = datacenter.node.expect("the address of a node");
        let mut settings = settings(address, node, datacenter, folder);
        if options.allow {
            settings["default_intention_policy"] = json!("allow");
        }
        let config = folder.join("agent.json");
        std::fs::write(&config, settings.to_string()).expect("the configuration can be written");
        let process = ServerProcess {
            program: "legate",
            address,
            arguments: vec![
                "agent".to_owned(),
                format!("-config-file={}", config.display()),
            ],
            acl: false,
            log: folder.join("agent.log"),
            child: None,
        };
        Self {
            process,
            roots: folder.join("roots.pem"),
        }
    }
}

fn settings(address: IpAddr, node: IpAddr, datacenter: &Datacenter, folder: &Path) -> Value {
    let files = &datacenter.files;
    let mut settings = json!({
        "server": true,
        "datacenter": datacenter.name,
        "primary_datacenter": datacenter.primary,
        "node_name": "server",
        "data_dir": folder.join("data"),
        "bind_addr": node,
        "client_addr": address,
        "ports": {
            "http": HTTP, "grpc": GRPC, "grpc_tls": GRPC_TLS, "dns": DNS, "server": SERVERS,
        },
        "tls": {"internal_rpc": {
            "ca_file": files.policy.client_authorities[0],
            "cert_file": files.certificate,
            "key_file": files.key,
        }},
        "default_intention_policy": "deny",
    });
    if let Some(join) = datacenter.join {
        settings["retry_join_wan"] = json!([join]);
    }
    if let Some(gateways) = &datacenter.gateways {
        settings["connect"] = json!({"enabled": true, "enable_mesh_gateway_wan_federation": true});
        if datacenter.name != datacenter.primary {
            settings["primary_gateways"] = json!(gateways);
            settings["primary_gateways_interval"] = json!("1s");
        }
    }
    settings
}
