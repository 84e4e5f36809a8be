//! `xkub datapath …`.

use std::{
    collections::BTreeMap, fmt::Write as _, num::NonZeroU32, ops::ControlFlow, thread,
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use xkub_common::counter::{Class, Event, Family, Place};
use xkub_userspace::{
    datapath::{
        self, Counter, Datapath, Detached, Entry, Hooks, Repair, Settings, Shown, Stats, Watched,
        settings::{
            DEFAULT_FLOW_ENTRIES, DualAddress, GuestAddress, IngressHook, parse_overlay_ports,
            parse_services,
        },
    },
    node::address_device,
};

use super::{
    output::{Format, print, print_next, print_while_read},
    table::table,
};

/// How often `stats --watch` prints.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Subcommands of `xkub datapath`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Put the datapath on an uplink, or change the one that is there
    Attach(Attach),
    /// Say what is attached, who else is on the same hooks, and what is wrong
    Show(Uplink),
    /// Count packets and flows
    Stats {
        #[command(flatten)]
        uplink: Uplink,
        /// Again every second, with what was added
        #[arg(long)]
        watch: bool,
    },
    /// Take the datapath away, and leave nothing. That nothing is there is fine
    Detach(Uplink),
    /// Keep the datapath in its place until SIGTERM or SIGINT, which leave it attached
    Watch(Uplink),
    /// Show packets as they go on, until SIGTERM or SIGINT
    Monitor {
        #[command(flatten)]
        uplink: Uplink,
        /// One packet in how many, of each kind that `stats` counts
        #[arg(long, value_name = "N", default_value = "1", env = "XKUB_ONE_IN")]
        one_in: NonZeroU32,
    },
}

/// Which datapath is meant.
#[derive(Debug, Args)]
pub struct Uplink {
    /// The interface; without it, the only one that has a datapath
    #[arg(long, env = "XKUB_UPLINK")]
    uplink: Option<String>,
}

/// Arguments of `xkub datapath attach`.
#[derive(Debug, Args)]
pub struct Attach {
    /// The VM's interface on the pod network, such as eth0
    #[arg(long, env = "XKUB_UPLINK")]
    uplink: String,
    /// What peers know the node by: the address of the virt-launcher pod, or one of each family
    #[arg(long, value_name = "A[,A6]", env = "XKUB_NODE_ADDRESS")]
    node_address: String,
    /// What the VM knows itself by: `auto` is the uplink's first address
    #[arg(
        long,
        value_name = "auto|G[,G6]",
        default_value = "auto",
        env = "XKUB_GUEST_ADDRESS"
    )]
    guest_address: String,
    /// A UDP port of the guest CNI's tunnel; may be repeated. Replaces the default, which is 8472, 8473, 4789 and
    /// 6081; `none` is no port
    #[arg(
        long = "overlay-port",
        value_name = "PORT",
        value_delimiter = ',',
        env = "XKUB_OVERLAY_PORT"
    )]
    overlay_ports: Vec<String>,
    /// What is always reached at the node address, beside the overlay ports: tcp/PORT, udp/PORT,
    /// udp/FIRST-LAST or proto/NUMBER; may be repeated. Replaces the default, which is tcp/10250 and proto/4;
    /// `none` is nothing
    #[arg(
        long = "service",
        value_name = "SERVICE",
        value_delimiter = ',',
        env = "XKUB_SERVICE"
    )]
    services: Vec<String>,
    /// The hook: `auto` is TCX where the kernel has it, else clsact; `xdp` is native XDP at ingress
    #[arg(long, value_enum, default_value = "auto", env = "XKUB_INGRESS_HOOK")]
    ingress_hook: HookChoice,
    /// Leave the node address alone: it is on some interface already
    #[arg(long, env = "XKUB_NO_ADDRESS")]
    no_address: bool,
    /// The interface that shall hold the node address: made if it does not exist
    #[arg(
        long,
        value_name = "NAME",
        default_value = address_device::DEFAULT_NAME,
        env = "XKUB_ADDRESS_DEVICE"
    )]
    address_device: String,
    /// How many flows are remembered per family; the oldest is forgotten for a new one
    #[arg(long, value_name = "N", default_value_t = DEFAULT_FLOW_ENTRIES, env = "XKUB_FLOW_ENTRIES")]
    flow_entries: u32,
}

/// Values of `--ingress-hook`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum HookChoice {
    Auto,
    Tcx,
    Clsact,
    Xdp,
}

impl From<HookChoice> for IngressHook {
    fn from(choice: HookChoice) -> Self {
        match choice {
            HookChoice::Auto => Self::Auto,
            HookChoice::Tcx => Self::Tcx,
            HookChoice::Clsact => Self::Clsact,
            HookChoice::Xdp => Self::Xdp,
        }
    }
}

impl Attach {
    fn settings(self) -> anyhow::Result<Settings> {
        let Self {
            uplink,
            node_address,
            guest_address,
            overlay_ports,
            services,
            ingress_hook,
            no_address,
            address_device,
            flow_entries,
        } = self;
        let mut settings = Settings {
            guest_address: GuestAddress::parse(&guest_address)?,
            ingress_hook: ingress_hook.into(),
            address_device: (!no_address).then_some(address_device),
            flow_entries,
            ..Settings::new(uplink, DualAddress::parse("node address", &node_address)?)
        };
        if !overlay_ports.is_empty() {
            settings.overlay_ports = parse_overlay_ports(&overlay_ports)?;
        }
        if !services.is_empty() {
            settings.services = parse_services(&services)?;
        }
        Ok(settings)
    }
}

/// Does what the command says.
pub fn run(command: Command, format: Format) -> anyhow::Result<()> {
    match command {
        Command::Attach(arguments) => {
            let datapath = datapath::attach(&arguments.settings()?)?;
            print(format, "Datapath", &datapath, attached_text)
        }
        Command::Show(Uplink { uplink }) => {
            let datapath = datapath::show(uplink.as_deref())?;
            print(format, "Datapath", &datapath, datapath_text)
        }
        Command::Stats {
            uplink: Uplink { uplink },
            watch,
        } => stats(uplink.as_deref(), watch, format),
        Command::Detach(Uplink { uplink }) => {
            let detached = datapath::detach(uplink.as_deref())?;
            print(format, "DatapathDetached", &detached, detached_text)
        }
        Command::Watch(Uplink { uplink }) => watch(uplink.as_deref(), format),
        Command::Monitor {
            uplink: Uplink { uplink },
            one_in,
        } => monitor(uplink.as_deref(), one_in, format),
    }
}

fn monitor(uplink: Option<&str>, one_in: NonZeroU32, format: Format) -> anyhow::Result<()> {
    let mut result = Ok(());
    datapath::monitor(uplink, one_in, |shown| {
        match print_while_read(format, "DatapathPacket", &shown, shown_text) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(end) => {
                result = end;
                ControlFlow::Break(())
            }
        }
    })?;
    result
}

fn shown_text(shown: &Shown) -> String {
    let Shown {
        time,
        place,
        event,
        family,
        class,
        ends,
    } = shown;
    let what = ends.map_or_else(|| family.name().to_owned(), |ends| ends.to_string());
    format!(
        "{:>12.6}  {:<12}  {:<10}  {:<10}  {what}\n",
        time.as_secs_f64(),
        place.name(),
        event.name(),
        class.name()
    )
}

fn stats(uplink: Option<&str>, watch: bool, format: Format) -> anyhow::Result<()> {
    let mut stats = datapath::stats(uplink)?;
    if !watch {
        return print(format, "DatapathStats", &stats, |stats| {
            stats_text(stats, None)
        });
    }
    let mut previous = None;
    loop {
        print_next(format, "DatapathStats", &stats, |stats| {
            stats_text(stats, previous.as_ref()) + "\n"
        })?;
        thread::sleep(WATCH_INTERVAL);
        previous = Some(stats);
        stats = datapath::stats(uplink)?;
    }
}

/// What `watch` prints for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WatchEvent {
    event: &'static str,
    #[serde(flatten)]
    repair: Option<Repair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

fn watch(uplink: Option<&str>, format: Format) -> anyhow::Result<()> {
    let mut result = Ok(());
    datapath::watch(uplink, |watched| {
        let text = watched_text(&watched);
        let (event, repair, message) = match watched {
            Watched::Repaired(repair) => ("repaired", Some(repair), None),
            Watched::Failed(message) => ("failed", None, Some(message)),
            Watched::Detached => ("detached", None, None),
            Watched::Stopped => ("stopped", None, None),
        };
        let event = WatchEvent {
            event,
            repair,
            message,
        };
        let printed = print_next(format, "DatapathWatchEvent", &event, |_| text);
        if result.is_ok() {
            result = printed;
        }
    })?;
    result
}

fn watched_text(watched: &Watched) -> String {
    match watched {
        Watched::Repaired(Repair { place, hook, cause }) => {
            let cause = cause.words();
            format!(
                "{} is back in its place on {}: {cause}\n",
                place.name(),
                hook.name()
            )
        }
        Watched::Failed(message) => format!("failed, will be tried again: {message}\n"),
        Watched::Detached => "detached by somebody; nothing is left to watch\n".to_owned(),
        Watched::Stopped => "stopped; the datapath stays attached\n".to_owned(),
    }
}

fn detached_text(detached: &Detached) -> String {
    let Detached { uplink, removed } = detached;
    match uplink {
        Some(uplink) if !removed.is_empty() => {
            format!("detached from {uplink}: {}\n", removed.join(", "))
        }
        Some(uplink) => format!("nothing was attached to {uplink}\n"),
        None => "nothing was attached\n".to_owned(),
    }
}

fn attached_text(datapath: &Datapath) -> String {
    let mut rows = head(datapath);
    rows.insert(0, row("attached", &datapath.uplink));
    table(&rows, 0) + &warnings_text(datapath)
}

fn datapath_text(datapath: &Datapath) -> String {
    let mut rows = vec![row(
        "uplink",
        format!("{} (interface {})", datapath.uplink, datapath.ifindex),
    )];
    rows.extend(head(datapath));
    for program in &datapath.programs {
        rows.push(row(
            "program",
            format!(
                "{}: {} (program {}, tag {}, {} old)",
                program.place,
                program.name,
                program.id,
                program.tag,
                age(program.age_seconds)
            ),
        ));
    }
    let maps: Vec<String> = datapath
        .maps
        .iter()
        .map(|map| format!("{} {}", map.name, map.id))
        .collect();
    rows.push(row("maps", maps.join(", ")));
    for (direction, chain) in [
        ("ingress", &datapath.chain.ingress),
        ("egress", &datapath.chain.egress),
    ] {
        let entries: Vec<String> = chain.iter().map(entry_text).collect();
        rows.push(row(
            "chain",
            format!("{direction}: {}", entries.join(" → ")),
        ));
    }
    table(&rows, 0) + &warnings_text(datapath)
}

fn head(datapath: &Datapath) -> Vec<Vec<String>> {
    let mut rows = vec![row("hook", hooks_text(datapath.hook))];
    for line in &datapath.addresses {
        rows.push(row(
            "address",
            format!("{}: guest {}, node {}", line.family, line.guest, line.node),
        ));
    }
    let device = datapath.address_device.as_deref().unwrap_or("none");
    rows.push(row("address device", device));
    let services: Vec<String> = datapath.services.iter().map(ToString::to_string).collect();
    rows.push(row("services", or_none(&services)));
    let ports: Vec<String> = datapath
        .overlay_ports
        .iter()
        .map(ToString::to_string)
        .collect();
    rows.push(row("overlay ports", or_none(&ports)));
    rows
}

fn hooks_text(hooks: Hooks) -> String {
    let Hooks {
        ingress,
        egress_first,
        egress_last,
    } = hooks;
    let egress = if egress_first == egress_last {
        format!("{} (first and last)", egress_first.name())
    } else {
        format!(
            "{} (first) and {} (last)",
            egress_first.name(),
            egress_last.name()
        )
    };
    format!("ingress {}, egress {egress}", ingress.name())
}

fn or_none(words: &[String]) -> String {
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(" ")
    }
}

fn row(name: &str, value: impl Into<String>) -> Vec<String> {
    vec![name.to_owned(), value.into()]
}

fn entry_text(entry: &Entry) -> String {
    let id = entry.id.map(|id| format!(" {id}")).unwrap_or_default();
    let mark = if entry.ours { "" } else { " (not ours)" };
    format!("{}{id} on {}{mark}", entry.name, entry.hook.name())
}

fn warnings_text(datapath: &Datapath) -> String {
    datapath
        .warnings
        .iter()
        .fold(String::new(), |mut text, warning| {
            // Writing to a string can't fail.
            let _: std::fmt::Result = writeln!(text, "warning: {warning}");
            text
        })
}

/// The two largest units.
fn age(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match seconds {
        0..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => format!("{}m{}s", seconds / MINUTE, seconds % MINUTE),
        HOUR..DAY => format!("{}h{}m", seconds / HOUR, seconds % HOUR / MINUTE),
        _ => format!("{}d{}h", seconds / DAY, seconds % DAY / HOUR),
    }
}

fn stats_text(stats: &Stats, previous: Option<&Stats>) -> String {
    let mut text = table(&flow_rows(stats), 3);
    if stats.counters.is_empty() {
        text.push_str("no packet seen yet\n");
        return text;
    }
    text.push('\n');
    text + &counter_table(
        &stats.counters,
        previous.map(|stats| stats.counters.as_slice()),
    )
}

fn flow_rows(stats: &Stats) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["flows", "entries", "max", "evicted"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for flows in &stats.flows {
        rows.push(vec![
            flows.family.name().to_owned(),
            flows.entries.to_string(),
            flows.max_entries.to_string(),
            flows.evicted.to_string(),
        ]);
    }
    rows
}

/// One row per place, family and class; one column per event that happened at all.
fn counter_table(counters: &[Counter], previous: Option<&[Counter]>) -> String {
    let events: Vec<Event> = Event::ALL
        .iter()
        .copied()
        .filter(|event| counters.iter().any(|counter| counter.event == *event))
        .collect();
    let mut cells: BTreeMap<(Place, Family, Class), BTreeMap<Event, u64>> = BTreeMap::new();
    for counter in counters {
        cells
            .entry((counter.place, counter.family, counter.class))
            .or_default()
            .insert(counter.event, counter.packets);
    }
    let before = |key: (Place, Family, Class), event: Event| {
        previous?
            .iter()
            .find(|counter| {
                (counter.place, counter.family, counter.class) == key && counter.event == event
            })
            .map(|counter| counter.packets)
            .or(Some(0))
    };
    let mut rows = vec![
        ["place", "family", "class"]
            .into_iter()
            .chain(events.iter().map(|event| event.name()))
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    ];
    for (key, counts) in &cells {
        let (place, family, class) = key;
        let names = [place.name(), family.name(), class.name()].map(str::to_owned);
        let numbers = events.iter().map(|event| match counts.get(event) {
            None => "-".to_owned(),
            Some(packets) => match before(*key, *event) {
                Some(before) if *packets > before => format!("{packets} (+{})", packets - before),
                _ => packets.to_string(),
            },
        });
        rows.push(names.into_iter().chain(numbers).collect());
    }
    table(&rows, events.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(place: Place, class: Class, event: Event, packets: u64) -> Counter {
        Counter {
            place,
            family: Family::V4,
            class,
            event,
            packets,
        }
    }

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m0s"),
            (3_725, "1h2m"),
            (90_000, "1d1h"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn counters_make_a_table() {
        let counters = [
            counter(Place::Ingress, Class::Udp, Event::Translated, 12),
            counter(Place::Ingress, Class::Udp, Event::Passed, 3),
            counter(Place::EgressFirst, Class::Tcp, Event::Passed, 7),
        ];
        let before = [counter(Place::Ingress, Class::Udp, Event::Translated, 2)];
        let expected = "\
place         family  class  translated  passed
ingress       ipv4    udp            12       3
egress-first  ipv4    tcp             -       7
";
        assert_eq!(counter_table(&counters, None), expected);
        let expected = "\
place         family  class  translated  passed
ingress       ipv4    udp      12 (+10)  3 (+3)
egress-first  ipv4    tcp             -  7 (+7)
";
        assert_eq!(counter_table(&counters, Some(&before)), expected);
    }
}
