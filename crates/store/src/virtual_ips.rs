//! Virtual IPs of services: who has which, and which of the automatic ones are free again.
//!
//! A service gets one with its first instance in the mesh or its first config entry, in the same
//! transaction, and keeps it while it has an instance, a proxy that stands for it or such an entry.
//! Then the number is free and the next service gets it. Which number that is says
//! [`VirtualIp::choose`]. A service that has one may be assigned others by hand, which it loses with
//! it. These are the addresses of its partition's network: two partitions may assign the same ones.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use legate_model::virtual_ip::{VirtualIp, is_given_for};
use legate_model::{ConfigKind, ServiceAddress, ServiceInstance, ServiceName, Tenancy, virtual_ip};

use crate::key::{Key, Table};
use crate::read::ReadTxn;
use crate::rejected::Rejected;
use crate::rows::{FreedVirtualIpRow, InstanceRow, LastVirtualIpRow, VirtualIpRow};
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// The virtual IP of a service. `None` for a name that has neither an instance in the mesh nor
    /// a config entry that gives it one.
    pub fn virtual_ip(&self, service: &str) -> Option<VirtualIp> {
        self.get::<VirtualIpRow>(&[service]).map(|row| row.ip)
    }

    /// The virtual IPs that were assigned to a service by hand.
    pub fn manual_virtual_ips(&self, service: &str) -> BTreeSet<Ipv4Addr> {
        let row = self.get::<VirtualIpRow>(&[service]);
        row.map(|row| row.manual.clone()).unwrap_or_default()
    }

    /// The services that have a virtual IP, whosever they are, in the order of partitions, namespaces
    /// and names.
    pub fn services_with_virtual_ips(&self) -> Vec<ServiceName> {
        let all = Key::table_of(Table::VirtualIps);
        let rows = self.state.below(&all);
        let mut services = Vec::new();
        // Rows of one tenancy stand together.
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
    /// Writes into an instance in the mesh the virtual IP of the service that it stands for, which
    /// gets one when it has none. What the client sent in its place is overwritten, as in Consul.
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
            address: self.give_virtual_ip(&service)?.address().to_string(),
            port: instance.port,
        };
        let key = virtual_ip::TAGGED_ADDRESS.to_owned();
        instance.tagged_addresses.insert(key, tagged);
        Ok(())
    }

    /// The virtual IP of a service, which gets one when it has none.
    ///
    /// # Errors
    /// [`Rejected::NoVirtualIpLeft`].
    pub(crate) fn give_virtual_ip(&mut self, service: &str) -> Result<VirtualIp, Rejected> {
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

    /// Gives a service these virtual IPs besides its automatic one, in place of those that it was
    /// assigned before, and takes them from the services of its partition that have them. Returns those
    /// services, in the order of namespaces and names. `None`, and nothing changes, where the service has
    /// no automatic one.
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

    /// Takes back the virtual IP of a service that has no instance and no config entry any more.
    ///
    /// Consul does not count proxies that stand for the service: it takes the address back with
    /// the last instance, while sidecars still show it, and keeps it where there were sidecars
    /// only.
    pub(crate) fn free_virtual_ip(&mut self, service: &str) {
        let read = self.read();
        let Some(ip) = read.virtual_ip(service) else {
            return;
        };
        let indexes = [Table::InstancesByService, Table::InstancesByDestination];
        let kinds = ConfigKind::ALL.into_iter();
        let mut kinds = kinds.filter(|kind| is_given_for(*kind, service));
        let needed = indexes.iter().any(|index| read.leads(*index, &[service]))
            || kinds.any(|kind| read.config_entry(kind, service).is_some());
        drop(read);
        if needed {
            return;
        }
        self.remove::<VirtualIpRow>(&[service]);
        let modify_index = self.index();
        self.put(FreedVirtualIpRow { ip, modify_index });
    }

    /// Gives a virtual IP to everybody in the tables who should have one. For tables that were
    /// filled by a server that gave out none.
    ///
    /// # Errors
    /// [`Rejected::NoVirtualIpLeft`].
    pub(crate) fn give_virtual_ips(&mut self) -> Result<(), Rejected> {
        let rows: Vec<Arc<InstanceRow>> = self.read().scan(&[]);
        for row in rows {
            self.put_instance(&row.node, ServiceInstance::clone(&row.instance))?;
        }
        for kind in ConfigKind::ALL {
            for entry in self.read().config_entries(kind) {
                if is_given_for(kind, entry.name()) {
                    self.give_virtual_ip(entry.name())?;
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
    /// Whether an index has an entry below a prefix. It is not noted: for transactions only.
    fn leads(&self, index: Table, names: &[&str]) -> bool {
        let prefix = self.key(index, names);
        self.state.found_below(&prefix).next().is_some()
    }
}

/// Whose service has the row.
fn home_of(row: &VirtualIpRow) -> Tenancy {
    Tenancy::new(&row.partition, &row.namespace)
}

/// Whether two rows are of the same service.
fn is_of_same(a: &VirtualIpRow, b: &VirtualIpRow) -> bool {
    (&a.service, &a.namespace, &a.partition) == (&b.service, &b.namespace, &b.partition)
}
