//! What two guests move between them, and what that costs the machine and the guests.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::lab::Lab;
use crate::masquerade::Overlay;
use crate::traffic::parse_iperf;
use crate::wait::PATIENCE;

/// A way to make the tunnel work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// No xkub: the tunnel's source comes from the route, which needs no fix.
    Reference,
    /// xkub on what it takes by itself: TCX, else clsact.
    Best,
    /// xkub with native XDP at ingress.
    Xdp,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Reference, Self::Best, Self::Xdp];

    fn overlay(self) -> Overlay {
        let overlay = Overlay {
            checksum: true,
            ..Overlay::V4
        };
        match self {
            Self::Reference => overlay.by_route(),
            Self::Best | Self::Xdp => overlay,
        }
    }

    /// Takes away what another variant left, and puts this one in its place.
    ///
    /// # Errors
    /// When the kernel has no such hook.
    pub fn set_up(self, lab: &Lab) -> Result<()> {
        for node in lab.nodes() {
            node.guest
                .run(&format!("ip link del {}", Overlay::V4.name))?;
            node.xkub("datapath detach")?.success()?;
        }
        match self {
            Self::Reference => {}
            Self::Best => lab.attach("--ingress-hook auto")?,
            Self::Xdp => lab.attach("--ingress-hook xdp")?,
        }
        lab.add_overlay(&self.overlay())?;
        let peer = self.overlay().address_of(2);
        lab.node(0)
            .guest
            .check(&format!("ping -c 2 -i 0.2 -W 5 {peer}"))?;
        Ok(())
    }
}

/// What one run moved and cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Payload that arrived, in Gbit/s.
    pub gigabits_per_second: f64,
    /// Datagrams that arrived, per second; zero for TCP.
    pub packets_per_second: f64,
    /// Processor seconds of the machine for both guests, per GiB that arrived.
    pub host_cpu: f64,
    /// Processor seconds that both guests counted, per GiB that arrived.
    pub guest_cpu: f64,
}

/// Sends from guest 1 to guest 2 through the tunnel for `duration`, TCP or datagrams with so many bytes.
///
/// # Errors
/// When nothing arrives.
pub fn measure(lab: &Lab, datagrams: Option<u32>, duration: Duration) -> Result<Sample> {
    let peer = Overlay::V4.address_of(2);
    let server = lab
        .node(1)
        .guest
        .spawn("exec iperf3 --server --one-off --forceflush")?;
    server.wait_output("Server listening", PATIENCE)?;
    let udp = datagrams.map_or(String::new(), |length| {
        format!("--udp --bitrate 0 --length {length}")
    });
    let spent = |lab: &Lab| -> Result<(f64, f64)> {
        let mut spent = (0.0, 0.0);
        for node in lab.nodes() {
            spent.0 += node.guest.host_cpu_seconds()?;
            spent.1 += node.guest.cpu_seconds()?;
        }
        Ok(spent)
    };
    let before = spent(lab)?;
    let begin = Instant::now();
    let output = lab.node(0).guest.run_within(
        &format!(
            "iperf3 --json --client {peer} --time {} {udp}",
            duration.as_secs()
        ),
        duration + PATIENCE,
    )?;
    let took = begin.elapsed();
    let after = spent(lab)?;
    let measured = parse_iperf(&output.stdout)?;
    let seconds = duration.as_secs_f64().min(took.as_secs_f64());
    let gibibytes = measured.bits_per_second * seconds / 8.0 / f64::from(1 << 30);
    if gibibytes <= 0.0 {
        bail!("nothing arrived");
    }
    Ok(Sample {
        gigabits_per_second: measured.bits_per_second / 1e9,
        packets_per_second: measured.packets_per_second,
        host_cpu: (after.0 - before.0) / gibibytes,
        guest_cpu: (after.1 - before.1) / gibibytes,
    })
}
