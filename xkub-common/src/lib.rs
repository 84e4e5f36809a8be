//! What kernel and user space share: the program constants, the map layouts, packet parsing, the
//! translate-or-not decision and the checksum arithmetic, all as pure functions.
//!
//! Terms: **G** is the guest address (what KubeVirt's DHCP gave the VM), **N** the node address (the
//! virt-launcher pod's IP). Numbers that live in packets keep network byte order unless a name says
//! otherwise: an address is the `u32` that a plain load finds in the header.
#![no_std]
#![expect(
    clippy::inline_always,
    reason = "on a packet's way every call counts, and the verifier forgets what a callee has checked"
)]

pub mod checksum;
pub mod config;
pub mod counter;
pub mod decide;
pub mod flow;
pub mod packet;
pub mod port;
pub mod sample;

/// The version of everything that outlives a process: map layouts and pin names. It is part of the pin
/// path, because aya opens an existing pin without checking that its layout is the expected one.
pub const LAYOUT_VERSION: &str = "v1";

/// Names of the programs in the eBPF object, at most 15 bytes, so that the kernel shows them whole.
pub mod program {
    /// TC program for the uplink's ingress.
    pub const INGRESS: &str = "xkub_ingress";
    /// TC program for the uplink's egress; stands first and last in the chain.
    pub const EGRESS: &str = "xkub_egress";
    /// XDP program that takes the place of [`INGRESS`].
    pub const XDP: &str = "xkub_xdp";
    /// The same for frames in several buffers (Linux 5.18), which an MTU over about 3.5 kB needs.
    pub const XDP_FRAGS: &str = "xkub_xdp_frags";
    /// What every program's name begins with.
    pub const PREFIX: &str = "xkub_";
}

/// Names of the maps in the eBPF object.
pub mod map {
    /// Remembered IPv4 flows: LRU hash, [`FlowKeyV4`](crate::flow::FlowKeyV4) → [`Flow`](crate::flow::Flow).
    pub const FLOWS_V4: &str = "FLOWS_V4";
    /// Remembered IPv6 flows: LRU hash, [`FlowKeyV6`](crate::flow::FlowKeyV6) → [`Flow`](crate::flow::Flow).
    pub const FLOWS_V6: &str = "FLOWS_V6";
    /// Verdicts of fragmented IPv4 datagrams: LRU hash,
    /// [`FragmentKeyV4`](crate::flow::FragmentKeyV4) → [`Fragment`](crate::flow::Fragment).
    pub const FRAGMENTS_V4: &str = "FRAGMENTS_V4";
    /// Verdicts of fragmented IPv6 datagrams: LRU hash,
    /// [`FragmentKeyV6`](crate::flow::FragmentKeyV6) → [`Fragment`](crate::flow::Fragment).
    pub const FRAGMENTS_V6: &str = "FRAGMENTS_V6";
    /// One [`GuestPorts`](crate::flow::GuestPorts).
    pub const GUEST_PORTS: &str = "GUEST_PORTS";
    /// TCP flows over IPv4 that are G's: [`flow::settled`](crate::flow::settled) words.
    pub const SETTLED: &str = "SETTLED";
    /// One `u64` per CPU for each [`counter::index`](crate::counter::index).
    pub const COUNTERS: &str = "COUNTERS";

    /// Packets for whoever monitors: a ring buffer of [`Sample`](crate::sample::Sample).
    pub const SAMPLES: &str = "SAMPLES";

    /// Announcements that left: a ring buffer of `u64`, nanoseconds since boot without time in suspend
    /// (`CLOCK_MONOTONIC`).
    pub const ANNOUNCED: &str = "ANNOUNCED";

    /// Every map that outlives a program and is pinned.
    pub const PINNED: [&str; 9] = [
        FLOWS_V4,
        FLOWS_V6,
        FRAGMENTS_V4,
        FRAGMENTS_V6,
        GUEST_PORTS,
        SETTLED,
        COUNTERS,
        SAMPLES,
        ANNOUNCED,
    ];
    /// The read-only constants of one program instance: one [`Config`](crate::config::Config).
    /// Pinned apart, one for each program.
    pub const CONSTANTS: &str = ".rodata";
    /// The symbol in [`CONSTANTS`] that the loader sets.
    pub const CONFIG: &str = "CONFIG";
}
