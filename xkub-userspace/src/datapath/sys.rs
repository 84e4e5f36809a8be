//! The few bpf(2) calls that aya 0.14 does not have, and the two that it has without what we need from them.

use std::{
    ffi::{CStr, CString, c_char},
    io, mem,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    time::Duration,
};

use aya_obj::generated::{
    bpf_attach_type::{BPF_TCX_EGRESS, BPF_TCX_INGRESS},
    bpf_attr, bpf_cmd, bpf_link_info,
    bpf_link_type::{BPF_LINK_TYPE_TCX, BPF_LINK_TYPE_XDP},
    bpf_prog_info,
};

use super::hook::Direction;

/// The kernel's limit on TCX programs per hook (`BPF_MPROG_MAX`, `include/linux/bpf_mprog.h`).
const MPROG_MAX: usize = 64;
/// How many entries of a map are read per call when they are counted.
const BATCH: u32 = 4096;

/// What is known of a loaded program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProgramInfo {
    pub id: u32,
    /// At most 15 bytes.
    pub name: String,
    /// A hash over its instructions.
    pub tag: [u8; 8],
    /// When it was loaded, as time since boot, suspended time included.
    pub loaded_at: Duration,
    pub map_ids: Vec<u32>,
}

/// What is known of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkInfo {
    pub id: u32,
    pub program_id: u32,
    pub target: LinkTarget,
}

/// What a link attaches its program to. The interface index is 0 once the interface is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkTarget {
    Tcx { ifindex: u32, direction: Direction },
    Xdp { ifindex: u32 },
    Other,
}

/// One program in a TCX chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcxEntry {
    pub program_id: u32,
    /// 0 when it was attached without a link.
    pub link_id: u32,
}

/// A TCX chain, in running order. `revision` grows with every change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TcxChain {
    pub revision: u64,
    pub entries: Vec<TcxEntry>,
}

fn bpf(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: `attributes` is a whole `bpf_attr`, and every pointer in it refers, as the callers below take
    // care, to memory that outlives the call and is as large as the length beside it says.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attributes),
            size_of::<bpf_attr>(),
        )
    };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

fn no_attributes() -> bpf_attr {
    // SAFETY: `bpf_attr` is a union of structs of integers, for which all zeroes is a value.
    unsafe { mem::zeroed() }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the callers pass a descriptor that the kernel has just made for them.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A descriptor as bpf(2) wants it.
fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn pointer<T>(data: &mut [T]) -> u64 {
    data.as_mut_ptr() as u64
}

/// Opens what is pinned at `path`; `None` when nothing is.
pub(super) fn pinned(path: &Path) -> io::Result<Option<OwnedFd>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = no_attributes();
    attributes.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    match bpf(bpf_cmd::BPF_OBJ_GET, &mut attributes) {
        Ok(fd) => Ok(Some(owned(fd))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Pins what a descriptor refers to. aya pins links of its own only.
pub(super) fn pin(object: impl AsFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = no_attributes();
    attributes.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    attributes.__bindgen_anon_4.bpf_fd = raw(object.as_fd());
    bpf(bpf_cmd::BPF_OBJ_PIN, &mut attributes).map(drop)
}

/// Opens a program by id. Needs `CAP_SYS_ADMIN`.
pub(super) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(bpf_cmd::BPF_PROG_GET_FD_BY_ID, id)
}

/// Opens a link by id. Needs `CAP_SYS_ADMIN`.
pub(super) fn link_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(bpf_cmd::BPF_LINK_GET_FD_BY_ID, id)
}

fn by_id(command: bpf_cmd, id: u32) -> io::Result<OwnedFd> {
    let mut attributes = no_attributes();
    attributes.__bindgen_anon_6.__bindgen_anon_1.prog_id = id;
    bpf(command, &mut attributes).map(owned)
}

/// The ids of all links on this machine.
pub(super) fn link_ids() -> io::Result<Vec<u32>> {
    let mut ids = Vec::new();
    loop {
        let mut attributes = no_attributes();
        attributes.__bindgen_anon_6.__bindgen_anon_1.start_id = ids.last().copied().unwrap_or(0);
        match bpf(bpf_cmd::BPF_LINK_GET_NEXT_ID, &mut attributes) {
            // SAFETY: the call succeeded, so the kernel has set `next_id`.
            Ok(_) => ids.push(unsafe { attributes.__bindgen_anon_6.next_id }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ids),
            Err(error) => return Err(error),
        }
    }
}

fn info<T>(fd: impl AsFd, info: &mut T) -> io::Result<()> {
    let mut attributes = no_attributes();
    attributes.info.bpf_fd = raw(fd.as_fd());
    attributes.info.info_len = u32::try_from(size_of::<T>()).map_err(io::Error::other)?;
    attributes.info.info = std::ptr::from_mut(info) as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attributes).map(drop)
}

/// Describes a program.
pub(super) fn program_info(fd: impl AsFd) -> io::Result<ProgramInfo> {
    // SAFETY: `bpf_prog_info` is a struct of integers, for which all zeroes is a value.
    let mut counts: bpf_prog_info = unsafe { mem::zeroed() };
    info(&fd, &mut counts)?;
    let mut map_ids = vec![0u32; counts.nr_map_ids as usize];
    // SAFETY: as above.
    let mut program: bpf_prog_info = unsafe { mem::zeroed() };
    program.nr_map_ids = counts.nr_map_ids;
    program.map_ids = pointer(&mut map_ids);
    info(&fd, &mut program)?;
    Ok(ProgramInfo {
        id: program.id,
        name: name(&program.name),
        tag: program.tag,
        loaded_at: Duration::from_nanos(program.load_time),
        map_ids,
    })
}

fn name(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| byte.cast_unsigned()).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Describes a link.
pub(super) fn link_info(fd: impl AsFd) -> io::Result<LinkInfo> {
    // SAFETY: `bpf_link_info` is a struct of integers and unions of such, for which all zeroes is a value.
    let mut link: bpf_link_info = unsafe { mem::zeroed() };
    info(fd, &mut link)?;
    let target = if link.type_ == BPF_LINK_TYPE_TCX as u32 {
        // SAFETY: the kernel fills this member for this type of link.
        let tcx = unsafe { link.__bindgen_anon_1.tcx };
        let direction = match tcx.attach_type {
            attach_type if attach_type == BPF_TCX_INGRESS as u32 => Direction::Ingress,
            _ => Direction::Egress,
        };
        LinkTarget::Tcx {
            ifindex: tcx.ifindex,
            direction,
        }
    } else if link.type_ == BPF_LINK_TYPE_XDP as u32 {
        LinkTarget::Xdp {
            // SAFETY: as above.
            ifindex: unsafe { link.__bindgen_anon_1.xdp.ifindex },
        }
    } else {
        LinkTarget::Other
    };
    Ok(LinkInfo {
        id: link.id,
        program_id: link.prog_id,
        target,
    })
}

/// Puts another program behind a link, atomically. `ENOLINK`: the interface is gone.
pub(super) fn link_update(link: impl AsFd, program: impl AsFd) -> io::Result<()> {
    let mut attributes = no_attributes();
    attributes.link_update.link_fd = raw(link.as_fd());
    attributes.link_update.__bindgen_anon_1.new_prog_fd = raw(program.as_fd());
    bpf(bpf_cmd::BPF_LINK_UPDATE, &mut attributes).map(drop)
}

/// Detaches a link whoever else holds it. Unlike the removal of its pin this is done when it returns.
pub(super) fn link_detach(link: impl AsFd) -> io::Result<()> {
    let mut attributes = no_attributes();
    attributes.link_detach.link_fd = raw(link.as_fd());
    bpf(bpf_cmd::BPF_LINK_DETACH, &mut attributes).map(drop)
}

/// Who stands in a TCX chain. An empty one where the kernel has no TCX.
pub(super) fn tcx_chain(ifindex: u32, direction: Direction) -> io::Result<TcxChain> {
    let mut program_ids = [0u32; MPROG_MAX];
    let mut link_ids = [0u32; MPROG_MAX];
    let mut attributes = no_attributes();
    attributes.query.__bindgen_anon_1.target_ifindex = ifindex;
    attributes.query.attach_type = match direction {
        Direction::Ingress => BPF_TCX_INGRESS,
        Direction::Egress => BPF_TCX_EGRESS,
    } as u32;
    attributes.query.prog_ids = pointer(&mut program_ids);
    attributes.query.link_ids = pointer(&mut link_ids);
    attributes.query.__bindgen_anon_2.count = u32::try_from(MPROG_MAX).map_err(io::Error::other)?;
    match bpf(bpf_cmd::BPF_PROG_QUERY, &mut attributes) {
        Ok(_) => {}
        // No TCX in this kernel; or it has one, and nobody ever used it on this interface.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
            return Ok(TcxChain::default());
        }
        Err(error) => return Err(error),
    }
    // SAFETY: the call succeeded, so the kernel has set both.
    let (count, revision) = unsafe {
        (
            attributes.query.__bindgen_anon_2.count,
            attributes.query.revision,
        )
    };
    let entries = program_ids
        .into_iter()
        .zip(link_ids)
        .take(count as usize)
        .map(|(program_id, link_id)| TcxEntry {
            program_id,
            link_id,
        })
        .collect();
    Ok(TcxChain { revision, entries })
}

/// Counts the entries of a hash map; sizes in bytes.
pub(super) fn map_len(map: impl AsFd, key_size: u32, value_size: u32) -> io::Result<u64> {
    let mut keys = vec![0u8; BATCH as usize * key_size as usize];
    let mut values = vec![0u8; BATCH as usize * value_size as usize];
    let mut position = [0u32; 1];
    let mut next = [0u32; 1];
    let mut total = 0;
    let mut is_first = true;
    loop {
        let mut attributes = no_attributes();
        attributes.batch.map_fd = raw(map.as_fd());
        attributes.batch.in_batch = if is_first { 0 } else { pointer(&mut position) };
        attributes.batch.out_batch = pointer(&mut next);
        attributes.batch.keys = pointer(&mut keys);
        attributes.batch.values = pointer(&mut values);
        attributes.batch.count = BATCH;
        let result = bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attributes);
        match result {
            Ok(_) => {}
            // The last batch.
            Err(ref error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // SAFETY: the kernel sets it, in both cases.
        total += u64::from(unsafe { attributes.batch.count });
        if result.is_err() {
            return Ok(total);
        }
        is_first = false;
        position = next;
    }
}

/// The time since boot, suspended time included: the clock that programs' load times are in.
pub(super) fn since_boot() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a `timespec`. The clock exists since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}
