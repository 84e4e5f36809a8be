//! Node addresses that are old, and still on their device for whoever uses them inside: nothing leaves from them any
//! more. No program translates them, and virt-launcher would let them out as they are.

use std::net::IpAddr;

use netlink_packet_route::{
    route::RouteProtocol,
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use rtnetlink::IpVersion;

use crate::netlink::{Netlink, NetlinkError};

/// How our rules are known again (`rtm_protocol`; iproute2 knows no name for it).
const PROTOCOL: RouteProtocol = RouteProtocol::Other(120);
/// Behind the rule for local addresses, before those of CNIs.
const PRIORITY: u32 = 1;

/// Routes nothing from `address` any more: a rule that ends in a black hole. Whether the kernel can: it needs
/// `CONFIG_IP_MULTIPLE_TABLES` (`CONFIG_IPV6_MULTIPLE_TABLES`).
///
/// # Errors
/// [`NetlinkError`].
pub fn block(netlink: &Netlink, address: IpAddr) -> Result<bool, NetlinkError> {
    let doing = || format!("block the source {address}");
    let request = netlink
        .handle()
        .rule()
        .add()
        .action(RuleAction::Blackhole)
        .priority(PRIORITY);
    let result = match address {
        IpAddr::V4(address) => {
            let mut request = request.v4().source_prefix(address, 32);
            mark(request.message_mut());
            netlink.wait(doing, request.execute())
        }
        IpAddr::V6(address) => {
            let mut request = request.v6().source_prefix(address, 128);
            mark(request.message_mut());
            netlink.wait(doing, request.execute())
        }
    };
    match result {
        Ok(()) => Ok(true),
        Err(error) => match error.errno() {
            Some(libc::EEXIST) => Ok(true),
            Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => Ok(false),
            _ => Err(error),
        },
    }
}

fn mark(message: &mut RuleMessage) {
    message.attributes.push(RuleAttribute::Protocol(PROTOCOL));
}

/// Takes back what [`block`] did. Whether there was something.
///
/// # Errors
/// [`NetlinkError`].
pub fn unblock(netlink: &Netlink, address: IpAddr) -> Result<bool, NetlinkError> {
    let mut was_blocked = false;
    for rule in rules(netlink)? {
        if source_of(&rule) == Some(address) {
            netlink.wait(
                || format!("let the source {address} through"),
                netlink.handle().rule().del(rule).execute(),
            )?;
            was_blocked = true;
        }
    }
    Ok(was_blocked)
}

/// The addresses that are blocked.
///
/// # Errors
/// [`NetlinkError`].
pub fn blocked(netlink: &Netlink) -> Result<Vec<IpAddr>, NetlinkError> {
    Ok(rules(netlink)?.iter().filter_map(source_of).collect())
}

/// Our rules.
fn rules(netlink: &Netlink) -> Result<Vec<RuleMessage>, NetlinkError> {
    let mut ours = Vec::new();
    for version in [IpVersion::V4, IpVersion::V6] {
        let rules = netlink.collect(
            || "list routing rules".to_owned(),
            netlink.handle().rule().get(version).execute(),
        );
        match rules {
            Ok(rules) => ours.extend(rules.into_iter().filter(is_ours)),
            Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ours)
}

fn is_ours(rule: &RuleMessage) -> bool {
    rule.header.action == RuleAction::Blackhole
        && rule.attributes.contains(&RuleAttribute::Protocol(PROTOCOL))
}

fn source_of(rule: &RuleMessage) -> Option<IpAddr> {
    rule.attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Source(address) => Some(*address),
            _ => None,
        })
}
