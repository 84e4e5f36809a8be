//! What a guest's network stack has counted.

use std::collections::BTreeMap;

use anyhow::Result;

use super::machine::Guest;

/// A snapshot of `/proc/net/snmp` and `/proc/net/snmp6`, by the names that `nstat` gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// The counters now.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub fn read(guest: &Guest) -> Result<Self> {
        Ok(Self::parse(
            &guest.check("cat /proc/net/snmp /proc/net/snmp6")?,
        ))
    }

    fn parse(text: &str) -> Self {
        let mut counters = BTreeMap::new();
        let mut names: Option<(&str, Vec<&str>)> = None;
        for line in text.lines() {
            let Some((protocol, rest)) = line.split_once(':') else {
                // snmp6: one counter a line.
                let mut fields = line.split_whitespace();
                if let (Some(name), Some(value)) = (fields.next(), fields.next())
                    && let Ok(value) = value.parse()
                {
                    counters.insert(name.to_owned(), value);
                }
                continue;
            };
            // snmp: a line of names, then a line of values.
            match names.take() {
                Some((same, names)) if same == protocol => {
                    for (name, value) in names.into_iter().zip(rest.split_whitespace()) {
                        if let Ok(value) = value.parse() {
                            counters.insert(format!("{protocol}{name}"), value);
                        }
                    }
                }
                _ => names = Some((protocol, rest.split_whitespace().collect())),
            }
        }
        Self(counters)
    }

    /// How much `name` has grown since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self, name: &str) -> u64 {
        let value = |counters: &Self| counters.0.get(name).copied().unwrap_or_default();
        value(self).saturating_sub(value(earlier))
    }

    /// Every checksum error since `earlier`, by name.
    #[must_use]
    pub fn checksum_errors(&self, earlier: &Self) -> Vec<(String, u64)> {
        self.0
            .keys()
            .filter(|name| name.ends_with("InCsumErrors"))
            .map(|name| (name.clone(), self.since(earlier, name)))
            .filter(|(_, errors)| *errors > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Counters;

    #[test]
    fn both_files_are_read() {
        let before = Counters::parse(
            "Udp: InDatagrams NoPorts InCsumErrors\nUdp: 5 0 0\nUdp6InCsumErrors\t1\n",
        );
        let after = Counters::parse(
            "Udp: InDatagrams NoPorts InCsumErrors\nUdp: 9 0 2\nUdp6InCsumErrors\t1\n",
        );
        assert_eq!(after.since(&before, "UdpInDatagrams"), 4);
        assert_eq!(
            after.checksum_errors(&before),
            [("UdpInCsumErrors".to_owned(), 2)]
        );
    }
}
