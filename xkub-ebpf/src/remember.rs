//! The flow map: what belongs to N, what to G, and the socket lookup that decides it for a new flow.

use core::arch::asm;

use aya_ebpf::{
    bindings::{BPF_F_CURRENT_NETNS, bpf_sock},
    helpers,
};
use xkub_common::{
    counter::{Class, Event},
    decide::{self, Ends},
    flow::{self, Flow, Owner},
    packet::{Kind, Transport},
    port::Port,
};

use crate::{
    counters::count,
    frame::Frame,
    ip::Ip,
    maps::{GUEST_PORTS, SETTLED},
};

/// The kernel's tick counter (jiffies), its low half.
#[inline(always)]
pub fn now() -> u32 {
    // SAFETY: takes nothing, returns a number.
    unsafe { helpers::bpf_jiffies64() as u32 }
}

/// What is remembered of a flow.
#[inline(always)]
pub fn recall<I: Ip>(key: &I::FlowKey) -> Flow {
    // SAFETY: the value is a pair of integers that is written as a whole; a mix of two would be a wrong
    // time at worst.
    unsafe { I::flows().get(key).copied().unwrap_or(Flow::UNKNOWN) }
}

/// Whether the flow is known to be G's without a look into the flow map. Not to be asked of a SYN.
#[inline(always)]
pub fn is_settled<I: Ip>(key: &I::FlowKey) -> bool {
    slot::<I>(key).is_some_and(|(word, slot)| {
        // SAFETY: a pointer into the map, valid until the program ends; words are read whole.
        unsafe { *slot == word }
    })
}

/// Makes that known.
#[inline(always)]
pub fn settle<I: Ip>(key: &I::FlowKey) {
    if let Some((word, slot)) = slot::<I>(key) {
        // SAFETY: as in `is_settled`.
        unsafe { *slot = word };
        // Another CPU may have learnt better since we looked.
        if recall::<I>(key).is(Owner::Node) {
            unsettle::<I>(key);
        }
    }
}

#[inline(always)]
fn unsettle<I: Ip>(key: &I::FlowKey) {
    if let Some((word, slot)) = slot::<I>(key) {
        // SAFETY: as in `is_settled`.
        unsafe {
            if *slot == word {
                *slot = 0;
            }
        }
    }
}

#[inline(always)]
fn slot<I: Ip>(key: &I::FlowKey) -> Option<(u64, *mut u64)> {
    let word = I::settled(key)?;
    Some((word, SETTLED.get_ptr_mut(flow::settled_index(word))?))
}

/// Remembers a flow, whatever was remembered of it before.
#[inline(always)]
pub fn remember<I: Ip>(key: &I::FlowKey, owner: Owner, is_new: bool, class: Class) {
    match I::flows().insert(key, Flow::new(owner, now()), 0) {
        Ok(()) if is_new => {
            count(I::FAMILY, class, Event::Remembered);
        }
        Ok(()) => {}
        Err(_) => {
            count(I::FAMILY, class, Event::Full);
        }
    }
    if owner == Owner::Node {
        // Afterwards: whoever settles it now has read the map before.
        unsettle::<I>(key);
    }
}

/// Remembers that a flow belongs to N, unless that is known.
#[inline(always)]
pub fn remember_node<I: Ip>(key: &I::FlowKey, class: Class) {
    let known = recall::<I>(key);
    if !known.is(Owner::Node) {
        remember::<I>(key, Owner::Node, !known.is_known(), class);
    }
}

/// Remembers that the guest opened a flow from G, where its answers would go to N otherwise.
#[inline(always)]
pub fn remember_guest<I: Ip>(
    key: &I::FlowKey,
    transport: &Transport,
    is_in_service: bool,
    class: Class,
) {
    let known = recall::<I>(key);
    if let Some(owner) = decide::remember_guest(is_in_service, known) {
        remember::<I>(key, owner, !known.is_known(), class);
        if is_in_service && let Some(port) = guest_port(transport.kind, transport.source) {
            // SAFETY: a pointer into the map's only value, valid until the program ends; whoever races
            // with this writes the same.
            unsafe { *port = 1 };
        }
    }
}

/// Whether the guest may have opened flows from this port of the service set. `true` where that is not
/// kept.
#[inline(always)]
pub fn may_be_guest(kind: Kind, local: Port) -> bool {
    match kind {
        Kind::Tcp | Kind::Udp => {
            // SAFETY: as in `remember_guest`.
            guest_port(kind, local).is_none_or(|port| unsafe { *port != 0 })
        }
        Kind::Ports | Kind::Answer => true,
        _ => false,
    }
}

#[inline(always)]
fn guest_port(kind: Kind, local: Port) -> Option<*mut u8> {
    let ports = GUEST_PORTS.get_ptr_mut(0)?;
    let first: *mut u8 = match kind {
        // SAFETY: a valid pointer to a struct, for a pointer to its field.
        Kind::Tcp => unsafe { (&raw mut (*ports).tcp).cast() },
        // SAFETY: the same.
        Kind::Udp => unsafe { (&raw mut (*ports).udp).cast() },
        _ => return None,
    };
    // SAFETY: every port is a valid index.
    Some(unsafe { first.add(local.index()) })
}

/// Whether the socket that a packet from `remote` is for is bound to N.
#[inline(always)]
pub fn bound_to_node<I: Ip, F: Frame>(
    frame: &F,
    kind: Kind,
    remote: I::Address,
    ends: Ends,
) -> bool {
    find::<I, F>(frame, kind, remote, I::node(), ends).is_some_and(|socket| {
        socket.bound == I::node()
            // One that the guest has connected to this very peer from G comes first.
            && !find::<I, F>(frame, kind, remote, I::guest(), ends)
                .is_some_and(|socket| socket.bound == I::guest() && socket.peer == remote)
    })
}

/// A socket's ends.
struct Socket<A> {
    bound: A,
    peer: A,
}

/// The socket that the kernel would deliver a packet for `local` to.
#[inline(always)]
fn find<I: Ip, F: Frame>(
    frame: &F,
    kind: Kind,
    remote: I::Address,
    local: I::Address,
    ends: Ends,
) -> Option<Socket<I::Address>> {
    let mut tuple = I::tuple(remote, local, ends);
    let (pointer, size) = ((&raw mut tuple).cast(), size_of::<I::Tuple>() as u32);
    let netns = i64::from(BPF_F_CURRENT_NETNS).cast_unsigned();
    // The kernel gives the two pointers different types, so one instruction must not read through both: an
    // instruction that differs, and does nothing, keeps the compiler from sharing the code before it.
    if kind == Kind::Tcp {
        // SAFETY: the context is valid, and the tuple as long as said.
        let socket =
            unsafe { helpers::bpf_skc_lookup_tcp(frame.context(), pointer, size, netns, 0) };
        let found = Socket::read::<I>(socket)?;
        // SAFETY: changes nothing.
        unsafe { asm!("{0} += 0", inout(reg) size => _) };
        Some(found)
    } else {
        // SAFETY: the context is valid, and the tuple as long as said.
        let socket =
            unsafe { helpers::bpf_sk_lookup_udp(frame.context(), pointer, size, netns, 0) };
        let found = Socket::read::<I>(socket)?;
        // SAFETY: changes nothing.
        unsafe { asm!("{0} |= 0", inout(reg) size => _) };
        Some(found)
    }
}

impl<A> Socket<A> {
    /// Reads what a lookup found, and gives back the reference that it took.
    #[inline(always)]
    fn read<I: Ip<Address = A>>(socket: *mut bpf_sock) -> Option<Self> {
        if socket.is_null() {
            return None;
        }
        let found = Self {
            bound: I::bound(socket),
            peer: I::peer(socket),
        };
        // SAFETY: the lookup has taken a reference, which is given back here and nowhere else.
        unsafe { helpers::bpf_sk_release(socket.cast()) };
        Some(found)
    }
}
