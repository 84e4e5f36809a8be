//! Counting: one number per CPU, place, family, class and event.

use xkub_common::counter::{self, Class, Event, Family};

use crate::{
    frame::Fault,
    maps::{self, COUNTERS},
};

/// What became of a packet, and as what it is counted.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub event: Event,
    pub class: Class,
}

impl Outcome {
    #[inline(always)]
    pub const fn new(event: Event, class: Class) -> Self {
        Self { event, class }
    }

    /// Of a rewrite, which may have broken off.
    #[inline(always)]
    pub fn of(event: Result<Event, Fault>, class: Class) -> Self {
        Self {
            event: event.unwrap_or(Event::Dropped),
            class,
        }
    }

    /// Whether the packet goes on.
    #[inline(always)]
    pub fn goes_on(self) -> bool {
        self.event != Event::Dropped
    }
}

/// Adds one. The new number.
#[inline(always)]
pub fn count(family: Family, class: Class, event: Event) -> u64 {
    let index = maps::counters() + counter::offset(family, class, event);
    let Some(counter) = COUNTERS.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: a pointer into this CPU's value, valid until the program ends. A program on the same CPU that
    // interrupts this one can make one count get lost, which an atomic addition would cost more than it is worth to
    // prevent.
    unsafe {
        *counter += 1;
        *counter
    }
}
