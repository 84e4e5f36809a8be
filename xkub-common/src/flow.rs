//! What the datapath remembers of flows and of fragmented datagrams.
//!
//! A key names a flow by its remote end, as ingress sees it; the local address is G and therefore not part
//! of it. Ports and addresses keep network byte order. Echo messages have their identifier for
//! both ports, protocols without ports 0.

use crate::port::Port;

/// A flow over IPv4.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKeyV4 {
    /// The remote address.
    pub remote: u32,
    /// Our port, or the echo identifier.
    pub local_port: Port,
    /// The remote port.
    pub remote_port: Port,
    /// The IP protocol; 32 bits wide so that the key is a whole number of words, which the kernel hashes
    /// faster than bytes.
    pub protocol: u32,
}

/// A flow over IPv6.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKeyV6 {
    /// The remote address.
    pub remote: [u32; 4],
    /// Our port, or the echo identifier.
    pub local_port: Port,
    /// The remote port.
    pub remote_port: Port,
    /// The IP protocol.
    pub protocol: u32,
}

/// Which address a flow belongs to.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// N: what arrives for it is rewritten.
    Node = 1,
    /// G, because the guest opened it from there. Holds even inside the service set.
    GuestOpened = 2,
    /// G, because no socket bound to N was found for it. Looked up again after [`LOOKUP_TICKS`].
    GuestFound = 3,
}

/// What is remembered of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// An [`Owner`], as its number.
    pub owner: u32,
    /// When it was remembered, the low half of the kernel's tick counter (jiffies).
    pub since: u32,
}

/// How long "no socket bound to N" holds for a flow that has no SYN to announce a new connection, in
/// kernel ticks: 1 to 10 s, by the kernel's HZ. A server that starts later is found after that time.
pub const LOOKUP_TICKS: u32 = 1024;

/// A fragmented IPv4 datagram for G.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentKeyV4 {
    /// The sender.
    pub remote: u32,
    /// The identification field.
    pub identification: u16,
    /// The IP protocol.
    pub protocol: u16,
}

/// A fragmented IPv6 datagram for G.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentKeyV6 {
    /// The sender.
    pub remote: [u32; 4],
    /// The identification field.
    pub identification: u32,
    /// The fragment header's next-header field.
    pub protocol: u32,
}

/// What was decided for a fragmented datagram.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// A [`FragmentOwner`], as its number.
    pub owner: u32,
    /// When, the low half of the kernel's tick counter (jiffies).
    pub since: u32,
}

/// Which address the fragments of a datagram go to.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentOwner {
    /// N, as the first fragment was decided.
    Node = 1,
    /// G, as the first fragment was decided.
    Guest = 2,
    /// G, because a later fragment arrived before the first one and had to go somewhere. The first one
    /// follows it, so that the datagram stays whole.
    GuestUnordered = 3,
}

/// How long a first fragment follows a later one that came before it, in kernel ticks: 0.1 to 1 s, by HZ.
/// Short, because an identification is used again.
pub const UNORDERED_TICKS: u32 = 100;

/// Local ports from which the guest opened a flow out of the service set, one byte each (0 or 1), indexed
/// by [`Port::index`]. Spares the lookup of a flow for every other packet of the service set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GuestPorts {
    /// TCP.
    pub tcp: [u8; 1 << 16],
    /// UDP.
    pub udp: [u8; 1 << 16],
}

/// A TCP flow over IPv4 that is known to be G's, whole in one word, so that it is read and written at once.
/// A table of them, indexed by [`settled_index`], spares most of the guest's own packets the lookup in the flow
/// map; two flows with the same index displace each other.
///
/// 0 is no flow: its remote address would be 0.0.0.0.
#[must_use]
#[inline(always)]
pub const fn settled(key: &FlowKeyV4) -> u64 {
    (key.remote as u64) << 32 | (key.local_port.raw() as u64) << 16 | key.remote_port.raw() as u64
}

/// Entries of the table of settled flows: 128 KiB, as much as stays in a core's cache.
pub const SETTLED: u32 = 1 << SETTLED_BITS;
const SETTLED_BITS: u32 = 14;

/// Where a settled flow is kept: the high bits of a multiplication by 2^64/φ (Fibonacci hashing).
#[must_use]
#[inline(always)]
pub const fn settled_index(settled: u64) -> u32 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    (settled.wrapping_mul(GOLDEN) >> (u64::BITS - SETTLED_BITS)) as u32
}

#[cfg(feature = "user")]
mod user {
    use super::{Flow, FlowKeyV4, FlowKeyV6, Fragment, FragmentKeyV4, FragmentKeyV6, GuestPorts};

    macro_rules! pod {
        ($($type:ty),+) => { $(
            // SAFETY: `repr(C)`, plain integers, no padding.
            unsafe impl aya::Pod for $type {}
        )+ };
    }
    pod!(
        Flow,
        FlowKeyV4,
        FlowKeyV6,
        Fragment,
        FragmentKeyV4,
        FragmentKeyV6,
        GuestPorts
    );
}
