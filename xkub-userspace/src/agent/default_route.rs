//! The interface of the default route, which is the uplink unless somebody says otherwise.

use std::{fs, io};

/// The routes of the thread's network namespace, as `fib_route_seq_show` and `rt6_info_route` of the kernel write
/// them.
const ROUTES_V4: &str = "/proc/thread-self/net/route";
const ROUTES_V6: &str = "/proc/thread-self/net/ipv6_route";
/// `RTF_UP` and `RTF_REJECT`.
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;

/// Looks; IPv4 first. None without a default route.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn find() -> io::Result<Option<String>> {
    let v4 = interface_v4(&fs::read_to_string(ROUTES_V4)?);
    if v4.is_some() {
        return Ok(v4);
    }
    match fs::read_to_string(ROUTES_V6) {
        Ok(text) => Ok(interface_v6(&text)),
        // IPv6 is switched off.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The interface with the smallest metric: interface, destination, gateway, flags, reference count, use, metric, mask.
fn interface_v4(text: &str) -> Option<String> {
    let routes = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let interface = words.next()?;
        let destination = words.next()?;
        let flags = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        let metric: u32 = words.nth(2)?.parse().ok()?;
        let mask = words.next()?;
        let is_default = destination == "00000000" && mask == "00000000" && is_usable(flags);
        is_default.then(|| (metric, interface.to_owned()))
    });
    // The first of equal ones, as the kernel does.
    routes
        .min_by_key(|(metric, _)| *metric)
        .map(|(_, name)| name)
}

/// The same: destination, prefix length, source, prefix length, next hop, metric, reference count, use, flags,
/// interface.
fn interface_v6(text: &str) -> Option<String> {
    let routes = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, prefix, _, _, _, metric, _, _, flags, interface] = words.as_slice()
        else {
            return None;
        };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let metric = u32::from_str_radix(metric, 16).ok()?;
        let is_default = destination.bytes().all(|byte| byte == b'0')
            && *prefix == "00"
            && *interface != "lo"
            && is_usable(flags);
        is_default.then(|| (metric, (*interface).to_owned()))
    });
    routes
        .min_by_key(|(metric, _)| *metric)
        .map(|(_, name)| name)
}

fn is_usable(flags: u32) -> bool {
    flags & UP != 0 && flags & REJECT == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    #[test]
    fn the_default_route_with_the_smallest_metric_counts() {
        let on_link = "eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let default = "eth0\t00000000\t0102000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";
        let better = "eth1\t00000000\t0102000A\t0003\t0\t0\t50\t00000000\t0\t0\t0\n";
        let down = "eth2\t00000000\t0102000A\t0002\t0\t0\t0\t00000000\t0\t0\t0\n";
        for (routes, expected) in [
            (&[][..], None),
            (&[on_link], None),
            (&[on_link, default], Some("eth0")),
            (&[default, better], Some("eth1")),
            (&[down, default], Some("eth0")),
            (&["garbage\n"], None),
        ] {
            let text = HEAD.to_owned() + &routes.concat();
            assert_eq!(interface_v4(&text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn an_unreachable_default_route_is_none() {
        let zero = "00000000000000000000000000000000";
        let gateway = "fe800000000000000000000000000001";
        let default =
            format!("{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 00000003     eth0\n");
        let reject =
            format!("{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n");
        assert_eq!(interface_v6(&reject), None);
        assert_eq!(interface_v6(&(reject + &default)).as_deref(), Some("eth0"));
        assert_eq!(interface_v6(""), None);
    }
}
