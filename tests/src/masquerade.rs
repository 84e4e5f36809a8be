//! The masquerade lab: two virt-launcher pods with a guest each, as virt-handler builds them, on a routed pod network.
//!
//! ```text
//!  guest1          launcher1                    fabric              launcher2          guest2
//!  eth0 ────── tap0·k6t-eth0 │nft│ eth0 ────── pod1   pod2 ────── eth0 │nft│ k6t-eth0·tap0 ────── eth0
//!  10.0.2.2        10.0.2.1     10.244.1.226      out          10.244.3.60    10.0.2.1        10.0.2.2
//!                                                  │
//!                                              client eth0 192.0.2.10
//! ```
//! The device between guest and launcher is a veth pair where a real VM has a tap and virtio-net. That is good for logic
//! and speed, not for judging outer checksums: `CHECKSUM_PARTIAL` and `skb->encapsulation` cross a veth pair and do not
//! cross a virtio ring, and the launcher's NAT corrupts what it would never see in a VM. VXLAN devices here therefore
//! send no outer checksum; with one, QEMU guests are the judge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};

use crate::namespace::{Namespace, Output};
use crate::traffic::send_frame;
use crate::xkub;

/// The guest address, the same in every guest: that is the problem.
pub const GUEST_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The guest's gateway: the launcher's bridge.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
/// The IPv6 guest address.
pub const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 2);
/// The guest's IPv6 gateway.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 1);
/// The pods' addresses: the node addresses of guest 1 and guest 2.
pub const NODE_V4: [Ipv4Addr; 2] = [
    Ipv4Addr::new(10, 244, 1, 226),
    Ipv4Addr::new(10, 244, 3, 60),
];
/// The pods' IPv6 addresses.
pub const NODE_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 0, 0xe2),
    Ipv6Addr::new(0xfd00, 0x244, 3, 0, 0, 0, 0, 0x3c),
];
/// A host outside the pod network.
pub const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// Its IPv6 address.
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);
/// The guest's NIC on the pod network.
pub const UPLINK: &str = "eth0";
/// The overlay port of the lab: not one of the two that infra CNIs use themselves.
pub const OVERLAY_PORT: u16 = 8473;
/// The MTU of the pod network unless a test asks for another.
pub const DEFAULT_MTU: u32 = 1500;

/// Outer headers of VXLAN: Ethernet of the inner frame 14, VXLAN 8, UDP 8, IPv4 20.
const VXLAN_OVERHEAD_V4: u32 = 50;
/// As above with IPv6's 40.
const VXLAN_OVERHEAD_V6: u32 = 70;

/// The fabric's address as every pod's first hop, link-scope like Calico's.
const FABRIC_V4: &str = "169.254.1.1";
/// The same for IPv6.
const FABRIC_LINK_LOCAL: &str = "fe80::1";
/// What the fabric signs its ICMP errors with.
const FABRIC_V6: &str = "fd00:244::1";

/// Where a guest's node address is before `xkub` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAddress {
    /// On `lo`, where the blog's fix puts it; there also when the host kernel has no dummy device.
    OnLoopback,
    /// Nowhere: `xkub datapath attach` is to put it somewhere.
    Absent,
}

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// How the lab is to be.
#[derive(Debug, Clone)]
pub struct Builder {
    mtu: u32,
    hop_mtu: Option<u32>,
    node_address: NodeAddress,
    ipv6: bool,
    bpffs: bool,
    standing: bool,
}

impl Builder {
    /// MTU of pods and guests; 1500 unless set.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// A smaller MTU on the way between the pods, in both directions, with "fragmentation needed" sent by the fabric.
    #[must_use]
    pub fn hop_mtu(mut self, mtu: u32) -> Self {
        self.hop_mtu = Some(mtu);
        self
    }

    /// Where the node address is at first; on `lo` unless set.
    #[must_use]
    pub fn node_address(mut self, place: NodeAddress) -> Self {
        self.node_address = place;
        self
    }

    /// Whether pods and guests have IPv6; they do unless set.
    #[must_use]
    pub fn ipv6(mut self, ipv6: bool) -> Self {
        self.ipv6 = ipv6;
        self
    }

    /// Leaves `/sys/fs/bpf` unmounted in the guests.
    #[must_use]
    pub fn without_bpffs(mut self) -> Self {
        self.bpffs = false;
        self
    }

    /// Makes it possible that the lab outlives this process; see [`Masquerade::leave_standing`].
    #[must_use]
    pub fn standing(mut self) -> Self {
        self.standing = true;
        self
    }

    /// Builds the lab. Nothing of it is visible in the host's network namespace.
    ///
    /// # Errors
    /// Without root, or when `ip` or `nft` is missing or refuses something.
    pub fn build(self) -> Result<Masquerade> {
        let Pods {
            fabric,
            client,
            launchers: [one, two],
        } = self.pods()?;
        Ok(Masquerade {
            fabric,
            client,
            nodes: [self.node(1, one)?, self.node(2, two)?],
            mtu: self.mtu,
        })
    }

    /// The part of the lab that is the same whatever the guests are.
    pub(crate) fn pods(&self) -> Result<Pods> {
        let plain = |name: &str| Namespace::builder(name).standing(self.standing).build();
        let fabric = plain("fabric")?;
        let client = plain("client")?;
        if self.ipv6 {
            no_duplicate_detection(&fabric)?;
            no_duplicate_detection(&client)?;
        }
        self.connect_client(&fabric, &client)?;
        let launcher = |number: usize| -> Result<Namespace> {
            let launcher = plain(&format!("launcher{number}"))?;
            if self.ipv6 {
                no_duplicate_detection(&launcher)?;
            }
            self.connect_pod(number, &launcher, &fabric)
                .with_context(|| format!("pod network of launcher{number}"))?;
            Ok(launcher)
        };
        let launchers = [launcher(1)?, launcher(2)?];
        fabric.sysctl("net/ipv4/ip_forward", "1")?;
        if self.ipv6 {
            fabric.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        }
        Ok(Pods {
            fabric,
            client,
            launchers,
        })
    }

    fn connect_client(&self, fabric: &Namespace, client: &Namespace) -> Result<()> {
        let pid = client.pid();
        let mtu = self.mtu;
        fabric.ip(&format!(
            "link add out mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pid}\n\
             addr add {FABRIC_V4}/32 dev lo\n\
             addr add 192.0.2.1/24 dev out\n\
             link set out up\n"
        ))?;
        client.ip(&format!(
            "addr add {CLIENT_V4}/24 dev eth0\nlink set eth0 up\nroute add default via 192.0.2.1\n"
        ))?;
        if self.ipv6 {
            fabric.ip(&format!(
                "addr add {FABRIC_V6}/128 dev lo\naddr add 2001:db8::1/64 dev out nodad\n"
            ))?;
            client.ip(&format!(
                "addr add {CLIENT_V6}/64 dev eth0 nodad\nroute add default via 2001:db8::1\n"
            ))?;
        }
        Ok(())
    }

    fn node(&self, number: usize, launcher: Namespace) -> Result<Node> {
        let mut guest = Namespace::builder(format!("guest{number}")).standing(self.standing);
        if !self.bpffs {
            guest = guest.without_bpffs();
        }
        let node = Node {
            number,
            launcher,
            guest: guest.build()?,
        };
        if self.ipv6 {
            no_duplicate_detection(&node.guest)?;
        }
        self.connect_guest(&node)
            .with_context(|| format!("masquerade binding of guest{number}"))?;
        Ok(node)
    }

    /// The pod's side as an infra CNI makes it: one address, a first hop of link scope.
    fn connect_pod(&self, number: usize, launcher: &Namespace, fabric: &Namespace) -> Result<()> {
        let mtu = self.mtu;
        let (address, address6) = (NODE_V4[number - 1], NODE_V6[number - 1]);
        let pid = launcher.pid();
        // A locked route MTU is what a forwarding kernel obeys and reports (ip_dst_mtu_maybe_forward); a smaller device
        // MTU on a veth would drop what comes back without a word.
        let hop = self
            .hop_mtu
            .map_or(String::new(), |mtu| format!(" mtu lock {mtu}"));
        fabric.ip(&format!(
            "link add pod{number} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pid}\n\
             link set pod{number} up\n\
             route add {address} dev pod{number}{hop}\n"
        ))?;
        launcher.ip(&format!(
            "addr add {address}/32 dev eth0\n\
             link set eth0 up\n\
             route add {FABRIC_V4} dev eth0 scope link\n\
             route add default via {FABRIC_V4} dev eth0\n"
        ))?;
        if self.ipv6 {
            fabric.ip(&format!(
                "addr add {FABRIC_LINK_LOCAL}/64 dev pod{number} nodad\n\
                 route add {address6} dev pod{number}{hop}\n"
            ))?;
            launcher.ip(&format!(
                "addr add {address6}/128 dev eth0 nodad\n\
                 route add default via {FABRIC_LINK_LOCAL} dev eth0\n"
            ))?;
        }
        Ok(())
    }

    /// What virt-handler does in the pod (pkg/network/setup/netpod); `tap` are the `ip` commands that make `tap0`.
    pub(crate) fn bind(&self, launcher: &Namespace, tap: &str) -> Result<()> {
        let mtu = self.mtu;
        launcher.ip(&format!(
            "link add k6t-eth0 address 02:00:00:00:00:00 mtu {mtu} type bridge\n\
             addr add {GATEWAY_V4}/24 dev k6t-eth0\n\
             {tap}\n\
             link set tap0 mtu {mtu} master k6t-eth0 up\n\
             link set k6t-eth0 mtu {mtu} up\n"
        ))?;
        launcher.sysctl("net/ipv4/ip_forward", "1")?;
        launcher.sysctl("net/ipv4/conf/k6t-eth0/route_localnet", "1")?;
        launcher.nft(NAT_V4)?;
        if self.ipv6 {
            launcher.ip(&format!("addr add {GATEWAY_V6}/120 dev k6t-eth0 nodad\n"))?;
            launcher.sysctl("net/ipv6/conf/all/forwarding", "1")?;
            launcher.nft(NAT_V6)?;
        }
        Ok(())
    }

    /// The guest on its launcher, and what DHCP does in the guest.
    fn connect_guest(&self, node: &Node) -> Result<()> {
        let Node {
            launcher,
            guest,
            number: _,
        } = node;
        let mtu = self.mtu;
        let pid = guest.pid();
        // The guest gets the pod NIC's hardware address (pkg/virt-launcher, domainspec/generators.go).
        let mac = launcher.mac("eth0")?;
        self.bind(
            launcher,
            &format!(
                "link add tap0 mtu {mtu} type veth peer name {UPLINK} address {mac} mtu {mtu} netns {pid}"
            ),
        )?;
        guest.ip(&format!(
            "addr add {GUEST_V4}/24 dev {UPLINK}\n\
             link set {UPLINK} up\n\
             route add default via {GATEWAY_V4} dev {UPLINK}\n"
        ))?;
        if self.ipv6 {
            guest.ip(&format!(
                "addr add {GUEST_V6}/120 dev {UPLINK} nodad\n\
                 route add default via {GATEWAY_V6} dev {UPLINK}\n"
            ))?;
        }
        if self.node_address == NodeAddress::OnLoopback {
            guest.ip(&format!("addr add {}/32 dev lo\n", node.node_v4()))?;
            if self.ipv6 {
                guest.ip(&format!("addr add {}/128 dev lo nodad\n", node.node_v6()))?;
            }
        }
        Ok(())
    }
}

/// Addresses are usable at once: duplicate address detection would hold link-local ones back for a second.
fn no_duplicate_detection(namespace: &Namespace) -> Result<()> {
    namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    namespace.sysctl("net/ipv6/conf/all/accept_dad", "0")
}

/// The IPv4 rules of virt-handler for an interface without `ports:` (pkg/network/setup/netpod/masquerade/masquerade.go:115-265).
const NAT_V4: &str = "
table ip nat {
    chain prerouting {
        type nat hook prerouting priority -100;
        iifname \"eth0\" counter jump KUBEVIRT_PREINBOUND
    }
    chain input { type nat hook input priority 100; }
    chain output {
        type nat hook output priority -100;
        ip daddr { 127.0.0.1 } counter dnat to 10.0.2.2
    }
    chain postrouting {
        type nat hook postrouting priority 100;
        ip saddr 10.0.2.2 counter masquerade
        oifname \"k6t-eth0\" counter jump KUBEVIRT_POSTINBOUND
    }
    chain KUBEVIRT_PREINBOUND {
        counter dnat to 10.0.2.2
    }
    chain KUBEVIRT_POSTINBOUND {
        ip saddr { 127.0.0.1 } counter snat to 10.0.2.1
    }
}
";

/// The same for IPv6 (masquerade.go:99-111).
const NAT_V6: &str = "
table ip6 nat {
    chain prerouting {
        type nat hook prerouting priority -100;
        iifname \"eth0\" counter jump KUBEVIRT_PREINBOUND
    }
    chain input { type nat hook input priority 100; }
    chain output {
        type nat hook output priority -100;
        ip6 daddr { ::1 } counter dnat to fd10:0:2::2
    }
    chain postrouting {
        type nat hook postrouting priority 100;
        ip6 saddr fd10:0:2::2 counter masquerade
        oifname \"k6t-eth0\" counter jump KUBEVIRT_POSTINBOUND
    }
    chain KUBEVIRT_PREINBOUND {
        counter dnat to fd10:0:2::2
    }
    chain KUBEVIRT_POSTINBOUND {
        ip6 saddr { ::1 } counter snat to fd10:0:2::1
    }
}
";

/// The infra cluster's side: pods without guests.
#[derive(Debug)]
pub(crate) struct Pods {
    pub(crate) fabric: Namespace,
    pub(crate) client: Namespace,
    pub(crate) launchers: [Namespace; 2],
}

/// The lab, until it is dropped.
#[derive(Debug)]
pub struct Masquerade {
    /// The infra cluster's network: routes between the pods and to the outside.
    pub fabric: Namespace,
    /// A host outside the pod network, [`CLIENT_V4`] and [`CLIENT_V6`].
    pub client: Namespace,
    nodes: [Node; 2],
    mtu: u32,
}

impl Masquerade {
    /// Starts describing a lab.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            mtu: DEFAULT_MTU,
            hop_mtu: None,
            node_address: NodeAddress::OnLoopback,
            ipv6: true,
            bpffs: true,
            standing: false,
        }
    }

    /// Node 0 or node 1.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// Both nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node; 2] {
        &self.nodes
    }

    /// MTU of pods and guests.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Every namespace: fabric, client, launcher1, guest1, launcher2, guest2.
    #[must_use]
    pub fn namespaces(&self) -> [&Namespace; 6] {
        let [one, two] = &self.nodes;
        [
            &self.fabric,
            &self.client,
            &one.launcher,
            &one.guest,
            &two.launcher,
            &two.guest,
        ]
    }

    /// Puts a VXLAN device on both guests that knows the other one.
    ///
    /// # Errors
    /// When `ip` or `bridge` refuses something.
    pub fn add_overlay(&self, overlay: &Overlay) -> Result<()> {
        let [one, two] = &self.nodes;
        for node in [one, two] {
            node.guest
                .ip(&overlay.device(node.number, self.mtu))
                .with_context(|| format!("overlay {} in guest{}", overlay.name, node.number))?;
        }
        for (node, peer) in [(one, two), (two, one)] {
            let mac = peer.guest.mac(overlay.name)?;
            node.guest.ip(&overlay.neighbour(peer.number, &mac))?;
            let fdb = overlay.forwarding(peer.number, &mac);
            node.guest
                .check(["bridge"].into_iter().chain(fdb.split_whitespace()))?;
        }
        Ok(())
    }

    /// Takes the overlay away again.
    ///
    /// # Errors
    /// When it is not there.
    pub fn remove_overlay(&self, overlay: &Overlay) -> Result<()> {
        for node in &self.nodes {
            node.guest.ip(&format!("link del {}\n", overlay.name))?;
        }
        Ok(())
    }

    /// Attaches `xkub` in both guests.
    ///
    /// # Errors
    /// As [`Node::attach`].
    pub fn attach(&self, extra: &[&str]) -> Result<()> {
        for node in &self.nodes {
            node.attach(extra)?;
        }
        Ok(())
    }

    /// Leaves the lab standing when this object is dropped, and when this process ends if it was built with
    /// [`Builder::standing`]. Ending the holders of [`Masquerade::namespaces`] then ends it.
    pub fn leave_standing(&mut self) {
        let Self {
            fabric,
            client,
            nodes: [one, two],
            mtu: _,
        } = self;
        for namespace in [
            fabric,
            client,
            &mut one.launcher,
            &mut one.guest,
            &mut two.launcher,
            &mut two.guest,
        ] {
            namespace.leave_standing();
        }
    }
}

/// Where an overlay's outer source address comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `local <node address>`: what Calico, kube-router and flannel with `--iface=<node address>` ask for.
    NodeAddress,
    /// No `local`: the route gives the guest address, which needs no fix at all.
    ByRoute,
}

/// A VXLAN device in both guests.
#[derive(Debug, Clone)]
pub struct Overlay {
    /// The device's name.
    pub name: &'static str,
    /// The VXLAN network identifier.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
    /// What the tunnel runs over.
    pub underlay: Family,
    /// Who chooses the outer source.
    pub source: Source,
    /// Whether the outer UDP checksum is sent. Not to be judged in this lab, see the top of this file.
    pub checksum: bool,
}

impl Overlay {
    /// `vx0` over IPv4 from the node address: 172.31.0.1 and 172.31.0.2.
    pub const V4: Self = Self {
        name: "vx0",
        vni: 42,
        port: OVERLAY_PORT,
        underlay: Family::V4,
        source: Source::NodeAddress,
        checksum: false,
    };
    /// `vx6` over IPv6 from the node address: 172.31.6.1 and 172.31.6.2.
    pub const V6: Self = Self {
        name: "vx6",
        vni: 46,
        // Linux takes one VXLAN socket per port and family, so both tunnels may share the port.
        port: OVERLAY_PORT,
        underlay: Family::V6,
        source: Source::NodeAddress,
        checksum: false,
    };

    /// The same with the outer source chosen by the route: the way that needs no fix.
    #[must_use]
    pub fn by_route(self) -> Self {
        Self {
            source: Source::ByRoute,
            ..self
        }
    }

    /// A node's address on the overlay.
    #[must_use]
    pub fn address(&self, node: &Node) -> Ipv4Addr {
        self.address_of(node.number)
    }

    /// The address of node 1 or node 2 on the overlay.
    #[must_use]
    pub fn address_of(&self, number: usize) -> Ipv4Addr {
        let third = match self.underlay {
            Family::V4 => 0,
            Family::V6 => 6,
        };
        Ipv4Addr::new(172, 31, third, u8::try_from(number).unwrap_or(u8::MAX))
    }

    /// The `ip` commands that make the device in guest `number` of a pod network with `mtu`.
    pub(crate) fn device(&self, number: usize, mtu: u32) -> String {
        let Self {
            name,
            vni,
            port,
            underlay,
            source,
            checksum,
        } = self;
        let (overhead, zero_checksum) = match underlay {
            Family::V4 => (VXLAN_OVERHEAD_V4, "noudpcsum"),
            Family::V6 => (VXLAN_OVERHEAD_V6, "udp6zerocsumtx udp6zerocsumrx"),
        };
        let checksum = match (checksum, underlay) {
            (false, _) => zero_checksum,
            (true, Family::V4) => "udpcsum",
            (true, Family::V6) => "noudp6zerocsumtx noudp6zerocsumrx",
        };
        let mtu = mtu - overhead;
        let local = match source {
            Source::NodeAddress => format!("local {}", node_address(number, *underlay)),
            // Naming the other family's peer is enough for the kernel to open the right socket.
            Source::ByRoute if *underlay == Family::V6 => "local ::".to_owned(),
            Source::ByRoute => String::new(),
        };
        format!(
            "link add {name} mtu {mtu} type vxlan id {vni} {local} dstport {port} nolearning {checksum}\n\
             addr add {}/24 dev {name}\n\
             link set {name} up\n",
            self.address_of(number)
        )
    }

    /// The `ip` command that makes guest `peer` known to the other one; `mac` is that of its overlay device.
    pub(crate) fn neighbour(&self, peer: usize, mac: &str) -> String {
        format!(
            "neigh replace {} lladdr {mac} dev {}\n",
            self.address_of(peer),
            self.name
        )
    }

    /// The `bridge` command that goes with [`Overlay::neighbour`].
    pub(crate) fn forwarding(&self, peer: usize, mac: &str) -> String {
        format!(
            "fdb append {mac} dev {} dst {}\n",
            self.name,
            node_address(peer, self.underlay)
        )
    }
}

/// The node address of node 1 or node 2.
#[must_use]
pub fn node_address(number: usize, family: Family) -> IpAddr {
    match family {
        Family::V4 => NODE_V4[number - 1].into(),
        Family::V6 => NODE_V6[number - 1].into(),
    }
}

/// Gives pod 1 or pod 2 other addresses, as a live migration does, which puts the VM into another pod. The guest knows
/// nothing of it until it announces itself, or asks.
///
/// # Errors
/// When `ip` refuses something.
pub fn readdress(
    fabric: &Namespace,
    launcher: &Namespace,
    number: usize,
    (old4, old6): (Ipv4Addr, Ipv6Addr),
    (v4, v6): (Ipv4Addr, Ipv6Addr),
) -> Result<()> {
    // New flows can't take the old address any more, and masquerade forgets those that had it.
    launcher.ip(&format!(
        "addr add {v4}/32 dev eth0\n\
         addr add {v6}/128 dev eth0 nodad\n\
         addr del {old4}/32 dev eth0\n\
         addr del {old6}/128 dev eth0\n"
    ))?;
    fabric.ip(&format!(
        "route add {v4} dev pod{number}\n\
         route add {v6} dev pod{number}\n\
         route del {old4} dev pod{number}\n\
         route del {old6} dev pod{number}\n"
    ))
}

/// A virt-launcher pod and the guest in it.
#[derive(Debug)]
pub struct Node {
    number: usize,
    /// The pod's network namespace.
    pub launcher: Namespace,
    /// The guest.
    pub guest: Namespace,
}

impl Node {
    /// Lets a gratuitous ARP for the guest address leave the guest, as the kernel does when virtio-net tells it to
    /// announce itself after a live migration (`inetdev_send_gratuitous_arp`).
    ///
    /// # Errors
    /// When the frame can't be sent.
    pub fn announce(&self) -> Result<()> {
        let mac = self.guest.mac(UPLINK)?;
        let mac: Vec<u8> = mac
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16))
            .collect::<Result<_, _>>()
            .with_context(|| format!("hardware address {mac}"))?;
        // Ethernet, then RFC 826: Ethernet and IPv4, a request.
        let broadcast: &[u8] = &[0xff; 6];
        let head: &[u8] = &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1];
        let address = &GUEST_V4.octets()[..];
        let frame = [broadcast, &mac, head, &mac, address, &mac, address].concat();
        send_frame(&self.guest, UPLINK, &frame)
    }

    /// 1 or 2, as in the names of the namespaces.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The node address: the pod's.
    #[must_use]
    pub fn node_v4(&self) -> Ipv4Addr {
        NODE_V4[self.number - 1]
    }

    /// The IPv6 node address.
    #[must_use]
    pub fn node_v6(&self) -> Ipv6Addr {
        NODE_V6[self.number - 1]
    }

    /// The node address of a family.
    #[must_use]
    pub fn node_address(&self, family: Family) -> IpAddr {
        node_address(self.number, family)
    }

    /// Both node addresses as `--node-address` takes them.
    #[must_use]
    pub fn node_addresses(&self) -> String {
        format!("{},{}", self.node_v4(), self.node_v6())
    }

    /// Runs `xkub` in the guest.
    ///
    /// # Errors
    /// When there is no binary, or it does not end. A failure of `xkub` itself is in the output.
    pub fn xkub(&self, arguments: &[&str]) -> Result<Output> {
        let binary = xkub::binary()?;
        let words = std::iter::once(binary.as_os_str()).chain(arguments.iter().map(AsRef::as_ref));
        self.guest.run(words)
    }

    /// `xkub datapath attach` with the uplink, both node addresses and `extra`.
    ///
    /// # Errors
    /// When it fails; the error carries what it said.
    pub fn attach(&self, extra: &[&str]) -> Result<String> {
        let addresses = self.node_addresses();
        let mut arguments = vec![
            "datapath",
            "attach",
            "--uplink",
            UPLINK,
            "--node-address",
            &addresses,
        ];
        arguments.extend(extra);
        self.xkub(&arguments)?.success()
    }

    /// `xkub datapath detach`.
    ///
    /// # Errors
    /// When it fails; the error carries what it said.
    pub fn detach(&self) -> Result<String> {
        self.xkub(&["datapath", "detach", "--uplink", UPLINK])?
            .success()
    }

    /// `xkub datapath show` as JSON.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn show(&self) -> Result<serde_json::Value> {
        self.json("show")
    }

    /// `xkub datapath stats` as JSON.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn stats(&self) -> Result<serde_json::Value> {
        self.json("stats")
    }

    fn json(&self, what: &str) -> Result<serde_json::Value> {
        let text = self
            .xkub(&["datapath", what, "--uplink", UPLINK, "--output", "json"])?
            .success()?;
        serde_json::from_str(&text)
            .with_context(|| format!("`xkub datapath {what}` printed {text}"))
    }

    /// Sum of the packets that `stats` counts under `event`, over all places, families and classes that match.
    ///
    /// `place` is matched as a prefix, so `egress` means both places.
    ///
    /// # Errors
    /// As [`Node::stats`], and when the counters are missing.
    pub fn packets(&self, place: &str, family: Option<Family>, event: &str) -> Result<u64> {
        count(&self.stats()?, place, family, event)
    }
}

/// Sums what `xkub datapath stats` printed, as [`Node::packets`] says.
pub(crate) fn count(
    stats: &serde_json::Value,
    place: &str,
    family: Option<Family>,
    event: &str,
) -> Result<u64> {
    let rows = stats
        .get("counters")
        .and_then(serde_json::Value::as_array)
        .context("stats without counters")?;
    let text = |row: &serde_json::Value, key: &str| {
        row.get(key)
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default()
            .to_ascii_lowercase()
    };
    let wanted_family = |found: &str| match family {
        None => true,
        Some(Family::V4) => found.ends_with('4'),
        Some(Family::V6) => found.ends_with('6'),
    };
    Ok(rows
        .iter()
        .filter(|row| text(row, "place").starts_with(place))
        .filter(|row| wanted_family(&text(row, "family")))
        .filter(|row| text(row, "event") == event)
        .filter_map(|row| row.get("packets")?.as_u64())
        .sum())
}

/// What a skilled administrator would write instead of xkub: a stateless rewrite in nftables' netdev hooks.
///
/// No ARP, no ICMP quotes, no flows opened from the node address: those need state.
#[must_use]
pub fn nft_stateless(node: &Node, family: Family) -> String {
    let address = node.node_address(family);
    let (protocol, guest) = match family {
        Family::V4 => ("ip", IpAddr::from(GUEST_V4)),
        Family::V6 => ("ip6", IpAddr::from(GUEST_V6)),
    };
    format!(
        "table netdev xkub {{
            chain ingress {{
                type filter hook ingress device \"{UPLINK}\" priority 0;
                {protocol} daddr {guest} udp dport {{ 8472, {OVERLAY_PORT}, 4789, 6081 }} {protocol} daddr set {address}
                {protocol} daddr {guest} tcp dport 10250 {protocol} daddr set {address}
            }}
            chain egress {{
                type filter hook egress device \"{UPLINK}\" priority 0;
                {protocol} saddr {address} {protocol} saddr set {guest}
            }}
        }}\n"
    )
}
