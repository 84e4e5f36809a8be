//! The program constants and the maps.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{Array, LruHashMap, PerCpuArray},
};
use xkub_common::{
    config::Config,
    counter,
    flow::{Flow, FlowKeyV4, FlowKeyV6, Fragment, FragmentKeyV4, FragmentKeyV6, GuestPorts},
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
pub static FRAGMENTS_V4: LruHashMap<FragmentKeyV4, Fragment> = LruHashMap::with_max_entries(FRAGMENTS, 0);
#[map]
pub static FRAGMENTS_V6: LruHashMap<FragmentKeyV6, Fragment> = LruHashMap::with_max_entries(FRAGMENTS, 0);
#[map]
pub static GUEST_PORTS: Array<GuestPorts> = Array::with_max_entries(1, 0);
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(counter::COUNT, 0);
