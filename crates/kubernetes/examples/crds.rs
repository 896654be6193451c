//! Writes the CustomResourceDefinitions of the chart: `cargo run -p legate-kubernetes --example crds`.
//!
//! A test compares the files with this output.

use std::path::Path;

use legate_kubernetes::config::{crds, kinds};
use legate_kubernetes::peering;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/legate/crds");
    std::fs::create_dir_all(&folder)?;
    for kind in &kinds::KINDS {
        let text = serde_saphyr::to_string(&crds::definition(kind))?;
        std::fs::write(folder.join(format!("{}.yaml", kind.plural)), text)?;
    }
    for kind in peering::kinds::Kind::ALL {
        let text = serde_saphyr::to_string(&peering::crds::definition(kind))?;
        std::fs::write(folder.join(format!("{}.yaml", kind.plural())), text)?;
    }
    Ok(())
}
