//! What the proxies of gateways of Kubernetes clusters have made of what was written.
//!
//! Each server notes what the proxies that are connected to it have acknowledged and rejected, in
//! one row for each gateway. A report that says nothing new is not written.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::Tenancy;
use serde::{Deserialize, Serialize};

use crate::gateways::{GatewayContent, GatewayRow};
use crate::read::ReadTxn;
use crate::write::WriteTxn;

/// The most proxies of a gateway whose rejections are noted. All have the same configuration, and in
/// general reject the same.
const MAX_REJECTING: usize = 4;

/// The generations of the objects that a gateway serves, as its operator names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generations {
    /// The index at which the gateway was written first: one that is removed and written again is
    /// another.
    pub since: u64,
    /// By object.
    pub of: BTreeMap<String, i64>,
}

/// What a proxy has made of the configuration of its gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayReport {
    /// The proxy's tenancy, which is that of the gateway.
    pub tenancy: Tenancy,
    /// The gateway.
    pub gateway: String,
    /// The node of the proxy.
    pub node: String,
    /// The ID of its registration.
    pub proxy: String,
    /// What it has acknowledged completely; `None` if it has not acknowledged anything yet.
    pub acknowledged: Option<Arc<Generations>>,
    /// What it does not serve as it was written, by port, with the reasons.
    pub rejected: BTreeMap<String, String>,
}

/// What the proxies of a gateway have made of what was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct GatewayStatus {
    /// Who writes the gateway; empty if that was not said.
    pub owner: String,
    /// The newest generation of each object that a proxy has acknowledged with everything else.
    pub acknowledged: BTreeMap<String, i64>,
    /// Why a port is not served as it was written: `443`, `53/udp`, or empty for what is not of one
    /// port.
    pub rejected: BTreeMap<String, String>,
}

/// The status of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GatewayStatusRow {
    pub(crate) gateway: String,
    acknowledged: BTreeMap<String, i64>,
    /// At most [`MAX_REJECTING`].
    rejected: Vec<Rejecting>,
    pub(crate) modify_index: u64,
}

/// A proxy that rejects something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Rejecting {
    node: String,
    proxy: String,
    by_port: BTreeMap<String, String>,
}

impl Rejecting {
    fn is_by(&self, report: &GatewayReport) -> bool {
        self.node.eq_ignore_ascii_case(&report.node) && self.proxy == report.proxy
    }
}

impl ReadTxn<'_> {
    /// The generations of what a gateway serves; `None` if there is no such gateway.
    pub fn gateway_generations(&self, gateway: &str) -> Option<Arc<Generations>> {
        let row: Arc<GatewayRow> = self.get(&[gateway])?;
        Some(Arc::clone(&row.generations))
    }

    /// What the proxies of a gateway have made of it; `None` if there is no such gateway.
    pub fn gateway_status(&self, gateway: &str) -> Option<GatewayStatus> {
        let owner = self.gateway_owner(gateway)?;
        let row: Option<Arc<GatewayStatusRow>> = self.get(&[gateway]);
        let mut status = GatewayStatus {
            owner,
            ..GatewayStatus::default()
        };
        if let Some(row) = row {
            status.acknowledged.clone_from(&row.acknowledged);
            for one in row.rejected.iter().filter(|one| self.is_registered(one)) {
                for (port, reason) in &one.by_port {
                    let entry = status.rejected.entry(port.clone());
                    entry.or_insert_with(|| reason.clone());
                }
            }
        }
        Some(status)
    }

    /// Whether a report says nothing new.
    pub fn is_noted(&self, report: &GatewayReport) -> bool {
        self.in_tenancy(&report.tenancy, |txn| txn.with(report).is_none())
    }

    /// The status of a gateway with a report; `None` if it stays as it is, or the gateway is gone.
    fn with(&self, report: &GatewayReport) -> Option<GatewayStatusRow> {
        let written = self.gateway_generations(&report.gateway)?;
        let row: Option<Arc<GatewayStatusRow>> = self.get(&[&report.gateway]);
        let before = row.map_or_else(
            || GatewayStatusRow {
                gateway: report.gateway.clone(),
                ..GatewayStatusRow::default()
            },
            |row| GatewayStatusRow::clone(&row),
        );
        let mut now = before.clone();
        let acknowledged = report.acknowledged.as_ref();
        let acknowledged = acknowledged.filter(|all| all.since == written.since);
        for (object, generation) in acknowledged.into_iter().flat_map(|all| &all.of) {
            // An object that is gone, or was created again meanwhile, is another one.
            let is_written = written.of.get(object).is_some_and(|now| generation <= now);
            let known = now.acknowledged.get(object);
            if is_written && known.is_none_or(|known| known < generation) {
                now.acknowledged.insert(object.clone(), *generation);
            }
        }
        now.rejected
            .retain(|one| !one.is_by(report) && self.is_registered(one));
        if !report.rejected.is_empty() && now.rejected.len() < MAX_REJECTING {
            now.rejected.push(Rejecting {
                node: report.node.clone(),
                proxy: report.proxy.clone(),
                by_port: report.rejected.clone(),
            });
        }
        now.rejected
            .sort_by(|a, b| (&a.node, &a.proxy).cmp(&(&b.node, &b.proxy)));
        (now != before).then_some(now)
    }

    fn is_registered(&self, one: &Rejecting) -> bool {
        self.instance(&one.node, &one.proxy).is_some()
    }
}

impl WriteTxn {
    /// Notes what proxies have made of their gateways. What says nothing new is not written.
    pub fn note_gateway_reports(&mut self, reports: &[GatewayReport]) {
        for report in reports {
            self.in_tenancy(&report.tenancy, |txn| {
                if let Some(row) = txn.read().with(report) {
                    let modify_index = txn.index();
                    txn.put(GatewayStatusRow {
                        modify_index,
                        ..row
                    });
                }
            });
        }
    }

    /// Replaces the generations of a gateway, which is created if there is none. What was
    /// acknowledged of other objects, or of later generations, is forgotten.
    pub(crate) fn put_generations(&mut self, gateway: &str, content: &GatewayContent) {
        let modify_index = self.index();
        let all = &content.generations;
        let before: Option<Arc<GatewayRow>> = self.read().get(&[gateway]);
        let is_same = before.as_ref().is_some_and(|before| {
            before.owner == content.owner
                && before.generations.of == *all
                && before.frontend == content.frontend
        });
        if !is_same {
            self.put(GatewayRow {
                name: gateway.to_owned(),
                owner: content.owner.clone(),
                generations: Arc::new(Generations {
                    since: before.map_or(modify_index, |before| before.generations.since),
                    of: all.clone(),
                }),
                frontend: content.frontend.clone(),
                modify_index,
            });
        }
        let row: Option<Arc<GatewayStatusRow>> = self.read().get(&[gateway]);
        let Some(row) = row else {
            return;
        };
        let mut now = GatewayStatusRow::clone(&row);
        now.acknowledged.retain(|object, acknowledged| {
            let written = all.get(object);
            written.is_some_and(|written| *acknowledged <= *written)
        });
        if now != *row {
            self.put(GatewayStatusRow {
                modify_index,
                ..now
            });
        }
    }

    pub(crate) fn remove_gateway_status(&mut self, gateway: &str) {
        self.remove::<GatewayStatusRow>(&[gateway]);
    }
}
