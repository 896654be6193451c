//! `service-splitter`: splits a service's requests by weight.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use super::header_modifiers::{HeaderModifiers, validate_both};
use super::service_resolver::{validate_destination, validate_single};
use crate::invalid::Invalid;
use crate::schema;
use crate::tenancy::{ServiceName, ServiceReference, Tenancy, TenancyName};
use crate::{meta, name};

/// The maximum number of splits; each is a cluster in every caller's proxy.
const MAX_SPLITS: usize = 100;

entry! {
    /// Splits a service's requests by weight.
    #[derive(JsonSchema)]
    #[schemars(extend("required" = ["Splits"]))]
    pub struct ServiceSplitter {
        /// Name of the service.
        pub name: String,
        /// The splits; their weights add up to 100.
        #[schemars(length(min = 1, max = 256))]
        #[schemars(extend("x-kubernetes-validations" = [
            schema::rule(
                "self.map(s, has(s.weight) ? s.weight : 0.0).sum() > 99.995 && self.map(s, \
                 has(s.weight) ? s.weight : 0.0).sum() < 100.005",
                "the weights have to add up to 100",
            ),
        ]))]
        pub splits: Vec<Split>,
    }
}

/// A share of the requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct Split {
    /// Percentage of the requests, in steps of 0.01.
    #[schemars(range(min = 0, max = 100))]
    pub weight: f32,
    /// Name of the service; empty means the splitter's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Subset of the service; empty means its default subset.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_subset: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Changes to request headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_headers: Option<HeaderModifiers>,
    /// Changes to response headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_headers: Option<HeaderModifiers>,
}

impl Split {
    /// The weight in hundredths of a percent, the finest resolution of weights.
    pub fn scaled_weight(&self) -> u32 {
        // The cast saturates; out-of-range weights are refused earlier.
        (self.weight * 100.0).round() as u32
    }
}

impl Entry for ServiceSplitter {
    const RIGHTS: EntryRights = EntryRights::Service;

    fn destinations(&self) -> Vec<ServiceReference<'_>> {
        self.splits.iter().map(Split::service).collect()
    }

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        if self.splits.is_empty() || self.splits.len() > MAX_SPLITS {
            let reason = format!("1 to {MAX_SPLITS} splits must be given");
            return Err(Invalid::new("Splits", reason));
        }
        for (at, split) in self.splits.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("Splits[{at}]"));
            split.validate().map_err(within)?;
            let own = ServiceName::new(&Tenancy::new(&self.partition, &self.namespace), &self.name);
            let destination =
                |split: &Split| (split.service().resolve(&own), split.service_subset.clone());
            let earlier = self.splits[..at].iter();
            if earlier
                .map(destination)
                .any(|one| one == destination(split))
            {
                let (service, subset) = destination(split);
                return Err(Invalid::new(
                    format!("Splits[{at}]"),
                    format!(
                        "split destination occurs more than once: service={service:?}, \
                         subset={subset:?}",
                        service = service.name
                    ),
                ));
            }
        }
        let sum: u32 = self.splits.iter().map(Split::scaled_weight).sum();
        if sum != 100 * 100 {
            let sum = f64::from(sum) / 100.0;
            return Err(Invalid::new(
                "Splits",
                format!("the sum of all split weights must be 100, not {sum}"),
            ));
        }
        Ok(())
    }

    fn normalise(&mut self) {
        for split in &mut self.splits {
            split.weight = (split.weight * 100.0).round() / 100.0;
        }
    }
}

impl Split {
    fn service(&self) -> ServiceReference<'_> {
        ServiceReference {
            service: &self.service,
            partition: &self.partition,
            namespace: &self.namespace,
        }
    }

    fn validate(&self) -> Result<(), Invalid> {
        if !(0.0..=100.0).contains(&self.weight) {
            let reason = format!("{} must be between 0 and 100", self.weight);
            return Err(Invalid::new("Weight", reason));
        }
        validate_destination(&self.service)?;
        for (field, name) in [
            ("Namespace", &self.namespace),
            ("Partition", &self.partition),
        ] {
            validate_single(name).map_err(|reason| Invalid::new(field, reason))?;
        }
        validate_both(
            self.request_headers.as_ref(),
            self.response_headers.as_ref(),
        )
    }
}
