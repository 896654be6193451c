//! Information about the host, in the format of Consul's `/v1/agent/host`. Values that the kernel does not
//! provide are omitted and listed under `Errors`.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Collects all information. Reads files in `/proc` and `/etc`.
pub(super) fn info(now: SystemTime) -> Value {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut errors = Vec::new();
    let mut part = |name: &str, value: Option<Value>| {
        if value.is_none() {
            errors.push(format!("{name}: not available on this system"));
        }
        value
    };
    let memory = part("memory", memory());
    let cpu = part("cpu", cpus());
    let host = part("host", host(since.as_secs()));
    let disk = part("disk", disk());
    json!({
        "Memory": memory,
        "CPU": cpu,
        "Host": host,
        "Disk": disk,
        "CollectionTime": u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        "Errors": Some(errors).filter(|errors| !errors.is_empty()),
    })
}

/// Parses `key: value` lines.
fn pairs(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "a percentage needs no more")]
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64 * 100.0,
    }
}

fn memory() -> Option<Value> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let known = pairs(&text);
    let bytes = |key: &str| -> Option<u64> {
        let kilobytes = known.get(key)?.split(' ').next()?;
        Some(kilobytes.parse::<u64>().ok()? * 1024)
    };
    let (total, free) = (bytes("MemTotal")?, bytes("MemFree")?);
    let available = bytes("MemAvailable").unwrap_or(free);
    let cached = bytes("Cached").unwrap_or_default();
    let buffers = bytes("Buffers").unwrap_or_default();
    let used = total.saturating_sub(free + cached + buffers);
    Some(json!({
        "total": total,
        "available": available,
        "used": used,
        "usedPercent": percent(used, total),
        "free": free,
        "active": bytes("Active"),
        "inactive": bytes("Inactive"),
        "buffers": buffers,
        "cached": cached,
        "swapTotal": bytes("SwapTotal"),
        "swapFree": bytes("SwapFree"),
    }))
}

fn cpus() -> Option<Value> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let all = text.split("\n\n").map(pairs);
    let all = all.filter_map(|cpu| {
        let number: u64 = cpu.get("processor")?.parse().ok()?;
        let text = |key: &str| cpu.get(key).copied().unwrap_or_default();
        Some(json!({
            "cpu": number,
            "vendorId": text("vendor_id"),
            "family": text("cpu family"),
            "model": text("model"),
            "modelName": text("model name"),
            "physicalId": text("physical id"),
            "coreId": text("core id"),
            "cores": 1,
            "mhz": text("cpu MHz").parse::<f64>().unwrap_or_default(),
        }))
    });
    Some(all.collect())
}

fn host(now: u64) -> Option<Value> {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let uptime = read("/proc/uptime").ok()?;
    let uptime: u64 = uptime.split(['.', ' ']).next()?.parse().ok()?;
    let release = read("/etc/os-release").unwrap_or_default();
    let distribution = |key: &str| {
        let found = release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_default().trim_matches('"').to_owned()
    };
    let processes = fs::read_dir("/proc").map(|all| {
        let names = all.flatten().map(|one| one.file_name());
        let is_number = |name: &std::ffi::OsString| {
            name.to_str()
                .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        };
        names.filter(is_number).count()
    });
    Some(json!({
        "hostname": read("/proc/sys/kernel/hostname").unwrap_or_default(),
        "uptime": uptime,
        "bootTime": now.saturating_sub(uptime),
        "procs": processes.unwrap_or_default(),
        "os": std::env::consts::OS,
        "platform": distribution("ID"),
        "platformFamily": distribution("ID_LIKE"),
        "platformVersion": distribution("VERSION_ID"),
        "kernelVersion": read("/proc/sys/kernel/osrelease").unwrap_or_default(),
        "kernelArch": std::env::consts::ARCH,
        "hostId": read("/etc/machine-id").unwrap_or_default(),
    }))
}

fn disk() -> Option<Value> {
    let root = nix::sys::statvfs::statvfs("/").ok()?;
    let size = root.fragment_size();
    let (total, free) = (root.blocks() * size, root.blocks_available() * size);
    let used = (root.blocks() - root.blocks_free().min(root.blocks())) * size;
    Some(json!({
        "path": "/",
        "total": total,
        "free": free,
        "used": used,
        "usedPercent": percent(used, used + free),
        "inodesTotal": root.files(),
        "inodesFree": root.files_free(),
        "inodesUsed": root.files().saturating_sub(root.files_free()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_host_information_is_available() {
        let info = info(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(10));
        assert_eq!(info["CollectionTime"], 10_000_000_000_u64);
        assert_eq!(info["Errors"], Value::Null, "{info}");
        assert!(info["Memory"]["total"].as_u64() > Some(0));
        assert!(info["Disk"]["total"].as_u64() > Some(0));
        assert!(!info["CPU"].as_array().unwrap().is_empty());
        assert_eq!(info["Host"]["os"], "linux");
    }
}
