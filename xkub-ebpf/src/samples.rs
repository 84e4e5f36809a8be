//! Showing packets to whoever monitors. In a program that shows none, the verifier removes all of this.

use aya_ebpf::helpers;
use xkub_common::{
    counter::Family,
    sample::{Sample, WORDS},
};

use crate::{
    counters::Outcome,
    frame::Frame,
    maps::{self, SAMPLES},
};

/// Shows the frame if it is its turn: `count` is what its counter says.
#[inline(always)]
pub fn show<F: Frame>(frame: &F, family: Family, outcome: Outcome, count: u64) {
    let one_in = maps::sample();
    if one_in == 0 || !count.is_multiple_of(u64::from(one_in)) {
        return;
    }
    let Some(mut entry) = SAMPLES.reserve::<Sample>(0) else {
        return;
    };
    let sample = entry.as_mut_ptr();
    let mut words = 0;
    for index in 0..WORDS {
        let Some(word) = frame.read::<u32>(index * size_of::<u32>()) else {
            break;
        };
        // SAFETY: within the entry, which is as large as a sample.
        unsafe { (*sample).head[index] = word };
        words += 1;
    }
    // SAFETY: as above; what is not written is not read, as `words` says. The helper takes nothing.
    unsafe {
        (*sample).time = helpers::bpf_ktime_get_ns();
        (*sample).place = maps::place();
        (*sample).family = family as u32;
        (*sample).class = outcome.class as u32;
        (*sample).event = outcome.event as u32;
        (*sample).words = words;
        (*sample).reserved = 0;
    }
    entry.submit(0);
}
