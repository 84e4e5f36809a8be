//! Packets that the datapath shows to whoever monitors it.

/// 32-bit words of a packet's head that a sample holds: Ethernet, two tags, and an IPv6 header with a transport header.
pub const WORDS: usize = 24;

/// Room for samples in the ring buffer, bytes. Those that find none are not shown; the packets go their way.
pub const ROOM: u32 = 256 * 1024;

/// A packet, as it goes on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When, nanoseconds since boot without time in suspend (`CLOCK_MONOTONIC`).
    pub time: u64,
    /// A [`Place`](crate::counter::Place), as its number.
    pub place: u32,
    /// A [`Family`](crate::counter::Family), as its number.
    pub family: u32,
    /// A [`Class`](crate::counter::Class), as its number.
    pub class: u32,
    /// An [`Event`](crate::counter::Event), as its number.
    pub event: u32,
    /// How many words of `head` there are.
    pub words: u32,
    /// Keeps the size a multiple of 8.
    pub reserved: u32,
    /// The first bytes, from the Ethernet header on.
    pub head: [u32; WORDS],
}

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, plain integers, no padding.
unsafe impl aya::Pod for Sample {}
