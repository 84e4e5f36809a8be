//! The programs' entry points. Each translates a frame, counts what became of it and hands it on to whoever
//! comes next on the same hook.
#![no_std]
#![no_main]
// Building core for the BPF target needs an unstable compiler, or RUSTC_BOOTSTRAP, anyway.
#![feature(asm_experimental_arch)]
#![expect(
    missing_docs,
    reason = "nothing here is public: programs are found by name, not by path"
)]
#![expect(
    clippy::inline_always,
    reason = "on a packet's way every call counts, and the verifier forgets what a callee has checked"
)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "helpers take 32 bits of offsets and lengths that are far below"
)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "the macros of aya hand the context over"
)]

mod counters;
mod egress;
mod fragment;
mod frame;
mod icmp;
mod ingress;
mod ip;
mod maps;
mod neighbour;
mod remember;
mod rewrite;

use aya_ebpf::{
    bindings::{__sk_buff, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action, xdp_md},
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use xkub_common::counter::{Class, Event, Family};

use crate::{
    counters::{Outcome, count},
    frame::{Fault, Tc, Xdp},
};

/// Whether the frame goes on.
#[inline(always)]
fn goes_on((family, outcome): (Family, Result<Outcome, Fault>)) -> bool {
    let went_well = outcome.is_ok();
    let Outcome { event, class } = outcome.unwrap_or(Outcome::new(Event::Dropped, Class::Other));
    count(family, class, event);
    went_well
}

/// `TC_ACT_UNSPEC` is `TCX_NEXT`: the next program on the hook sees the packet too.
#[inline(always)]
const fn tc(goes_on: bool) -> i32 {
    if goes_on { TC_ACT_UNSPEC } else { TC_ACT_SHOT }
}

#[inline(always)]
const fn xdp(goes_on: bool) -> u32 {
    if goes_on {
        xdp_action::XDP_PASS
    } else {
        xdp_action::XDP_DROP
    }
}

#[classifier]
pub fn xkub_ingress(context: TcContext) -> i32 {
    let skb = context.skb.skb;
    match ingress::plain(&Tc(skb)) {
        Some(outcome) => tc(goes_on(outcome)),
        None => tc_ingress_any(skb),
    }
}

#[inline(never)]
fn tc_ingress_any(skb: *mut __sk_buff) -> i32 {
    tc(goes_on(ingress::any(&Tc(skb))))
}

#[classifier]
pub fn xkub_egress(context: TcContext) -> i32 {
    let skb = context.skb.skb;
    match egress::plain(&Tc(skb)) {
        Some(outcome) => tc(goes_on(outcome)),
        None => tc_egress_any(skb),
    }
}

#[inline(never)]
fn tc_egress_any(skb: *mut __sk_buff) -> i32 {
    tc(goes_on(egress::any(&Tc(skb))))
}

#[xdp]
pub fn xkub_xdp(context: XdpContext) -> u32 {
    xdp_ingress::<false>(context.ctx)
}

/// For frames in several buffers (Linux 5.18), which a large MTU needs.
#[xdp(frags)]
pub fn xkub_xdp_frags(context: XdpContext) -> u32 {
    xdp_ingress::<true>(context.ctx)
}

#[inline(always)]
fn xdp_ingress<const FRAGMENTS: bool>(context: *mut xdp_md) -> u32 {
    match ingress::plain(&Xdp::<FRAGMENTS>(context)) {
        Some(outcome) => xdp(goes_on(outcome)),
        None => xdp_ingress_any::<FRAGMENTS>(context),
    }
}

#[inline(never)]
fn xdp_ingress_any<const FRAGMENTS: bool>(context: *mut xdp_md) -> u32 {
    xdp(goes_on(ingress::any(&Xdp::<FRAGMENTS>(context))))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing panics: the verifier rejects a program that could loop for ever.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
