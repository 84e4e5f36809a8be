//! Fragments at ingress: all of a datagram go where the first to arrive went.

use xkub_common::{
    counter::{Class, Event},
    decide::{self, Arrival},
    flow::{Fragment, FragmentOwner},
    packet::Datagram,
};

use crate::{counters::count, ip::Ip, remember::now};

/// Where a fragment without a transport header goes: after its first one. One that comes before it goes to
/// G, as does then the rest.
#[inline(always)]
pub fn later<I: Ip>(datagram: &Datagram<I::Address>) -> Arrival {
    let key = I::fragment_key(datagram);
    match recall::<I>(&key) {
        Some(fragment) if fragment.owner == FragmentOwner::Node as u32 => Arrival::Node,
        Some(_) => Arrival::Guest,
        None => {
            count(I::FAMILY, Class::Fragment, Event::Unordered);
            remember::<I>(&key, FragmentOwner::GuestUnordered);
            Arrival::Guest
        }
    }
}

/// Where a first fragment goes, `own` being where it would go by itself; the others will follow.
#[inline(always)]
pub fn first<I: Ip>(datagram: &Datagram<I::Address>, own: Arrival) -> Arrival {
    let key = I::fragment_key(datagram);
    if let Some(arrival) = decide::first_fragment(recall::<I>(&key), now()) {
        return arrival;
    }
    remember::<I>(
        &key,
        if own == Arrival::Node {
            FragmentOwner::Node
        } else {
            FragmentOwner::Guest
        },
    );
    own
}

#[inline(always)]
fn recall<I: Ip>(key: &I::FragmentKey) -> Option<Fragment> {
    // SAFETY: as in `remember::recall`.
    unsafe { I::fragments().get(key).copied() }
}

#[inline(always)]
fn remember<I: Ip>(key: &I::FragmentKey, owner: FragmentOwner) {
    if I::fragments()
        .insert(
            key,
            Fragment {
                owner: owner as u32,
                since: now(),
            },
            0,
        )
        .is_err()
    {
        count(I::FAMILY, Class::Fragment, Event::Full);
    }
}
