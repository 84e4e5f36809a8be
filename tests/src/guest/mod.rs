//! Real guests: QEMU VMs with virtio-net on a tap behind KubeVirt's rules, with Debian's kernels.
//!
//! A veth pair lies about checksums and offloads, so the datapath counts as working only where it works here. QEMU emulates
//! the processor (`-accel tcg`), so neither KVM nor nested virtualisation is needed; two guests boot in seconds.
//!
//! Nothing here is committed or built in: kernels come from Debian's archive ([`kernel`]), the user space of a guest is
//! made of this machine's own programs ([`initramfs`]), or, where systemd matters, a Debian on a disk ([`image`]).

pub mod api;
pub mod bench;
pub mod counters;
mod dhcp;
pub mod image;
pub mod initramfs;
pub mod k0s;
pub mod kernel;
pub mod lab;
pub mod machine;
pub mod matrix;
mod qmp;
pub mod report;
mod serial;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use image::Disk;
pub use kernel::{KERNELS_VARIABLE, Kernel, Series, wanted};
pub use lab::{GuestNode, HostMode, Lab};
pub use machine::Guest;

/// The guests of one test at a time, for as long as the guard lives: four on two cores would only be slower.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
