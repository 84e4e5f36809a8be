//! Datagrams, as a reflector and as its client get them: no panic; a reply is no larger than the request and an
//! address, is never sent to an answer, and is read by our client as what was meant.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use xkub_userspace::address::stun::{self, Answer, TransactionId};

fuzz_target!(|datagram: &[u8]| {
    // As the sender has it, so that the fuzzer gets past the check of it.
    let id = datagram.get(8..20).and_then(|id| id.try_into().ok()).unwrap_or_default();
    let id = TransactionId::from_random(id);
    let answer = stun::parse_answer(datagram, id);
    let sources = [
        (IpAddr::from(Ipv4Addr::new(10, 244, 1, 226)), 12),
        (IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x226)), 24),
    ];
    for (address, attribute) in sources {
        let source = SocketAddr::new(address, 40_000);
        let Ok(reply) = stun::reply(datagram, source) else { continue };
        assert!(answer.is_err());
        assert!(reply.as_bytes().len() <= datagram.len() + attribute);
        assert!(stun::reply(reply.as_bytes(), source).is_err());
        let read = stun::parse_answer(reply.as_bytes(), id);
        let meant = if reply.is_error { Answer::Refused(420) } else { Answer::Mapped(source) };
        assert_eq!(read, Ok(meant));
    }
});
