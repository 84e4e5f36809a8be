//! Access to a frame in the kernel, as TC and as XDP have it: reading, writing, and keeping what the
//! kernel knows of its checksums right.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_PSEUDO_HDR, xdp_md},
    helpers,
};
use xkub_common::{
    checksum,
    packet::{PLAIN_TRANSPORT, Packet, Plain},
};

/// A rewrite that broke off, the kernel having no memory to make the headers writable. The packet may
/// be half rewritten and must not go on.
pub struct Fault;

/// A frame that can be rewritten.
pub trait Frame: Packet {
    /// Whether each write is a call of a helper, so that few large ones are better than many small ones.
    const WRITES_ARE_CALLS: bool;

    /// The program's context, for helpers that take any.
    fn context(&self) -> *mut core::ffi::c_void;

    /// Writes `value` at `offset`.
    fn write<T: Plain>(&self, offset: usize, value: T) -> Result<(), Fault>;

    /// Updates the transport checksum at `offset`, finished or pending, after the pseudo header grew by
    /// `difference`. The kernel takes for granted that an IPv4 header checksum absorbs the same difference.
    fn update_transport(&self, offset: usize, difference: u32) -> Result<(), Fault>;

    /// Updates a checksum at `offset` that is known to be pending.
    fn update_pending(&self, offset: usize, field: u16, difference: u32) -> Result<(), Fault>;

    /// Says that the sum over the frame's bytes grew by `difference`, for a device that delivered the sum
    /// with the frame (`CHECKSUM_COMPLETE`).
    fn sum_grew(&self, difference: u32);
}

/// Whether the transport header behind a plain IPv4 header can be read as it is. A driver may leave all but the
/// Ethernet header in pages, and the kernel pulls no more of it than it has looked at.
#[inline(always)]
pub fn is_readable<T: Plain, F: Frame>(frame: &F) -> bool {
    frame.read::<T>(PLAIN_TRANSPORT).is_some()
}

/// A frame at a TC hook.
pub struct Tc(pub *mut __sk_buff);

impl Packet for Tc {
    #[inline(always)]
    fn read<T: Plain>(&self, offset: usize) -> Option<T> {
        // SAFETY: the kernel passes a valid context.
        let (data, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        read(data, end, offset)
    }

    #[inline(always)]
    fn holds(&self, bytes: usize) -> bool {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.0).len as usize >= bytes }
    }

    #[inline(always)]
    fn forget(&self, value: usize) -> usize {
        // SAFETY: the kernel passes a valid context.
        forget(value, unsafe { (*self.0).len })
    }

    #[inline(always)]
    fn reach(&self, bytes: usize) {
        // SAFETY: the kernel passes a valid context.
        let (data, end, length) = unsafe {
            (
                (*self.0).data as usize,
                (*self.0).data_end as usize,
                (*self.0).len,
            )
        };
        // Packet pointers take no more than 16 bits.
        let is_paged = length > 0xffff || data + (length as usize & 0xffff) > end;
        if data + bytes > end && is_paged {
            // A failure shows as a read past the end.
            // SAFETY: the kernel passes a valid context.
            unsafe { helpers::bpf_skb_pull_data(self.0, length.min(bytes as u32)) };
        }
    }
}

impl Frame for Tc {
    const WRITES_ARE_CALLS: bool = true;

    #[inline(always)]
    fn context(&self) -> *mut core::ffi::c_void {
        self.0.cast()
    }

    /// By helper, not directly: a program that writes directly has every cloned frame made writable, that
    /// is, every TCP segment that leaves, before it runs.
    #[inline(always)]
    fn write<T: Plain>(&self, offset: usize, value: T) -> Result<(), Fault> {
        // SAFETY: the context is valid, and `value` is as long as said.
        done(unsafe {
            helpers::bpf_skb_store_bytes(
                self.0,
                offset as u32,
                (&raw const value).cast(),
                size_of::<T>() as u32,
                0,
            )
        })
    }

    #[inline(always)]
    fn update_transport(&self, offset: usize, difference: u32) -> Result<(), Fault> {
        // SAFETY: the context is valid.
        done(unsafe {
            helpers::bpf_l4_csum_replace(
                self.0,
                offset as u32,
                0,
                u64::from(difference),
                u64::from(BPF_F_PSEUDO_HDR),
            )
        })
    }

    #[inline(always)]
    fn update_pending(&self, offset: usize, _: u16, difference: u32) -> Result<(), Fault> {
        self.update_transport(offset, difference)
    }

    #[inline(always)]
    fn sum_grew(&self, difference: u32) {
        // It refuses where the device did not deliver a sum, and nothing is to be done then.
        // SAFETY: the context is valid.
        unsafe { helpers::bpf_csum_update(self.0, difference) };
    }
}

/// A frame at the XDP hook. Its checksums are always finished, but for those that a veth pair passes on.
pub struct Xdp<const FRAGMENTS: bool>(pub *mut xdp_md);

impl<const FRAGMENTS: bool> Packet for Xdp<FRAGMENTS> {
    #[inline(always)]
    fn read<T: Plain>(&self, offset: usize) -> Option<T> {
        // SAFETY: the kernel passes a valid context.
        let (data, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        read(data, end, offset)
    }

    #[inline(always)]
    fn holds(&self, bytes: usize) -> bool {
        // SAFETY: the kernel passes a valid context.
        let (data, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        // SAFETY: the context is valid. The helper is there where programs for frames in several buffers
        // are: both came with Linux 5.18.
        data + bounded(bytes) <= end
            || (FRAGMENTS && unsafe { helpers::bpf_xdp_get_buff_len(self.0) } as usize >= bytes)
    }

    #[inline(always)]
    fn forget(&self, value: usize) -> usize {
        // SAFETY: the kernel passes a valid context.
        forget(value, unsafe { (*self.0).rx_queue_index })
    }
}

impl<const FRAGMENTS: bool> Frame for Xdp<FRAGMENTS> {
    const WRITES_ARE_CALLS: bool = false;

    #[inline(always)]
    fn context(&self) -> *mut core::ffi::c_void {
        self.0.cast()
    }

    #[inline(always)]
    fn write<T: Plain>(&self, offset: usize, value: T) -> Result<(), Fault> {
        // SAFETY: the kernel passes a valid context.
        let (data, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        let start = data + offset;
        if start + size_of::<T>() > end {
            return Err(Fault);
        }
        // SAFETY: within the frame, as checked; any alignment, as in `read`.
        unsafe { (start as *mut T).write(value) };
        Ok(())
    }

    #[inline(always)]
    fn update_transport(&self, offset: usize, difference: u32) -> Result<(), Fault> {
        let field: u16 = self.read(offset).ok_or(Fault)?;
        self.write(offset, checksum::update(field, difference))
    }

    #[inline(always)]
    fn update_pending(&self, offset: usize, field: u16, difference: u32) -> Result<(), Fault> {
        self.write(offset, checksum::update_pending(field, difference))
    }

    #[inline(always)]
    fn sum_grew(&self, _: u32) {}
}

#[inline(always)]
fn read<T: Plain>(data: usize, end: usize, offset: usize) -> Option<T> {
    let start = data + offset;
    if start + size_of::<T>() > end {
        return None;
    }
    // SAFETY: within the frame, as checked. Network headers lie on 4-byte boundaries where the machine
    // cares (NET_IP_ALIGN), and fields at their natural place in them; elsewhere any address will do.
    Some(unsafe { (start as *const T).read() })
}

/// The same number of bytes, which a length field and a few headers can tell. Kernels before 6.8 forget the bounds of
/// a number when its bytes are swapped, and the compiler would leave out a mask that it knows changes nothing.
#[inline(always)]
fn bounded(bytes: usize) -> usize {
    let mut bytes = bytes;
    // SAFETY: arithmetic on a register.
    unsafe { core::arch::asm!("{0} &= 0x1ffff", inout(reg) bytes) };
    bytes
}

/// See [`Packet::forget`]: `unknown` in and out again leaves the value, but no knowledge of it.
#[inline(always)]
fn forget(value: usize, unknown: u32) -> usize {
    let mut value = value;
    // SAFETY: arithmetic on a register.
    unsafe {
        core::arch::asm!(
            "{value} ^= {unknown}",
            "{value} ^= {unknown}",
            value = inout(reg) value,
            unknown = in(reg) u64::from(unknown),
        );
    }
    value
}

#[inline(always)]
const fn done(result: i64) -> Result<(), Fault> {
    if result == 0 { Ok(()) } else { Err(Fault) }
}
