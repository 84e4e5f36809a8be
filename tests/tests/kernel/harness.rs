//! Programs with their constants and maps, loaded and run on packets.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd as _},
    path::Path,
};

use aya::{
    maps::{HashMap, Map, MapData, PerCpuArray, RingBuf},
    programs::{LinkOrder, ProgramFd, TcAttachType, tc::TcAttachOptions},
};
use xkub_common::{
    config::{AddressesV4, AddressesV6, Config},
    counter::{self, Class, Event, Family, Place},
    flow::{Flow, FlowKeyV4},
    map, program,
};
use xkub_userspace::datapath::object::{self, Instance, Maps};

use crate::packets::{G4, G6, N4, N6};

/// What a TC program returns to hand a packet on: `TCX_NEXT`, `TC_ACT_UNSPEC`.
const NEXT: u32 = u32::MAX;
/// `XDP_PASS`.
const XDP_PASS: u32 = 2;

pub fn words4(address: Ipv4Addr) -> [u32; 1] {
    [u32::from_ne_bytes(address.octets())]
}

pub fn words6(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    [0, 4, 8, 12].map(|at| u32::from_ne_bytes(octets[at..at + 4].try_into().unwrap()))
}

/// Both families, and design.md's default service set.
pub fn dual() -> Box<Config> {
    let mut config = Box::new(Config::EMPTY);
    config.v4 = AddressesV4::new(words4(G4), words4(N4));
    config.v6 = AddressesV6::new(words6(G6), words6(N6));
    for port in [8472, 8473, 4789, 6081] {
        config.services.udp.insert(port);
        config.services.overlay.insert(port);
    }
    config.services.tcp.insert(10250);
    config.services.protocols.insert(4);
    config
}

/// IPv4 alone.
pub fn v4_only() -> Box<Config> {
    let mut config = dual();
    config.v6 = AddressesV6::NONE;
    config
}

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Ingress,
    Xdp,
    EgressFirst,
    EgressLast,
}

/// Ingress by TC and by XDP: the same rules.
pub const INGRESS: [At; 2] = [At::Ingress, At::Xdp];

/// The programs of one uplink, which share maps, in a network namespace of their own.
pub struct Datapath {
    ingress: Instance,
    first: Instance,
    last: Instance,
}

/// Where this thread's bpffs is, for the maps that the instances share.
const BPFFS: &str = "/sys/fs/bpf";

impl Datapath {
    pub fn new(config: &Config) -> Self {
        Self::with_flow_entries(config, 1024)
    }

    pub fn with_flow_entries(config: &Config, flow_entries: u32) -> Self {
        enter_namespace();
        let maps = Maps {
            flow_entries,
            pins: map::PINNED
                .into_iter()
                .map(|name| (name, Path::new(BPFFS).join(name)))
                .collect(),
        };
        let instance = |place| {
            let mut config = Box::new(*config);
            config.set_place(place);
            object::load(&config, &maps).unwrap()
        };
        Self {
            ingress: instance(Place::Ingress),
            first: instance(Place::EgressFirst),
            last: instance(Place::EgressLast),
        }
    }

    pub fn program(&mut self, at: At) -> ProgramFd {
        let fd = match at {
            At::Ingress => self.ingress.classifier(program::INGRESS).unwrap().fd(),
            At::Xdp => self.ingress.xdp().unwrap().fd(),
            At::EgressFirst => self.first.classifier(program::EGRESS).unwrap().fd(),
            At::EgressLast => self.last.classifier(program::EGRESS).unwrap().fd(),
        };
        fd.unwrap().try_clone().unwrap()
    }

    /// Puts the ingress program on an interface's TCX hook, for as long as it is loaded.
    pub fn attach_ingress(&mut self, interface: &str) {
        self.ingress
            .classifier(program::INGRESS)
            .unwrap()
            .attach_with_options(
                interface,
                TcAttachType::Ingress,
                TcAttachOptions::TcxOrder(LinkOrder::first()),
            )
            .unwrap();
    }

    /// Runs a program; it must hand the packet on. Returns the packet.
    pub fn run(&mut self, at: At, packet: &[u8]) -> Vec<u8> {
        let program = self.program(at);
        let (verdict, packet) = test_run(program.as_fd().as_raw_fd(), packet, 0)
            .unwrap_or_else(|error| panic!("{at:?}: {error}: {}", hex(packet)));
        assert_eq!(
            verdict,
            if at == At::Xdp { XDP_PASS } else { NEXT },
            "{at:?} must hand the packet on"
        );
        packet
    }

    /// Runs a program on a packet whose sum the device delivered; the kernel compares it afterwards.
    pub fn run_with_sum(&mut self, at: At, packet: &[u8]) -> Vec<u8> {
        // BPF_F_TEST_SKB_CHECKSUM_COMPLETE: EBADMSG when skb->csum is wrong after the run.
        const CHECKSUM_COMPLETE: u32 = 1 << 2;
        let program = self.program(at);
        let (verdict, packet) = test_run(program.as_fd().as_raw_fd(), packet, CHECKSUM_COMPLETE)
            .expect("the sum that the device delivered must still be right");
        assert_eq!(verdict, NEXT);
        packet
    }

    /// The packet comes out as `expected`.
    #[track_caller]
    pub fn expect(&mut self, at: At, packet: &[u8], expected: &[u8], what: &str) {
        let got = self.run(at, packet);
        assert!(
            got == expected,
            "{what}, {at:?}:\n  in       {}\n  out      {}\n  expected {}",
            hex(packet),
            hex(&got),
            hex(expected)
        );
    }

    /// The packet comes out as it went in.
    #[track_caller]
    pub fn expect_unchanged(&mut self, at: At, packet: &[u8], what: &str) {
        self.expect(at, packet, packet, what);
    }

    pub fn counter(&self, place: Place, family: Family, class: Class, event: Event) -> u64 {
        let counters = PerCpuArray::<_, u64>::try_from(self.map(map::COUNTERS)).unwrap();
        counters
            .get(&counter::index(place, family, class, event), 0)
            .unwrap()
            .iter()
            .sum()
    }

    /// One event at a place, of every family and class.
    pub fn events(&self, place: Place, event: Event) -> u64 {
        Family::ALL
            .iter()
            .flat_map(|family| Class::ALL.iter().map(move |class| (*family, *class)))
            .map(|(family, class)| self.counter(place, family, class, event))
            .sum()
    }

    pub fn flows_v4(&self) -> Vec<(FlowKeyV4, Flow)> {
        HashMap::<&MapData, FlowKeyV4, Flow>::try_from(self.map(map::FLOWS_V4))
            .unwrap()
            .iter()
            .map(Result::unwrap)
            .collect()
    }

    /// How many announcements user space has been told of since it was last asked.
    pub fn announcements(&mut self) -> usize {
        let map = self.first.ebpf.map_mut(map::ANNOUNCED).unwrap();
        let mut ring = RingBuf::try_from(map).unwrap();
        std::iter::from_fn(|| ring.next().map(|entry| entry.len())).count()
    }

    fn map(&self, name: &str) -> &Map {
        self.ingress.ebpf.map(name).unwrap()
    }
}

/// A network namespace of this thread's own, its loopback up and holding N and G, and a mount namespace with a bpffs of
/// its own. Both are gone when the thread is.
fn enter_namespace() {
    use nix::{
        mount::{MsFlags, mount},
        sched::{CloneFlags, unshare},
    };
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), NONE).unwrap();
    for arguments in [
        "link set lo up".to_owned(),
        format!("address add {N4}/32 dev lo"),
        format!("address add {G4}/32 dev lo"),
        format!("address add {N6}/128 dev lo nodad"),
        format!("address add {G6}/128 dev lo nodad"),
    ] {
        let status = std::process::Command::new("ip")
            .args(arguments.split(' '))
            .status()
            .unwrap();
        assert!(status.success(), "ip {arguments}");
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// `struct { … } test` of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
pub struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    /// The mean, in nanoseconds.
    pub duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    reserved: u32,
}

/// `BPF_PROG_TEST_RUN`, whose flags aya keeps to itself.
fn test_run(program: i32, packet: &[u8], flags: u32) -> std::io::Result<(u32, Vec<u8>)> {
    let (attributes, out) = test_runs(program, packet, flags, 1)?;
    Ok((attributes.retval, out))
}

/// The same, several times over: the packet that one run leaves is what the next one gets.
pub fn test_runs(
    program: i32,
    packet: &[u8],
    flags: u32,
    repeat: u32,
) -> std::io::Result<(TestRun, Vec<u8>)> {
    const BPF_PROG_TEST_RUN: libc::c_long = 10;
    let mut out = vec![0; packet.len() + 256];
    let mut attributes = TestRun {
        prog_fd: u32::try_from(program).unwrap(),
        data_size_in: u32::try_from(packet.len()).unwrap(),
        data_size_out: u32::try_from(out.len()).unwrap(),
        data_in: packet.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat,
        flags,
        ..TestRun::default()
    };
    // SAFETY: the attributes are of the size given, and the buffers live longer than the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_TEST_RUN,
            &raw mut attributes,
            size_of::<TestRun>(),
        )
    };
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    out.truncate(usize::try_from(attributes.data_size_out).unwrap());
    Ok((attributes, out))
}

/// For socket tests: an address and a port.
pub fn at(address: IpAddr, port: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::new(address, port)
}
