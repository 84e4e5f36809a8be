//! `demo`: the overlay dead, `xkub datapath attach`, the overlay alive, and the figures.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value;
use xkub_tests::masquerade::{
    CLIENT_V4, GATEWAY_V4, Masquerade, NODE_V4, NODE_V6, Overlay, UPLINK,
};
use xkub_tests::namespace::Namespace;
use xkub_tests::traffic::{Client, EchoServer, IperfServer, Ping};

use crate::shell::say;
use crate::{Demo, lab, prepare, setup, table};

/// The kubelet's port: in the default service set.
const KUBELET_PORT: u16 = 10_250;
/// iperf3's own default.
const IPERF_PORT: u16 = 5201;
/// How long throughput is measured.
const MEASURED: Duration = Duration::from_secs(3);
/// How long something that is expected to be dead is waited for.
const SILENCE: Duration = Duration::from_millis(700);
/// IPv4 and ICMP headers of a ping.
const PING_HEADERS: u32 = 28;
/// Outer headers of VXLAN over IPv4.
const OVERLAY_HEADERS: u32 = 50;

/// Where packets are counted, in the order in which they pass.
const PLACES: [&str; 3] = ["ingress", "egress-first", "egress-last"];

/// What a check brought.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    works: bool,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gbit_per_second: Option<f64>,
}

/// One line of the demo.
#[derive(Debug, Serialize)]
struct Row {
    check: &'static str,
    before: Outcome,
    after: Outcome,
}

/// The whole of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    api_version: &'static str,
    kind: &'static str,
    works: bool,
    rows: Vec<Row>,
    /// What `xkub datapath stats` says in each guest.
    datapath: Vec<Value>,
}

/// A check: its name, and how it is made.
type Check = (&'static str, fn(&Masquerade) -> Result<Outcome>);

const CHECKS: [Check; 7] = [
    (
        "first packet ever from the node address (ARP)",
        first_packet,
    ),
    ("ping over the overlay", overlay_ping),
    ("MTU-size packets over the overlay", overlay_full_size),
    ("TCP over the overlay (iperf3)", overlay_tcp),
    (
        "TCP service on the node address, port 10250, from the other guest",
        service_from_guest,
    ),
    (
        "the same from outside, at the pod address",
        service_from_outside,
    ),
    ("the same over IPv6", service_over_ipv6),
];

/// Runs the demo.
pub fn run(arguments: &Demo) -> Result<ExitCode> {
    let begin = Instant::now();
    let binary = prepare::binary(arguments.prepared.as_deref(), setup::Purpose::Lab)?;
    prepare::go_on_as_root(&binary)?;
    if arguments.keep && lab::stands()? {
        bail!("a lab stands already: `cargo xtask lab down` first");
    }
    say(
        "building the lab: two virt-launcher pods with a guest each, KubeVirt's nft rules, a routed pod network",
    );
    let mut builder = Masquerade::builder();
    if arguments.keep {
        builder = builder.standing();
    }
    let mut lab = builder.build()?;
    lab.add_overlay(&Overlay::V4)?;
    say("before: a VXLAN device whose local address is the node address, nothing else");
    let before = check_all(&lab)?;
    say("xkub datapath attach, in both guests");
    lab.attach(&[])?;
    let after = check_all(&lab)?;
    let datapath = lab
        .nodes()
        .iter()
        .map(xkub_tests::Node::stats)
        .collect::<Result<Vec<_>>>()?;

    let rows: Vec<Row> = CHECKS
        .iter()
        .zip(before.into_iter().zip(after))
        .map(|(&(check, _), (before, after))| Row {
            check,
            before,
            after,
        })
        .collect();
    let works = rows.iter().all(|row| row.after.works);
    let report = Report {
        api_version: "xkub.io/v1",
        kind: "Demo",
        works,
        rows,
        datapath,
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text(&report));
    }
    if arguments.keep {
        lab::keep(&mut lab)?;
        eprintln!("{}", lab::how_to_use(true));
    }
    drop(lab);
    say(format_args!(
        "{} in {:.1} s",
        if works {
            "everything works"
        } else {
            "not everything works"
        },
        begin.elapsed().as_secs_f64()
    ));
    Ok(if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn check_all(lab: &Masquerade) -> Result<Vec<Outcome>> {
    let check = |&(name, check): &Check| {
        let outcome = check(lab).with_context(|| name.to_owned())?;
        say(format_args!(
            "  {} {name}: {}",
            mark(&outcome),
            outcome.detail
        ));
        Ok(outcome)
    };
    CHECKS.iter().map(check).collect()
}

fn mark(outcome: &Outcome) -> &'static str {
    if outcome.works { "✓" } else { "✗" }
}

fn text(report: &Report) -> String {
    let mut rows = vec![
        ["", "before", "after xkub datapath attach"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for Row {
        check,
        before,
        after,
    } in &report.rows
    {
        let cell = |outcome: &Outcome| format!("{} {}", mark(outcome), outcome.detail);
        rows.push(vec![(*check).to_owned(), cell(before), cell(after)]);
    }
    let mut text = table::render(&rows);
    text.push('\n');
    text += &counters(&report.datapath);
    text
}

/// The counters of both guests side by side, zeros left out.
fn counters(datapath: &[Value]) -> String {
    let mut rows = vec![
        ["packets", "", "", "", "guest1", "guest2"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let listed = |stats: &Value| {
        stats
            .get("counters")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let key = |counter: &Value| {
        ["place", "family", "class", "event"].map(|name| {
            counter
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        })
    };
    let guests: Vec<Vec<Value>> = datapath.iter().map(listed).collect();
    let mut keys: Vec<[String; 4]> = Vec::new();
    for counter in guests.iter().flatten() {
        if !keys.contains(&key(counter)) {
            keys.push(key(counter));
        }
    }
    // As packets meet the places, not as they happened to be listed.
    keys.sort_by_key(|[place, ..]| PLACES.iter().position(|name| name == place));
    for wanted in keys {
        let packets = |guest: &Vec<Value>| -> u64 {
            let same = guest.iter().filter(|counter| key(counter) == wanted);
            same.filter_map(|counter| counter.get("packets")?.as_u64())
                .sum()
        };
        let packets: Vec<u64> = guests.iter().map(packets).collect();
        if packets.iter().any(|&packets| packets > 0) {
            rows.push(
                wanted
                    .into_iter()
                    .chain(packets.iter().map(u64::to_string))
                    .collect(),
            );
        }
    }
    table::render(&rows)
}

impl Outcome {
    fn dead() -> Self {
        Self {
            works: false,
            detail: "dead".to_owned(),
            gbit_per_second: None,
        }
    }

    fn alive(detail: impl Into<String>) -> Self {
        Self {
            works: true,
            detail: detail.into(),
            gbit_per_second: None,
        }
    }
}

fn ping(ping: &Ping, from: &Namespace) -> Result<Outcome> {
    let result = ping.run(from)?;
    if result.complete() {
        return Ok(Outcome::alive(format!(
            "{} of {} answered",
            result.received, result.sent
        )));
    }
    Ok(Outcome::dead())
}

fn first_packet(lab: &Masquerade) -> Result<Outcome> {
    let node = lab.node(0);
    // As after boot: nothing is known about the gateway, and what is asked first is asked from the node address.
    node.guest.ip(&format!("neigh flush dev {UPLINK}\n"))?;
    let outcome = ping(&Ping::to(CLIENT_V4).from(node.node_v4()), &node.guest);
    // The rows that follow are about other faults.
    for node in lab.nodes() {
        node.guest.ip(&format!("neigh flush dev {UPLINK}\n"))?;
        ping(&Ping::to(GATEWAY_V4), &node.guest)?;
    }
    outcome
}

fn overlay_ping(lab: &Masquerade) -> Result<Outcome> {
    ping(
        &Ping::to(Overlay::V4.address(lab.node(1))).count(5),
        &lab.node(0).guest,
    )
}

fn overlay_full_size(lab: &Masquerade) -> Result<Outcome> {
    let payload = lab.mtu() - OVERLAY_HEADERS - PING_HEADERS;
    let full = Ping::to(Overlay::V4.address(lab.node(1)))
        .count(5)
        .payload(payload)
        .dont_fragment();
    let mut outcome = ping(&full, &lab.node(0).guest)?;
    if outcome.works {
        outcome.detail = format!("{}, {} bytes each", outcome.detail, payload + PING_HEADERS);
    }
    Ok(outcome)
}

fn overlay_tcp(lab: &Masquerade) -> Result<Outcome> {
    let server = IperfServer::start(
        &lab.node(1).guest,
        Overlay::V4.address(lab.node(1)),
        IPERF_PORT,
    )?;
    let client = server.client().duration(MEASURED).connect_limit(SILENCE);
    let Ok(measured) = client.run(&lab.node(0).guest) else {
        return Ok(Outcome::dead());
    };
    let gbit = measured.bits_per_second / 1e9;
    Ok(Outcome {
        gbit_per_second: Some(gbit),
        ..Outcome::alive(format!("{gbit:.2} Gbit/s"))
    })
}

fn service(server: &EchoServer, from: &Namespace) -> Outcome {
    match Client::to(server.address())
        .patience(SILENCE)
        .tcp(from, b"are you the kubelet?")
    {
        Ok(()) => Outcome::alive("answers"),
        Err(_) => Outcome::dead(),
    }
}

fn service_from_guest(lab: &Masquerade) -> Result<Outcome> {
    let server = EchoServer::tcp(&lab.node(0).guest, (NODE_V4[0], KUBELET_PORT))?;
    Ok(service(&server, &lab.node(1).guest))
}

fn service_from_outside(lab: &Masquerade) -> Result<Outcome> {
    let server = EchoServer::tcp(&lab.node(0).guest, (NODE_V4[0], KUBELET_PORT))?;
    Ok(service(&server, &lab.client))
}

fn service_over_ipv6(lab: &Masquerade) -> Result<Outcome> {
    let server = EchoServer::tcp(&lab.node(0).guest, (NODE_V6[0], KUBELET_PORT))?;
    Ok(service(&server, &lab.client))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn counters_of_both_guests_stand_side_by_side() {
        let counter = |packets: u64| {
            json!({"counters": [
                {"place": "ingress", "family": "ipv4", "class": "udp", "event": "translated", "packets": packets},
                {"place": "ingress", "family": "ipv6", "class": "udp", "event": "translated", "packets": 0},
            ]})
        };
        let text = super::counters(&[counter(3), counter(5)]);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            text.ends_with("ingress  ipv4  udp  translated  3       5\n"),
            "{text}"
        );
    }
}
