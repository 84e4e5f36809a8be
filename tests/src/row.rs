//! A row of measurements, as `cargo xtask bench` writes it for every bench.

use serde::{Deserialize, Serialize};

/// What one variant brought in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The bench, `datapath`.
    pub bench: String,
    /// What was done, `tcp-over-vxlan`.
    pub case: String,
    /// Who did it: `reference`, `iptables`, `nft`, `tcx`, `xdp`…
    pub variant: String,
    /// What was measured, `throughput`.
    pub metric: String,
    /// Its unit, `Gbit/s`.
    pub unit: String,
    /// The middle round.
    pub median: f64,
    /// The lowest round.
    pub min: f64,
    /// The highest round.
    pub max: f64,
    /// How many rounds.
    pub rounds: usize,
    /// The variant that `ratio` compares with.
    pub ratio_to: Option<String>,
    /// This median over that one's, from the same interleaved run.
    pub ratio: Option<f64>,
}

/// All rounds of one variant in one case.
#[derive(Debug, Clone, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The middle value, or the mean of the two in the middle; NaN without any.
    #[must_use]
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        match sorted.len() {
            0 => f64::NAN,
            length if length % 2 == 1 => at(length / 2),
            length => f64::midpoint(at(length / 2 - 1), at(length / 2)),
        }
    }

    /// The row without a comparison.
    #[must_use]
    pub fn row(&self, case: &Case, variant: &str) -> Row {
        let sorted = self.sorted();
        Row {
            bench: "datapath".to_owned(),
            case: case.name.to_owned(),
            variant: variant.to_owned(),
            metric: case.metric.to_owned(),
            unit: case.unit.to_owned(),
            median: self.median(),
            min: sorted.first().copied().unwrap_or(f64::NAN),
            max: sorted.last().copied().unwrap_or(f64::NAN),
            rounds: sorted.len(),
            ratio_to: None,
            ratio: None,
        }
    }
}

/// What is done and measured.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// As in [`Row::case`].
    pub name: &'static str,
    /// As in [`Row::metric`].
    pub metric: &'static str,
    /// As in [`Row::unit`].
    pub unit: &'static str,
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn median_is_the_middle() {
        assert!((Samples(vec![3.0, 1.0, 2.0]).median() - 2.0).abs() < 1e-9);
        assert!((Samples(vec![4.0, 1.0, 2.0, 3.0]).median() - 2.5).abs() < 1e-9);
        assert!(Samples::default().median().is_nan());
    }
}
