//! What makes the agent look: events of the kernel, of files, of signals. The timer, the reflectors and the Node are
//! the loop's own.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use netlink_packet_route::{RouteNetlinkMessage, link::LinkMessage};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use rtnetlink::{
    MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
    sys::SocketAddr,
};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::debug;

/// More that wait say nothing more.
const QUEUE: usize = 16;

/// Why the agent looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trigger {
    /// It has just begun.
    Start,
    /// Nothing happened for a while.
    Timer,
    /// A link, an address or a filter has changed.
    Netlink,
    /// A reflector has news.
    Reflector,
    /// The Node has changed.
    Node,
    /// A file has changed.
    File,
    /// A gratuitous ARP or an unsolicited neighbour advertisement has left the guest: it was migrated.
    Announcement,
    /// SIGHUP.
    Hangup,
    /// A worker that is about to start, or a person, wants it.
    Asked,
    /// Something that failed is tried again, or a plan has changed what the next one is made from.
    Again,
}

impl Trigger {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Start,
        Self::Timer,
        Self::Netlink,
        Self::Reflector,
        Self::Node,
        Self::File,
        Self::Announcement,
        Self::Hangup,
        Self::Asked,
        Self::Again,
    ];

    /// As metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Timer => "timer",
            Self::Netlink => "netlink",
            Self::Reflector => "reflector",
            Self::Node => "node",
            Self::File => "file",
            Self::Announcement => "announcement",
            Self::Hangup => "hangup",
            Self::Asked => "asked",
            Self::Again => "again",
        }
    }
}

type Events = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

/// Events of rtnetlink.
#[derive(Debug)]
pub(super) struct Netlink(Events);

impl Netlink {
    /// Subscribes.
    ///
    /// # Errors
    /// The system's.
    pub fn open() -> io::Result<Self> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Tc,
        ];
        let (connection, _, events) = rtnetlink::new_multicast_connection(&groups)?;
        tokio::spawn(connection);
        Ok(Self(events))
    }

    /// Waits for an event that matters: on one of these interfaces, or one that is called so. Pods come and go, and
    /// nobody shall be woken for them.
    pub async fn next(&mut self, interfaces: &Interfaces) {
        loop {
            match self.0.next().await {
                Some((message, _)) if interfaces.matter(&message) => break,
                Some(_) => {}
                // The socket is gone; the timer is left.
                None => std::future::pending().await,
            }
        }
        // One look answers them all.
        while self.0.try_recv().is_ok() {}
    }
}

/// The interfaces whose events matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interfaces {
    /// Their indices; none at all: every one matters.
    pub indices: BTreeSet<u32>,
    /// Their names: a device that is made anew has another index.
    pub names: BTreeSet<String>,
}

impl Interfaces {
    fn matter(&self, message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
        if self.indices.is_empty() {
            return true;
        }
        let NetlinkPayload::InnerMessage(message) = &message.payload else {
            // The queue ran over: anything may have happened.
            return true;
        };
        match message {
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
                self.indices.contains(&link.header.index) || self.is_named(link)
            }
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                self.indices.contains(&address.header.index)
            }
            RouteNetlinkMessage::NewQueueDiscipline(filter)
            | RouteNetlinkMessage::DelQueueDiscipline(filter)
            | RouteNetlinkMessage::NewTrafficFilter(filter)
            | RouteNetlinkMessage::DelTrafficFilter(filter) => {
                u32::try_from(filter.header.index).is_ok_and(|index| self.indices.contains(&index))
            }
            _ => false,
        }
    }

    fn is_named(&self, link: &LinkMessage) -> bool {
        use netlink_packet_route::link::LinkAttribute;
        link.attributes.iter().any(|attribute| {
            matches!(attribute, LinkAttribute::IfName(name) if self.names.contains(name))
        })
    }
}

/// Events of files.
#[derive(Debug)]
pub(super) struct Files {
    watcher: Option<RecommendedWatcher>,
    events: Receiver<()>,
    folders: BTreeSet<PathBuf>,
}

impl Files {
    /// Watches nothing yet.
    pub fn new() -> Self {
        let (sender, events) = channel(QUEUE);
        let watcher = notify::recommended_watcher(move |event| tell(&sender, event));
        Self {
            watcher: watcher
                .inspect_err(|error| debug!(%error, "files are looked at by the timer alone"))
                .ok(),
            events,
            folders: BTreeSet::new(),
        }
    }

    /// Watches these folders, those that exist, and no others.
    pub fn watch(&mut self, folders: BTreeSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for folder in self.folders.difference(&folders) {
            // It may be gone.
            let _: notify::Result<()> = watcher.unwatch(folder);
        }
        let old = std::mem::take(&mut self.folders);
        self.folders = folders
            .into_iter()
            .filter(|folder| (old.contains(folder) && folder.is_dir()) || watch(watcher, folder))
            .collect();
    }

    /// Waits for a change.
    pub async fn next(&mut self) {
        if self.events.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        while self.events.try_recv().is_ok() {}
    }
}

fn watch(watcher: &mut RecommendedWatcher, folder: &Path) -> bool {
    watcher.watch(folder, RecursiveMode::NonRecursive).is_ok()
}

fn tell(sender: &Sender<()>, event: notify::Result<notify::Event>) {
    let is_change = event.map_or(true, |event| !matches!(event.kind, EventKind::Access(_)));
    if is_change {
        // Full is as good as told.
        let _: Result<(), _> = sender.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressMessage;

    use super::*;

    #[test]
    fn only_our_interfaces_matter() {
        let address = |index| {
            let mut message = AddressMessage::default();
            message.header.index = index;
            NetlinkMessage::from(RouteNetlinkMessage::NewAddress(message))
        };
        let link = |index, name: &str| {
            use netlink_packet_route::link::LinkAttribute;
            let mut message = LinkMessage::default();
            message.header.index = index;
            message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
            NetlinkMessage::from(RouteNetlinkMessage::NewLink(message))
        };
        let ours = Interfaces {
            indices: [2].into(),
            names: ["xkub0".to_owned()].into(),
        };
        for (message, expected) in [
            (address(2), true),
            (address(3), false),
            (link(2, "eth0"), true),
            (link(9, "xkub0"), true),
            (link(9, "veth1234"), false),
        ] {
            assert_eq!(ours.matter(&message), expected, "{message:?}");
            assert!(Interfaces::default().matter(&message));
        }
    }
}
