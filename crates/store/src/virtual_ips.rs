//! Virtual IPs of services: allocation, manual assignment and release.
//!
//! A service gets a virtual IP with its first instance in the mesh, its first config entry or the first
//! terminating gateway that leads to it, in the same transaction. It keeps it while it has one of them, or a
//! proxy. Then the
//! number is freed for reuse. [`VirtualIp::choose`] selects numbers. Additional virtual IPs can be
//! assigned manually to a service that has one, and are released with it. They are addresses in the
//! partition's network: two partitions may assign the same ones.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use legate_model::virtual_ip::{VirtualIp, is_given_for};
use legate_model::{
    ConfigEntry, ConfigKind, ServiceAddress, ServiceInstance, ServiceName, Tenancy, virtual_ip,
};

use crate::key::{Key, Table};
use crate::read::ReadTxn;
use crate::rejected::Rejected;
use crate::rows::{FreedVirtualIpRow, InstanceRow, LastVirtualIpRow, VirtualIpRow};
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// The virtual IP of a service. `None` for a name with neither an instance in the mesh nor a
    /// config entry of a kind that allocates one.
    pub fn virtual_ip(&self, service: &str) -> Option<VirtualIp> {
        self.get::<VirtualIpRow>(&[service]).map(|row| row.ip)
    }

    /// The manually assigned virtual IPs of a service.
    pub fn manual_virtual_ips(&self, service: &str) -> BTreeSet<Ipv4Addr> {
        let row = self.get::<VirtualIpRow>(&[service]);
        row.map(|row| row.manual.clone()).unwrap_or_default()
    }

    /// The services with a virtual IP in all tenancies, ordered by partition, namespace and name.
    pub fn services_with_virtual_ips(&self) -> Vec<ServiceName> {
        let all = Key::table_of(Table::VirtualIps);
        let rows = self.state.below(&all);
        let mut services = Vec::new();
        // Rows of one tenancy are adjacent.
        let mut of: Option<(Key, Tenancy)> = None;
        for (key, stored) in rows {
            let Some(row) = stored.get::<VirtualIpRow>() else {
                continue;
            };
            self.seen(stored);
            if !of.as_ref().is_some_and(|(first, _)| key.is_below(first)) {
                let tenancy = key.tenancy().unwrap_or_default();
                of = Some((Key::new(Table::VirtualIps, &tenancy, &[]), tenancy));
            }
            if let Some((_, tenancy)) = &of {
                services.push(ServiceName::new(tenancy, &row.service));
            }
        }
        self.note(all);
        services
    }
}

impl WriteTxn {
    /// Sets the virtual IP of its service in an instance in the mesh, and allocates one if needed.
    /// As in Consul, a value from the client is overwritten.
    ///
    /// # Errors
    /// [`Rejected::NoVirtualIpLeft`].
    pub(crate) fn tag_virtual_ip(
        &mut self,
        instance: &mut ServiceInstance,
    ) -> Result<(), Rejected> {
        let Some(service) = instance.destination().map(str::to_owned) else {
            return Ok(());
        };
        let tagged = ServiceAddress {
            address: self.allocate_virtual_ip(&service)?.address().to_string(),
            port: instance.port,
        };
        let key = virtual_ip::TAGGED_ADDRESS.to_owned();
        instance.tagged_addresses.insert(key, tagged);
        Ok(())
    }

    /// The virtual IP of a service, allocated if needed.
    ///
    /// # Errors
    /// [`Rejected::NoVirtualIpLeft`].
    pub(crate) fn allocate_virtual_ip(&mut self, service: &str) -> Result<VirtualIp, Rejected> {
        if let Some(ip) = self.read().virtual_ip(service) {
            return Ok(ip);
        }
        let freed = self.first_freed_virtual_ip();
        let last = self.read().get::<LastVirtualIpRow>(&[]).map(|row| row.ip);
        let ip = VirtualIp::choose(freed, last).ok_or_else(|| Rejected::NoVirtualIpLeft {
            service: service.to_owned(),
        })?;
        let modify_index = self.index();
        if freed.is_some() {
            self.remove::<FreedVirtualIpRow>(&[&FreedVirtualIpRow::name(ip)]);
        } else {
            self.put(LastVirtualIpRow { ip, modify_index });
        }
        let service = service.to_owned();
        self.put(VirtualIpRow {
            service,
            ip,
            manual: BTreeSet::new(),
            namespace: self.tenancy.shown_namespace(),
            partition: self.tenancy.shown_partition(),
            modify_index,
        });
        Ok(ip)
    }

    /// Replaces the manually assigned virtual IPs of a service, and removes the new ones from other
    /// services in its partition. Returns those services, ordered by namespace and name. `None`,
    /// without a change, if the service has no automatic virtual IP.
    pub fn assign_virtual_ips(
        &mut self,
        service: &str,
        ips: &BTreeSet<Ipv4Addr>,
    ) -> Option<Vec<ServiceName>> {
        let own: Arc<VirtualIpRow> = self.read().get(&[service])?;
        if own.manual == *ips {
            return Some(Vec::new());
        }
        let mut taken_from = BTreeSet::new();
        for ip in ips {
            let entry = self.read().key(Table::ManualVirtualIps, &[&ip.to_string()]);
            let holder: Option<Arc<VirtualIpRow>> = self.read().find(entry);
            if let Some(holder) = holder.filter(|holder| !is_of_same(holder, &own)) {
                let left = holder.manual.iter().filter(|held| *held != ip);
                self.put_manual(&holder, left.copied().collect());
                taken_from.insert(ServiceName::new(&home_of(&holder), &holder.service));
            }
        }
        self.put_manual(&own, ips.clone());
        Some(taken_from.into_iter().collect())
    }

    fn put_manual(&mut self, row: &VirtualIpRow, manual: BTreeSet<Ipv4Addr>) {
        let row = VirtualIpRow {
            manual,
            modify_index: self.index(),
            ..row.clone()
        };
        let home = home_of(&row);
        self.in_tenancy(&home, |txn| txn.put(row));
    }

    /// Frees the virtual IP of a service without instances and config entries.
    ///
    /// Consul does not count the proxies of the service: it frees the address with the last
    /// instance, while sidecars still have it, and never frees it if there were only sidecars.
    pub(crate) fn free_virtual_ip(&mut self, service: &str) {
        let read = self.read();
        let Some(ip) = read.virtual_ip(service) else {
            return;
        };
        let indexes = [Table::InstancesByService, Table::InstancesByDestination];
        let kinds = ConfigKind::ALL.into_iter();
        let mut kinds = kinds.filter(|kind| is_given_for(*kind, service));
        let needed = indexes.iter().any(|index| read.leads(*index, &[service]))
            || kinds.any(|kind| read.config_entry(kind, service).is_some())
            || read.is_behind_a_gateway(service);
        drop(read);
        if needed {
            return;
        }
        self.remove::<VirtualIpRow>(&[service]);
        let modify_index = self.index();
        self.put(FreedVirtualIpRow { ip, modify_index });
    }

    /// The same for several services.
    pub(crate) fn free_virtual_ips<'a>(
        &mut self,
        services: impl IntoIterator<Item = &'a ServiceName>,
    ) {
        for service in services {
            self.in_tenancy(&service.tenancy, |txn| txn.free_virtual_ip(&service.name));
        }
    }

    /// Allocates virtual IPs for all services that should have one, in tables of a format without
    /// virtual IPs.
    ///
    /// # Errors
    /// [`Rejected::NoVirtualIpLeft`].
    pub(crate) fn allocate_virtual_ips(&mut self) -> Result<(), Rejected> {
        let rows: Vec<Arc<InstanceRow>> = self.read().scan(&[]);
        for row in rows {
            self.put_instance(&row.node, ServiceInstance::clone(&row.instance))?;
        }
        for kind in ConfigKind::ALL {
            for entry in self.read().config_entries(kind) {
                if is_given_for(kind, entry.name()) {
                    self.allocate_virtual_ip(entry.name())?;
                }
            }
        }
        Ok(())
    }

    /// The lowest, so that all servers choose the same.
    fn first_freed_virtual_ip(&self) -> Option<VirtualIp> {
        let read = self.read();
        let all = Key::new(Table::FreedVirtualIps, &self.tenancy, &[]);
        let (_, row) = read.state.below(&all).next()?;
        row.get::<FreedVirtualIpRow>().map(|row| row.ip)
    }
}

impl ReadTxn<'_> {
    /// Whether an index has an entry below a prefix. Not recorded: for transactions only.
    fn leads(&self, index: Table, names: &[&str]) -> bool {
        let prefix = self.key(index, names);
        self.state.found_below(&prefix).next().is_some()
    }

    /// Whether a terminating gateway leads to a service by its name.
    fn is_behind_a_gateway(&self, service: &str) -> bool {
        let gateways = self.config_entries_of_all(ConfigKind::TerminatingGateway);
        let mut gateways = gateways.iter().filter_map(|entry| match &**entry {
            ConfigEntry::TerminatingGateway(entry) => Some(entry),
            _ => None,
        });
        let is = |one: &ServiceName| {
            one.tenancy == self.tenancy && one.name.eq_ignore_ascii_case(service)
        };
        gateways.any(|entry| entry.named_services().iter().any(is))
    }
}

/// The tenancy of the row's service.
fn home_of(row: &VirtualIpRow) -> Tenancy {
    Tenancy::new(&row.partition, &row.namespace)
}

/// Whether two rows belong to the same service.
fn is_of_same(a: &VirtualIpRow, b: &VirtualIpRow) -> bool {
    (&a.service, &a.namespace, &a.partition) == (&b.service, &b.namespace, &b.partition)
}
