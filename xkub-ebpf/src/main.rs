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
mod samples;

use aya_ebpf::{
    bindings::{__sk_buff, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action, xdp_md},
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use xkub_common::counter::Family;

use crate::{
    counters::{Outcome, count},
    frame::{Frame, Tc, Xdp},
};

/// Counts what became of a frame, and says whether it goes on.
#[inline(always)]
fn goes_on((family, outcome): (Family, Outcome)) -> bool {
    count(family, outcome.class, outcome.event);
    outcome.goes_on()
}

/// The same, and shows the frame to whoever monitors.
#[inline(always)]
fn goes_on_shown<F: Frame>(frame: &F, (family, outcome): (Family, Outcome)) -> bool {
    let count = count(family, outcome.class, outcome.event);
    samples::show(frame, family, outcome, count);
    outcome.goes_on()
}

/// Whether frames may take the straight way, which shows none.
#[inline(always)]
fn is_unwatched() -> bool {
    maps::sample() == 0
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
    let frame = Tc(context.skb.skb);
    match is_unwatched().then(|| ingress::plain(&frame)).flatten() {
        Some(outcome) => tc(goes_on(outcome)),
        None => tc_ingress_any(frame.0),
    }
}

#[inline(never)]
fn tc_ingress_any(skb: *mut __sk_buff) -> i32 {
    let frame = Tc(skb);
    tc(goes_on_shown(&frame, ingress::any(&frame)))
}

#[classifier]
pub fn xkub_egress(context: TcContext) -> i32 {
    let frame = Tc(context.skb.skb);
    match is_unwatched().then(|| egress::plain(&frame)).flatten() {
        Some(outcome) => tc(goes_on(outcome)),
        None => tc_egress_any(frame.0),
    }
}

#[inline(never)]
fn tc_egress_any(skb: *mut __sk_buff) -> i32 {
    let frame = Tc(skb);
    tc(goes_on_shown(&frame, egress::any(&frame)))
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
    let frame = Xdp::<FRAGMENTS>(context);
    match is_unwatched().then(|| ingress::plain(&frame)).flatten() {
        Some(outcome) => xdp(goes_on(outcome)),
        None => xdp_ingress_any::<FRAGMENTS>(context),
    }
}

#[inline(never)]
fn xdp_ingress_any<const FRAGMENTS: bool>(context: *mut xdp_md) -> u32 {
    let frame = Xdp::<FRAGMENTS>(context);
    xdp(goes_on_shown(&frame, ingress::any(&frame)))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing panics: the verifier rejects a program that could loop for ever.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
