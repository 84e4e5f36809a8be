//! The agent's metrics: their names, units and labels are a contract with dashboards.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text::encode},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::Gauge,
    },
    registry::Registry,
};
use tracing::debug;

use crate::{
    agent::status::Status,
    datapath::{self, Repair},
};

/// Names and values.
type Labels = Vec<(&'static str, String)>;

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    addresses: Family<Labels, Gauge>,
    refusals: Family<Labels, Counter>,
    reconciles: Family<Labels, Counter>,
    actions: Family<Labels, Counter>,
    repairs: Family<Labels, Counter>,
    ready: Gauge,
    problems: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("xkub");
        let addresses = Family::<Labels, Gauge>::default();
        let refusals = Family::<Labels, Counter>::default();
        let reconciles = Family::<Labels, Counter>::default();
        let actions = Family::<Labels, Counter>::default();
        let repairs = Family::<Labels, Counter>::default();
        let ready = Gauge::default();
        let problems = Gauge::default();
        let build = Family::<Labels, Gauge>::default();
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        build.get_or_create(&version).set(1);
        registry.register("build_info", "The agent's version", build);
        registry.register(
            "node_address_info",
            "1 for each node address in force, with its family and the source that told it",
            addresses.clone(),
        );
        registry.register(
            "address_refusals",
            "Looks that found an answer that does not count, by source and reason",
            refusals.clone(),
        );
        registry.register(
            "reconciles",
            "Looks at the node, by what made the agent look",
            reconciles.clone(),
        );
        registry.register(
            "actions",
            "Actions that were tried, by kind and result",
            actions.clone(),
        );
        registry.register(
            "datapath_repairs",
            "Places on hooks that were taken again, by place and cause",
            repairs.clone(),
        );
        registry.register(
            "ready",
            "Whether there is a node address, and all that was planned for it is done",
            ready.clone(),
        );
        registry.register("problems", "What is wrong at the moment", problems.clone());
        registry.register_collector(Box::new(DatapathCounters));
        Self {
            registry,
            addresses,
            refusals,
            reconciles,
            actions,
            repairs,
            ready,
            problems,
        }
    }
}

impl Metrics {
    /// The agent looks.
    pub fn reconcile(&self, trigger: &'static str) {
        self.reconciles
            .get_or_create(&vec![("trigger", trigger.to_owned())])
            .inc();
    }

    /// An action was tried.
    pub fn action(&self, kind: &'static str, worked: bool) {
        let result = if worked { "done" } else { "failed" };
        self.actions
            .get_or_create(&vec![
                ("kind", kind.to_owned()),
                ("result", result.to_owned()),
            ])
            .inc();
    }

    /// A place was taken again.
    pub fn repair(&self, repair: &Repair) {
        let cause = match repair.cause {
            datapath::Cause::Removed => "removed",
            datapath::Cause::Overtaken => "overtaken",
            datapath::Cause::Alone => "alone",
        };
        self.repairs
            .get_or_create(&vec![
                ("place", repair.place.name().to_owned()),
                ("cause", cause.to_owned()),
            ])
            .inc();
    }

    /// What a look has found.
    pub fn status(&self, status: &Status) {
        self.addresses.clear();
        for address in &status.node_addresses {
            let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
            let source = status.sources.get(family).cloned().unwrap_or_default();
            self.addresses
                .get_or_create(&vec![
                    ("address", address.to_string()),
                    ("family", family.to_owned()),
                    ("source", source),
                ])
                .set(1);
        }
        for refusal in &status.refusals {
            self.refusals
                .get_or_create(&vec![
                    ("source", refusal.source.clone()),
                    ("reason", refusal.reason.clone()),
                ])
                .inc();
        }
        self.ready.set(i64::from(status.ready));
        self.problems
            .set(i64::try_from(status.problems.len()).unwrap_or(i64::MAX));
    }

    /// All of them, as `OpenMetrics` 1.0 text. Blocks: the datapath's are read from the kernel.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            // A string takes everything.
            text.clear();
        }
        text
    }
}

/// The datapath's counters, read when somebody asks.
#[derive(Debug)]
struct DatapathCounters;

impl Collector for DatapathCounters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stats = match datapath::stats(None) {
            Ok(stats) => stats,
            Err(error) => {
                // There is none yet.
                debug!(%error, "no counters");
                return Ok(());
            }
        };
        let mut family = encoder.encode_descriptor(
            "datapath_packets",
            "Packets that a program has seen, by place, family, class and what became of them",
            None,
            MetricType::Counter,
        )?;
        for counter in &stats.counters {
            let labels = [
                ("place", counter.place.name()),
                ("family", counter.family.name()),
                ("class", counter.class.name()),
                ("event", counter.event.name()),
            ];
            let value = ConstCounter::new(counter.packets);
            value.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::status::RefusalLine;

    #[test]
    fn what_was_counted_is_told() {
        let metrics = Metrics::default();
        metrics.reconcile("start");
        metrics.action("attach", true);
        metrics.action("attach", false);
        let status = Status {
            node_addresses: vec!["10.244.1.226".parse().unwrap()],
            sources: [("ipv4".to_owned(), "reflector".to_owned())].into(),
            refusals: vec![RefusalLine {
                source: "annotation".to_owned(),
                address: "10.0.2.2".parse().unwrap(),
                reason: "guest-address".to_owned(),
                message: String::new(),
            }],
            ready: true,
            problems: vec!["one".to_owned()],
            ..Status::default()
        };
        metrics.status(&status);
        let text = metrics.text();
        for line in [
            "xkub_reconciles_total{trigger=\"start\"} 1",
            "xkub_actions_total{kind=\"attach\",result=\"done\"} 1",
            "xkub_actions_total{kind=\"attach\",result=\"failed\"} 1",
            "xkub_node_address_info{address=\"10.244.1.226\",family=\"ipv4\",source=\"reflector\"} 1",
            "xkub_address_refusals_total{source=\"annotation\",reason=\"guest-address\"} 1",
            "xkub_ready 1",
            "xkub_problems 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        // An address that is gone is not told any more.
        metrics.status(&Status::default());
        assert!(!metrics.text().contains("10.244.1.226"));
    }
}
