//! The program constants and the maps.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{Array, LruHashMap, PerCpuArray, RingBuf},
};
use xkub_common::{
    config::{Config, Services},
    counter,
    flow::{self, Flow, FlowKeyV4, FlowKeyV6, Fragment, FragmentKeyV4, FragmentKeyV6, GuestPorts},
    sample,
};

/// Set by the loader before the program is loaded; constant from then on.
#[unsafe(no_mangle)]
pub static CONFIG: Global<Config> = Global::new(Config::EMPTY);

/// Room for remembered flows of one family unless the loader says otherwise.
const FLOWS: u32 = 65_536;
/// Room for datagrams that arrive in fragments, of one family: as many as Cilium's default.
const FRAGMENTS: u32 = 8_192;

#[map]
pub static FLOWS_V4: LruHashMap<FlowKeyV4, Flow> = LruHashMap::with_max_entries(FLOWS, 0);
#[map]
pub static FLOWS_V6: LruHashMap<FlowKeyV6, Flow> = LruHashMap::with_max_entries(FLOWS, 0);
#[map]
pub static FRAGMENTS_V4: LruHashMap<FragmentKeyV4, Fragment> =
    LruHashMap::with_max_entries(FRAGMENTS, 0);
#[map]
pub static FRAGMENTS_V6: LruHashMap<FragmentKeyV6, Fragment> =
    LruHashMap::with_max_entries(FRAGMENTS, 0);
#[map]
pub static GUEST_PORTS: Array<GuestPorts> = Array::with_max_entries(1, 0);
#[map]
pub static SETTLED: Array<u64> = Array::with_max_entries(flow::SETTLED, 0);
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(counter::COUNT, 0);

#[map]
pub static SAMPLES: RingBuf = RingBuf::with_byte_size(sample::ROOM, 0);

/// Room for a page of announcements; those that find none are not missed, since one is as good as many.
#[map]
pub static ANNOUNCED: RingBuf = RingBuf::with_byte_size(4096, 0);

macro_rules! constant {
    ($($field:ident).+) => {
        // SAFETY: a pointer to a field of a static. Volatile, because the loader fills the static in
        // after the compiler has seen its value.
        unsafe { core::ptr::read_volatile(&raw const (*(&raw const $crate::maps::CONFIG).cast::<xkub_common::config::Config>()).$($field).+) }
    };
}
pub(crate) use constant;

/// The number of the place that this instance stands at.
#[inline(always)]
pub fn place() -> u32 {
    constant!(place)
}

/// The index of the first counter of the place that this instance stands at.
#[inline(always)]
pub fn counters() -> u32 {
    constant!(counters)
}

/// One packet in how many is shown; 0: none.
#[inline(always)]
pub fn sample() -> u32 {
    constant!(sample)
}

/// The service set.
#[inline(always)]
pub fn services() -> &'static Services {
    // SAFETY: a static's field; whoever reads a set's words does so volatilely.
    unsafe { &(*(&raw const CONFIG).cast::<Config>()).services }
}
