//! Other people's programs on the uplink's hooks: what a CNI would attach there, in a dozen instructions.
//!
//! Assembled by hand and loaded through bpf(2), so that what xkub stands next to shares no line of code with it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use anyhow::{Context as _, Result};

use crate::namespace::Namespace;

/// `TCX_NEXT`: the next program in the chain runs.
const NEXT: i32 = -1;
/// `TC_ACT_OK`: the chain ends here and the packet goes on.
const OK: i32 = 0;
/// `TC_ACT_SHOT`: the packet is dropped.
const SHOT: i32 = 2;

/// Offsets in an Ethernet frame with an IPv4 header and no VLAN tag.
mod offset {
    /// The Ethernet type.
    pub const ETHERTYPE: i32 = 12;
    /// The IPv4 protocol.
    pub const PROTOCOL: i32 = 23;
    /// The IPv4 header checksum.
    pub const CHECKSUM: i32 = 24;
    /// The IPv4 source.
    pub const SOURCE: i32 = 26;
    /// The IPv4 destination.
    pub const DESTINATION: i32 = 30;
}

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the wire.
    Ingress,
    /// To the wire.
    Egress,
}

/// What the program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Nothing, and lets the next one run.
    PassOn,
    /// Nothing, and ends the chain, as Cilium's programs do.
    EndChain,
    /// Drops IPv4 packets from an address: shows whether it is still there when this program runs.
    DropFrom(Ipv4Addr),
    /// Drops IPv4 packets to an address and a UDP destination port.
    DropUdpTo(Ipv4Addr, u16),
    /// Gives ICMP packets from `guest` the source `node` and lets the next one run, as a CNI that masquerades pods to
    /// what it thinks is the node's address.
    MasqueradePing {
        /// Packets from here.
        guest: Ipv4Addr,
        /// Are from there afterwards.
        node: Ipv4Addr,
    },
}

/// Where in the chain a program goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Behind all others: where a CNI goes.
    Tail,
    /// Before all others.
    Head,
}

/// A program on a hook, detached when dropped.
#[derive(Debug)]
pub struct Foreign {
    _link: OwnedFd,
    _program: OwnedFd,
}

impl Foreign {
    /// Attaches a program at the tail of the TCX chain; `name` has at most 15 characters.
    ///
    /// # Errors
    /// When the kernel refuses: no TCX, no `CAP_BPF`.
    pub fn attach(
        namespace: &Namespace,
        device: &str,
        direction: Direction,
        name: &str,
        behaviour: Behaviour,
    ) -> Result<Self> {
        Self::attach_at(
            namespace,
            device,
            direction,
            Position::Tail,
            name,
            behaviour,
        )
    }

    /// Attaches a program to the TCX chain.
    ///
    /// # Errors
    /// As [`Foreign::attach`].
    pub fn attach_at(
        namespace: &Namespace,
        device: &str,
        direction: Direction,
        position: Position,
        name: &str,
        behaviour: Behaviour,
    ) -> Result<Self> {
        let attach_type = match direction {
            Direction::Ingress => BPF_TCX_INGRESS,
            Direction::Egress => BPF_TCX_EGRESS,
        };
        let flags = match position {
            Position::Tail => 0,
            Position::Head => BPF_F_BEFORE,
        };
        let program = load(BPF_PROG_TYPE_SCHED_CLS, name, &assemble(behaviour))
            .with_context(|| format!("load {name}"))?;
        Self::link(namespace, device, name, program, attach_type, flags)
    }

    /// Puts a program that passes everything into the XDP slot, in driver mode.
    ///
    /// # Errors
    /// When the driver has no XDP, or the slot is taken.
    pub fn attach_xdp(namespace: &Namespace, device: &str, name: &str) -> Result<Self> {
        let pass = [move_immediate(0, XDP_PASS), EXIT];
        let program =
            load(BPF_PROG_TYPE_XDP, name, &pass).with_context(|| format!("load {name}"))?;
        Self::link(
            namespace,
            device,
            name,
            program,
            BPF_XDP,
            XDP_FLAGS_DRV_MODE,
        )
    }

    fn link(
        namespace: &Namespace,
        device: &str,
        name: &str,
        program: OwnedFd,
        attach_type: u32,
        flags: u32,
    ) -> Result<Self> {
        let attributes = LinkAttributes {
            // A descriptor is never negative.
            program: program.as_raw_fd().unsigned_abs(),
            device: namespace.interface_index(device)?,
            attach_type,
            flags,
            ..LinkAttributes::default()
        };
        let link = namespace
            .within(|| bpf(BPF_LINK_CREATE, &attributes))?
            .with_context(|| format!("attach {name} to {device}"))?;
        Ok(Self {
            _link: link,
            _program: program,
        })
    }
}

/// Puts a program on clsact, as a CNI does where it can't or won't use TCX; the qdisc is made if there is none. It
/// stays until it is removed by tc. `name` has at most 15 characters.
///
/// # Errors
/// When the kernel refuses, or tc does.
pub fn add_filter(
    namespace: &Namespace,
    device: &str,
    direction: Direction,
    priority: u16,
    name: &str,
    behaviour: Behaviour,
) -> Result<()> {
    let program = load(BPF_PROG_TYPE_SCHED_CLS, name, &assemble(behaviour))
        .with_context(|| format!("load {name}"))?;
    // tc takes pins alone. The namespace has a bpffs of its own.
    let pin = format!("/sys/fs/bpf/{name}");
    let seen_from_here = format!("/proc/{}/root{pin}", namespace.pid());
    let path = CString::new(seen_from_here.as_str())?;
    let attributes = PinAttributes {
        path: path.as_ptr() as u64,
        // A descriptor is never negative.
        object: program.as_raw_fd().unsigned_abs(),
        flags: 0,
    };
    bpf_call(BPF_OBJ_PIN, &attributes).with_context(|| format!("pin {name}"))?;
    let direction = match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    // It may be there.
    namespace.run(["tc", "qdisc", "add", "dev", device, "clsact"])?;
    let priority = priority.to_string();
    let place = ["dev", device, direction, "prio", &priority];
    let program = ["bpf", "direct-action", "object-pinned", &pin];
    let added = namespace.check(
        ["tc", "filter", "add"]
            .into_iter()
            .chain(place)
            .chain(program),
    );
    fs::remove_file(seen_from_here)?;
    added.map(drop)
}

/// One eBPF instruction, laid out as the kernel's `struct bpf_insn`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

fn instruction(code: u8, target: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: source << 4 | target,
        offset,
        immediate,
    }
}

fn move_immediate(target: u8, value: i32) -> Instruction {
    instruction(0xb7, target, 0, 0, value)
}

/// As above, but the upper half is zero and not the sign.
fn move_word(target: u8, value: i32) -> Instruction {
    instruction(0xb4, target, 0, 0, value)
}

fn move_register(target: u8, source: u8) -> Instruction {
    instruction(0xbf, target, source, 0, 0)
}

/// r0 = packet[offset], in host order; r6 must hold the context.
fn load_packet(size: u8, offset: i32) -> Instruction {
    instruction(0x20 | size, 0, 0, 0, offset)
}

/// Sizes of [`load_packet`].
const BYTE: u8 = 0x10;
const HALF: u8 = 0x08;
const WORD: u8 = 0x00;

/// Jumps over the next `skip` instructions unless the lower half of r0 is `value`.
fn unless_equal(value: i32, skip: i16) -> Instruction {
    instruction(0x56, 0, 0, skip, value)
}

fn call(helper: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, helper)
}

const EXIT: Instruction = Instruction {
    code: 0x95,
    registers: 0,
    offset: 0,
    immediate: 0,
};
/// `bpf_skb_store_bytes`
const STORE_BYTES: i32 = 9;
/// `bpf_l3_csum_replace`
const CHECKSUM_REPLACE: i32 = 10;

fn assemble(behaviour: Behaviour) -> Vec<Instruction> {
    // What the packet must be, then what happens to it; everything else is passed on.
    let ipv4 = (load_packet(HALF, offset::ETHERTYPE), 0x0800);
    let source = |address: Ipv4Addr| (load_packet(WORD, offset::SOURCE), host_order(address));
    let (conditions, mut action) = match behaviour {
        Behaviour::PassOn => (vec![], vec![move_immediate(0, NEXT)]),
        Behaviour::EndChain => (vec![], vec![move_immediate(0, OK)]),
        Behaviour::DropFrom(address) => {
            (vec![ipv4, source(address)], vec![move_immediate(0, SHOT)])
        }
        Behaviour::DropUdpTo(address, port) => {
            let udp = (load_packet(BYTE, offset::PROTOCOL), libc::IPPROTO_UDP);
            let destination = (load_packet(WORD, offset::DESTINATION), host_order(address));
            // Behind a header without options.
            let port = (
                load_packet(HALF, offset::DESTINATION + 4 + 2),
                i32::from(port),
            );
            (
                vec![ipv4, udp, destination, port],
                vec![move_immediate(0, SHOT)],
            )
        }
        Behaviour::MasqueradePing { guest, node } => {
            let icmp = (load_packet(BYTE, offset::PROTOCOL), libc::IPPROTO_ICMP);
            (vec![ipv4, icmp, source(guest)], masquerade(guest, node))
        }
    };
    action.push(EXIT);
    let mut program = vec![move_register(6, 1)];
    let count = conditions.len();
    for (index, (load, value)) in conditions.into_iter().enumerate() {
        // Over what is left of the conditions, two instructions each, and the action.
        let left = 2 * (count - index - 1) + action.len();
        program.extend([
            load,
            unless_equal(value, i16::try_from(left).unwrap_or(i16::MAX)),
        ]);
    }
    program.extend(action);
    // The verifier refuses instructions that no jump reaches.
    if count > 0 {
        program.extend([move_immediate(0, NEXT), EXIT]);
    }
    program
}

fn masquerade(guest: Ipv4Addr, node: Ipv4Addr) -> Vec<Instruction> {
    vec![
        move_register(1, 6),
        move_immediate(2, offset::CHECKSUM),
        move_word(3, network_order(guest)),
        move_word(4, network_order(node)),
        move_immediate(5, 4),
        call(CHECKSUM_REPLACE),
        // *(u32 *)(r10 - 4) = node
        instruction(0x62, 10, 0, -4, network_order(node)),
        move_register(1, 6),
        move_immediate(2, offset::SOURCE),
        move_register(3, 10),
        // r3 += -4
        instruction(0x07, 3, 0, 0, -4),
        move_immediate(4, 4),
        move_immediate(5, 0),
        call(STORE_BYTES),
        move_immediate(0, NEXT),
    ]
}

fn host_order(address: Ipv4Addr) -> i32 {
    i32::from_be_bytes(address.octets())
}

fn network_order(address: Ipv4Addr) -> i32 {
    i32::from_ne_bytes(address.octets())
}

/// `BPF_PROG_LOAD` of `union bpf_attr`, as far as it is needed.
#[derive(Debug, Default)]
#[repr(C)]
struct LoadAttributes {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// `BPF_LINK_CREATE` of `union bpf_attr`, for TCX; zeros where XDP has nothing.
#[derive(Debug, Default)]
#[repr(C)]
struct LinkAttributes {
    program: u32,
    device: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    padding: u32,
    expected_revision: u64,
}

/// `BPF_OBJ_PIN` of `union bpf_attr`.
#[derive(Debug)]
#[repr(C)]
struct PinAttributes {
    path: u64,
    object: u32,
    flags: u32,
}

const BPF_PROG_LOAD: i32 = 5;
const BPF_OBJ_PIN: i32 = 6;
const BPF_LINK_CREATE: i32 = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
/// Before `relative`, or before all without one.
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_PASS: i32 = 2;

/// A hook that [`load_empty`] has a program for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// TC, by TCX or clsact.
    Tc,
    /// XDP.
    Xdp,
}

/// Loads a program that does nothing but let the packet go on: what others are measured against.
///
/// # Errors
/// When the kernel refuses: no `CAP_BPF`.
pub fn load_empty(hook: Hook) -> Result<OwnedFd> {
    let (program_type, verdict) = match hook {
        Hook::Tc => (BPF_PROG_TYPE_SCHED_CLS, NEXT),
        Hook::Xdp => (BPF_PROG_TYPE_XDP, XDP_PASS),
    };
    load(program_type, "empty", &[move_immediate(0, verdict), EXIT])
}

fn load(program_type: u32, name: &str, instructions: &[Instruction]) -> Result<OwnedFd> {
    let license = CString::new("GPL")?;
    let mut attributes = LoadAttributes {
        program_type,
        instruction_count: u32::try_from(instructions.len())?,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        ..LoadAttributes::default()
    };
    // The last byte stays zero.
    for (target, byte) in attributes.name.iter_mut().take(15).zip(name.bytes()) {
        *target = byte;
    }
    Ok(bpf(BPF_PROG_LOAD, &attributes)?)
}

fn bpf<T>(command: i32, attributes: &T) -> io::Result<OwnedFd> {
    let descriptor = bpf_call(command, attributes)?;
    // SAFETY: the callers' commands return a new descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn bpf_call<T>(command: i32, attributes: &T) -> io::Result<RawFd> {
    let size = size_of::<T>();
    // SAFETY: the attributes, and everything they point to, live until the call returns; the kernel only reads them.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size) };
    let result = i32::try_from(result).map_err(io::Error::other)?;
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
