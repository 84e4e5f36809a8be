//! The codec against RFC 5769's vectors, tables of broken messages, and random ones.

use proptest::prelude::*;

use super::*;

/// The transaction of RFC 5769's vectors.
const ID: TransactionId = TransactionId([
    0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae,
]);
/// RFC 5769 §2.1: a request of ICE, which has an attribute that STUN alone does not define.
const SAMPLE_REQUEST: &str = "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74\
    002400046e0001ff80290008932ff9b151263b36000600096576746a3a68367659202020\
    000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf";
/// RFC 5769 §2.2: 192.0.2.1, port 32853.
const SAMPLE_V4: &str = "0101003c2112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220\
    002000080001a147e112a643000800142b91f599fd9e90c38c7489f92af9ba53f06be7d780280004c07d4c96";
/// RFC 5769 §2.3: 2001:db8:1234:5678:11:2233:4455:6677, port 32853.
const SAMPLE_V6: &str = "010100482112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220\
    002000140002a1470113a9faa5d3f179bc25f4b5bed2b9d900080014a382954e4be67bf11784c97c8292c275bfe3ed41\
    80280004c8fb0b4c";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

/// A message with these attributes, each with its padding of ones.
fn message(kind: u16, id: TransactionId, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, value) in attributes {
        body.extend(kind.to_be_bytes());
        body.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0xff);
    }
    let length = u16::try_from(body.len()).unwrap();
    [&header(kind, length, id)[..], &body].concat()
}

fn with_fingerprint(mut message: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(message.len() - HEADER_LENGTH + FINGERPRINT_LENGTH).unwrap();
    message[2..4].copy_from_slice(&length.to_be_bytes());
    let value = fingerprint(&message);
    message.extend([0x80, 0x28, 0, 4]);
    message.extend(value);
    message
}

fn v4() -> SocketAddr {
    "10.244.1.226:40000".parse().unwrap()
}

fn v6() -> SocketAddr {
    "[fd00:10:244::e2]:40000".parse().unwrap()
}

#[test]
fn the_vectors_of_rfc_5769() {
    let cases = [
        (SAMPLE_V4, "192.0.2.1:32853"),
        (SAMPLE_V6, "[2001:db8:1234:5678:11:2233:4455:6677]:32853"),
    ];
    for (sample, address) in cases {
        let sample = bytes(sample);
        let expected = Answer::Mapped(address.parse().unwrap());
        assert_eq!(parse_answer(&sample, ID), Ok(expected));
        // No bit that changes makes another address of it.
        for bit in 0..sample.len() * 8 {
            let mut broken = sample.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            let read = parse_answer(&broken, ID);
            assert!(read.is_err() || read == Ok(expected), "bit {bit}");
        }
        // Written by us, it holds the same attribute.
        let reply = reply(&request(ID), address.parse().unwrap()).unwrap();
        let attribute = &reply.as_bytes()[HEADER_LENGTH..];
        assert!(
            sample
                .windows(attribute.len())
                .any(|window| window == attribute)
        );
    }
}

#[test]
fn an_ice_request_is_told_what_is_not_known() {
    let request = bytes(SAMPLE_REQUEST);
    let reply = reply(&request, v4()).unwrap();
    assert!(reply.is_error);
    let expected = message(
        kind::ERROR,
        ID,
        &[
            (attribute::ERROR_CODE, &[0, 0, 4, 20]),
            (attribute::UNKNOWN_ATTRIBUTES, &[0, 0x24]),
        ],
    );
    // Padding aside: ours is zeros.
    let (mut expected, length) = (with_fingerprint(expected), reply.as_bytes().len());
    assert_eq!(length, expected.len());
    expected[34..36].fill(0);
    assert_eq!(reply.as_bytes()[..36], expected[..36]);
    assert_eq!(parse_answer(reply.as_bytes(), ID), Ok(Answer::Refused(420)));
}

#[test]
fn a_plain_request_has_a_plain_answer() {
    let request = request(ID);
    assert_eq!(
        request[..8],
        [0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42],
        "RFC 8489 §5"
    );
    for (source, length) in [(v4(), 32), (v6(), 44)] {
        let reply = reply(&request, source).unwrap();
        assert!(!reply.is_error);
        assert_eq!(reply.as_bytes().len(), length);
        assert_eq!(
            parse_answer(reply.as_bytes(), ID),
            Ok(Answer::Mapped(source))
        );
    }
}

#[test]
fn ipv4_on_a_socket_of_both_families_is_ipv4() {
    let source = "[::ffff:10.244.1.226]:40000".parse().unwrap();
    let reply = reply(&request(ID), source).unwrap();
    assert_eq!(parse_answer(reply.as_bytes(), ID), Ok(Answer::Mapped(v4())));
}

#[test]
fn a_request_with_a_fingerprint_has_an_answer_with_one() {
    let request = with_fingerprint(request(ID).to_vec());
    let reply = reply(&request, v4()).unwrap();
    assert_eq!(reply.as_bytes().len(), 32 + FINGERPRINT_LENGTH);
    assert!(Message::parse(reply.as_bytes()).unwrap().has_fingerprint);
    assert_eq!(parse_answer(reply.as_bytes(), ID), Ok(Answer::Mapped(v4())));
}

#[test]
fn what_may_be_ignored_is_ignored() {
    for attributes in [
        // SOFTWARE, of odd length; one that nobody knows; credentials, at a server that has none.
        &[(0x8022, &b"odd"[..])][..],
        &[(0xffff, b"")],
        &[(0x0006, b"user"), (0x0008, &[7; 20])],
        // XOR-MAPPED-ADDRESS makes no sense in a request.
        &[(attribute::XOR_MAPPED_ADDRESS, &[0; 8])],
    ] {
        let request = message(kind::REQUEST, ID, attributes);
        assert!(!reply(&request, v4()).unwrap().is_error, "{attributes:?}");
    }
}

#[test]
fn what_must_be_known_is_named_as_far_as_there_is_room() {
    for count in 1..=20_u16 {
        let kinds: Vec<u16> = (0..count).map(|number| 0x7000 + number).collect();
        let attributes: Vec<(u16, &[u8])> = kinds.iter().map(|&kind| (kind, &b""[..])).collect();
        let request = message(kind::REQUEST, ID, &attributes);
        let reply = reply(&request, v4()).unwrap();
        assert!(reply.is_error && reply.as_bytes().len() <= request.len() + 12);
        let read = Message::parse(reply.as_bytes()).unwrap();
        let named: Vec<u8> = kinds.iter().flat_map(|kind| kind.to_be_bytes()).collect();
        assert_eq!(
            read.find(attribute::UNKNOWN_ATTRIBUTES).unwrap(),
            &named[..named.len().min(2 * MAX_UNKNOWN_ATTRIBUTES)]
        );
    }
}

#[test]
fn what_is_no_request_gets_no_reply() {
    let answer = reply(&request(ID), v4()).unwrap();
    let mut classic = request(ID);
    classic[4] = 0;
    let fingerprint_first = {
        let mut message = with_fingerprint(request(ID).to_vec());
        message.extend([0x80, 0x22, 0, 0]);
        message[3] += 4;
        message
    };
    let mut bad_fingerprint = with_fingerprint(request(ID).to_vec());
    bad_fingerprint[27] ^= 1;
    let short = message(kind::REQUEST, ID, &[(0x8022, b"four")]);
    let cases: [(&[u8], StunError); 11] = [
        (b"", StunError::NotStun),
        (&request(ID)[..19], StunError::NotStun),
        (&classic, StunError::NotStun),
        (&message(0x4001, ID, &[]), StunError::NotStun),
        (answer.as_bytes(), StunError::Unexpected(kind::SUCCESS)),
        (
            &message(kind::ERROR, ID, &[]),
            StunError::Unexpected(kind::ERROR),
        ),
        // An indication, and Allocate of TURN.
        (&message(0x0011, ID, &[]), StunError::Unexpected(0x0011)),
        (&message(0x0003, ID, &[]), StunError::Unexpected(0x0003)),
        (
            &short[..short.len() - 4],
            StunError::Malformed("its length is not the datagram's"),
        ),
        (
            &fingerprint_first,
            StunError::Malformed("something follows the fingerprint"),
        ),
        (
            &bad_fingerprint,
            StunError::Malformed("its fingerprint is wrong"),
        ),
    ];
    for (datagram, error) in cases {
        assert_eq!(reply(datagram, v4()).unwrap_err(), error, "{datagram:02x?}");
    }
    // An attribute that claims more than there is, and half an attribute.
    for end in [&[0x80, 0x22, 0, 5, 1, 2, 3, 4][..], &[0x80, 0x22]] {
        let mut request = request(ID).to_vec();
        request[3] = u8::try_from(end.len()).unwrap();
        request.extend(end);
        assert_eq!(
            reply(&request, v4()).unwrap_err(),
            StunError::Malformed("an attribute reaches beyond its end")
        );
    }
}

#[test]
fn an_answer_without_a_usable_address_is_none() {
    let mapped = |value| message(kind::SUCCESS, ID, &[(attribute::XOR_MAPPED_ADDRESS, value)]);
    for datagram in [
        message(kind::SUCCESS, ID, &[]),
        // MAPPED-ADDRESS alone: what a translator on the way may have rewritten.
        message(kind::SUCCESS, ID, &[(0x0001, &[0, 1, 0, 1, 10, 0, 0, 1])]),
        mapped(&[]),
        mapped(&[0, 1, 0, 0, 1, 2, 3]),
        mapped(&[0, 2, 0, 0, 1, 2, 3, 4]),
        mapped(&[0, 3, 0, 0, 1, 2, 3, 4]),
    ] {
        assert_eq!(parse_answer(&datagram, ID), Err(StunError::NoAddress));
    }
    let unknown = message(kind::SUCCESS, ID, &[(0x0003, &[])]);
    assert_eq!(
        parse_answer(&unknown, ID),
        Err(StunError::UnknownAttribute(0x0003))
    );
    for code in [&[0, 0, 2, 0][..], &[0, 0, 7, 0], &[0, 0, 4, 100], &[0, 0]] {
        let refused = message(kind::ERROR, ID, &[(attribute::ERROR_CODE, code)]);
        assert!(matches!(
            parse_answer(&refused, ID),
            Err(StunError::Malformed(_))
        ));
    }
    let other = TransactionId([0; 12]);
    assert_eq!(
        parse_answer(&bytes(SAMPLE_V4), other),
        Err(StunError::OtherTransaction)
    );
}

fn sources() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>())
        .prop_map(|(address, port)| SocketAddr::new(address.to_canonical(), port))
}

fn attributes() -> impl Strategy<Value = Vec<(u16, Vec<u8>)>> {
    let kind = prop_oneof![any::<u16>(), 0..0x30_u16, Just(attribute::FINGERPRINT)];
    let value = prop::collection::vec(any::<u8>(), 0..40);
    prop::collection::vec((kind, value), 0..12)
}

proptest! {
    #[test]
    fn any_bytes_are_answered_or_not(
        datagram in prop::collection::vec(any::<u8>(), 0..200),
        source in sources(),
    ) {
        let _ = parse_answer(&datagram, ID);
        prop_assert!(reply(&datagram, source).is_err(), "a cookie by chance");
    }

    /// Whatever a request holds: no amplifier, and the answer says what was meant.
    #[test]
    fn replies_are_small_and_right(
        id in any::<[u8; 12]>(),
        attributes in attributes(),
        fingerprint in any::<bool>(),
        source in sources(),
    ) {
        let id = TransactionId(id);
        let attributes: Vec<(u16, &[u8])> =
            attributes.iter().map(|(kind, value)| (*kind, value.as_slice())).collect();
        let mut request = message(kind::REQUEST, id, &attributes);
        if fingerprint {
            request = with_fingerprint(request);
        }
        let Ok(reply) = reply(&request, source) else {
            prop_assert!(attributes.iter().any(|(kind, _)| *kind == attribute::FINGERPRINT));
            return Ok(());
        };
        let attribute = if source.is_ipv4() { 12 } else { 24 };
        prop_assert!(reply.as_bytes().len() <= request.len() + attribute);
        prop_assert_eq!(Message::parse(reply.as_bytes()).unwrap().has_fingerprint, fingerprint);
        let expected = if reply.is_error { Answer::Refused(420) } else { Answer::Mapped(source) };
        prop_assert_eq!(parse_answer(reply.as_bytes(), id), Ok(expected));
        // Two servers can't talk to each other.
        prop_assert!(super::reply(reply.as_bytes(), source).is_err());
    }
}
