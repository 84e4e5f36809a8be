//! The programs' entry points.
#![no_std]
#![no_main]

mod maps;

use aya_ebpf::{
    bindings::xdp_action::XDP_PASS,
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};

#[classifier]
pub fn xkub_ingress(_: TcContext) -> i32 { touch() }
#[classifier]
pub fn xkub_egress(_: TcContext) -> i32 { touch() }
#[xdp(frags)]
pub fn xkub_xdp(_: XdpContext) -> u32 { touch(); XDP_PASS }

fn touch() -> i32 {
    use maps::*;
    if let Some(counter) = COUNTERS.get_ptr_mut(unsafe { core::ptr::read_volatile((&raw const CONFIG).cast::<u32>()) }) { unsafe { *counter += 1 } }
    -1
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
