//! Everything that can go wrong with the datapath, one variant per cause.

use std::{io, path::PathBuf};

use aya::programs::{ProgramError, tc::TcError, xdp::XdpError};
use thiserror::Error;
use xkub_common::counter::Place;

use super::{
    bpffs::BpffsError,
    capabilities::CapabilityError,
    hook::{Direction, Hook},
    object::ObjectError,
    settings::SettingsError,
};
use crate::{
    netlink::NetlinkError,
    node::{address_device::AddressDeviceError, uplink::UplinkError},
};

/// Why a command on the datapath failed.
#[derive(Debug, Error)]
pub enum Error {
    /// A setting can't be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The interface can't be the uplink.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    /// The process may not.
    #[error(transparent)]
    Capabilities(#[from] CapabilityError),
    /// There is no BPF filesystem.
    #[error(transparent)]
    Bpffs(#[from] BpffsError),
    /// The eBPF object can't be loaded.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The node address can't be put on its device, or taken from it.
    #[error(transparent)]
    AddressDevice(#[from] AddressDeviceError),
    /// A request to rtnetlink failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Something under the pin directory can't be read or written.
    #[error("{} can't be {doing}", path.display())]
    Pin {
        /// The file or directory.
        path: PathBuf,
        /// What was tried, as a participle: "renamed".
        doing: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another process works on this uplink's datapath and does not finish.
    #[error("another xkub process is changing the datapath of {0}; try again when it is done")]
    Busy(String),
    /// No uplink has a datapath.
    #[error(
        "no uplink has a datapath; attach one: xkub datapath attach --uplink NAME --node-address ADDRESS"
    )]
    NothingAttached,
    /// This uplink has none.
    #[error(
        "{0} has no datapath; attach one: xkub datapath attach --uplink {0} --node-address ADDRESS"
    )]
    NotAttached(String),
    /// Several have one and none was named.
    #[error("several uplinks have a datapath: {}; name one with --uplink", .0.join(", "))]
    SeveralAttached(Vec<String>),
    /// A place's program is not pinned where it should be.
    #[error("the program for {} is not pinned; attach again", .0.name())]
    Incomplete(Place),
    /// The kernel has no TCX.
    #[error(
        "this kernel has no TCX, which came with Linux 6.6 (CONFIG_NET_XGRESS); use --ingress-hook auto or clsact"
    )]
    NoTcx,
    /// The kernel has neither TCX nor clsact.
    #[error(
        "this kernel has neither TCX, which came with Linux 6.6 (CONFIG_NET_XGRESS), nor {missing}; load the module or use another kernel"
    )]
    NoHook {
        /// What clsact lacks.
        missing: &'static str,
    },
    /// The kernel has no clsact.
    #[error(
        "this kernel has no {missing}; load the module, or use --ingress-hook auto where the kernel has TCX"
    )]
    NoClsact {
        /// What is missing.
        missing: &'static str,
    },
    /// A TCX program of somebody else would run before our clsact filter, and may end the chain.
    #[error(
        "a filter on clsact would stand behind {name} (program {id}), which is on TCX at {uplink}'s {} and may end the chain; use --ingress-hook tcx", direction.name()
    )]
    HiddenByTcx {
        /// The uplink.
        uplink: String,
        /// The chain.
        direction: Direction,
        /// The program's id.
        id: u32,
        /// The program's name.
        name: String,
    },
    /// There is an ingress qdisc, which excludes clsact.
    #[error(
        "{0} has an ingress qdisc, which leaves no room for clsact; remove it: tc qdisc del dev {0} ingress"
    )]
    IngressQdisc(String),
    /// Somebody else's filter has our priority.
    #[error(
        "priority {priority} at {uplink}'s {} is taken by a filter that leaves no room beside it; look: tc filter show dev {uplink} {}", direction.name(), direction.name()
    )]
    PriorityTaken {
        /// The uplink.
        uplink: String,
        /// The chain.
        direction: Direction,
        /// The priority.
        priority: u16,
    },
    /// Somebody else's program is in the XDP slot, which holds one.
    #[error(
        "the XDP slot of {uplink} is taken by {name} (program {id}); remove it, or use --ingress-hook auto"
    )]
    XdpSlotTaken {
        /// The uplink.
        uplink: String,
        /// The program's id.
        id: u32,
        /// The program's name.
        name: String,
    },
    /// The driver has no native XDP, or not now.
    #[error("the driver of {uplink} refuses native XDP ({reason}); use --ingress-hook auto")]
    XdpRefused {
        /// The uplink.
        uplink: String,
        /// The driver's or the kernel's words.
        reason: String,
    },
    /// The kernel attaches XDP, but not with a link.
    #[error("this kernel has no links for XDP, which came with Linux 5.9; use --ingress-hook auto")]
    NoXdpLink,
    /// A hook refused a program for a reason of its own.
    #[error("the {} program can't be put on {}", place.name(), hook.name())]
    Hook {
        /// The program's place.
        place: Place,
        /// The hook.
        hook: Hook,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A chain can't be read.
    #[error("the chain at {uplink}'s {} can't be read", direction.name())]
    Chain {
        /// The uplink.
        uplink: String,
        /// The chain.
        direction: Direction,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Signals or timers can't be waited for.
    #[error("can't wait for signals and events")]
    Wait(#[source] io::Error),
}

/// What is under an aya error, as an errno where there is one.
pub(super) fn io_error(error: ProgramError) -> io::Error {
    match error {
        ProgramError::SyscallError(error) => error.io_error,
        ProgramError::TcError(TcError::NetlinkError(error))
        | ProgramError::XdpError(XdpError::NetlinkError(error))
        | ProgramError::NetlinkError(error) => match error.raw_os_error() {
            // aya keeps the kernel's words for the errno (NETLINK_EXT_ACK) only in its own message.
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::other(error),
        },
        ProgramError::TcError(TcError::IoError(error)) | ProgramError::IOError(error) => error,
        other => io::Error::other(other),
    }
}
