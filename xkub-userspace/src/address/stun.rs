//! STUN's Binding messages (RFC 8489), as far as "which address do you see?" needs them: without credentials,
//! one message a datagram.
//!
//! Nothing here allocates, and every input gives an answer or a reason.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use flate2::Crc;
use thiserror::Error;

/// The port that is STUN's by IANA.
pub const PORT: u16 = 3478;
/// The length of a header, and of a request as [`request`] makes it, in bytes (RFC 8489 §5).
pub const HEADER_LENGTH: usize = 20;
/// The longest datagram that is looked at, in bytes: what fits IPv6's smallest MTU (RFC 8489 §6.1).
pub const MAX_DATAGRAM: usize = 1280;
/// The longest reply, in bytes: an error with all unknown attributes that it names, and a fingerprint.
pub const MAX_REPLY: usize = HEADER_LENGTH
    + ERROR_CODE_LENGTH
    + ATTRIBUTE_HEADER
    + 2 * MAX_UNKNOWN_ATTRIBUTES
    + FINGERPRINT_LENGTH;

/// What tells STUN from everything else (RFC 8489 §5).
const MAGIC_COOKIE: [u8; 4] = 0x2112_a442_u32.to_be_bytes();
/// The key of a fingerprint's CRC (RFC 8489 §14.7).
const FINGERPRINT_XOR: u32 = 0x5354_554e;
/// Type and length (RFC 8489 §14).
const ATTRIBUTE_HEADER: usize = 4;
const FINGERPRINT_LENGTH: usize = ATTRIBUTE_HEADER + 4;
/// With an empty reason phrase: its room is better used for the unknown attributes, and the number says it all.
const ERROR_CODE_LENGTH: usize = ATTRIBUTE_HEADER + 4;
/// How many unknown attributes a reply names. Even, so that the list needs no padding when it is full.
const MAX_UNKNOWN_ATTRIBUTES: usize = 8;
/// Error 420, "Unknown Attribute", as it is written: class and number (RFC 8489 §14.8).
const UNKNOWN_ATTRIBUTE: [u8; 2] = [4, 20];

/// Message types: method Binding (RFC 8489 §5, §18.2).
mod kind {
    pub const REQUEST: u16 = 0x0001;
    pub const SUCCESS: u16 = 0x0101;
    pub const ERROR: u16 = 0x0111;
}

/// Attribute types (RFC 8489 §18.3).
mod attribute {
    pub const ERROR_CODE: u16 = 0x0009;
    pub const UNKNOWN_ATTRIBUTES: u16 = 0x000a;
    pub const XOR_MAPPED_ADDRESS: u16 = 0x0020;
    pub const FINGERPRINT: u16 = 0x8028;
    /// From here on, whoever does not know an attribute may ignore it.
    pub const OPTIONAL: u16 = 0x8000;

    /// What RFC 8489 defines itself. What makes no sense in its place is ignored (§6.3), credentials too: a server
    /// without them must not look at them (§12).
    pub const fn is_known(kind: u16) -> bool {
        matches!(
            kind,
            0x0001 // MAPPED-ADDRESS
            | 0x0006 // USERNAME
            | 0x0008 // MESSAGE-INTEGRITY
            | ERROR_CODE
            | UNKNOWN_ATTRIBUTES
            | 0x0014 // REALM
            | 0x0015 // NONCE
            | 0x001c // MESSAGE-INTEGRITY-SHA256
            | 0x001d // PASSWORD-ALGORITHM
            | 0x001e // USERHASH
            | XOR_MAPPED_ADDRESS
        )
    }
}

/// Address families in XOR-MAPPED-ADDRESS (RFC 8489 §14.1).
mod family {
    pub const V4: u8 = 1;
    pub const V6: u8 = 2;
}

/// Why a datagram is none that counts. On the network this means silence.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StunError {
    /// Not STUN at all, or STUN before RFC 5389.
    #[error("it is no STUN message")]
    NotStun,
    /// STUN whose parts don't fit together.
    #[error("it is a broken STUN message: {0}")]
    Malformed(&'static str),
    /// Another type of message: an answer sent to a server, an indication, another method.
    #[error("it is a STUN message of type {0:#06x}, which nobody asked for")]
    Unexpected(u16),
    /// An answer to somebody else's question.
    #[error("it answers another transaction")]
    OtherTransaction,
    /// An answer that may not be used without knowing what it says.
    #[error("it has the attribute {0:#06x}, which must be understood and is not known")]
    UnknownAttribute(u16),
    /// A success without the one thing that it is for.
    #[error("it has no XOR-MAPPED-ADDRESS that is an address")]
    NoAddress,
    /// A reply that would be larger than the request and an address.
    #[error("the reply would be larger than the request may bring")]
    ReplyTooLarge,
}

/// 96 bits that make a question and its answer belong together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionId([u8; 12]);

impl TransactionId {
    /// Takes bits that must be random: who can guess them can answer in the server's place.
    #[must_use]
    pub const fn from_random(bits: [u8; 12]) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// A request without attributes (RFC 8489 §6.1).
#[must_use]
pub fn request(id: TransactionId) -> [u8; HEADER_LENGTH] {
    header(kind::REQUEST, 0, id)
}

/// What a server said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The address and port that it saw.
    Mapped(SocketAddr),
    /// It refused, with this code from 300 to 699 (RFC 8489 §14.8).
    Refused(u16),
}

/// Reads the answer to the request `id`.
///
/// # Errors
/// [`StunError`]. [`StunError::UnknownAttribute`] and [`StunError::NoAddress`] mean that the transaction is over
/// (RFC 8489 §6.3.3); after every other one the real answer may still come.
pub fn parse_answer(datagram: &[u8], id: TransactionId) -> Result<Answer, StunError> {
    let message = Message::parse(datagram)?;
    if !matches!(message.kind, kind::SUCCESS | kind::ERROR) {
        return Err(StunError::Unexpected(message.kind));
    }
    if message.id != id {
        return Err(StunError::OtherTransaction);
    }
    if message.kind == kind::ERROR {
        let code = message.find(attribute::ERROR_CODE).and_then(error_code);
        return code.map(Answer::Refused).ok_or(StunError::Malformed(
            "an error whose code is not one from 300 to 699",
        ));
    }
    if let Some(kind) = message.unknown().next() {
        return Err(StunError::UnknownAttribute(kind));
    }
    message
        .find(attribute::XOR_MAPPED_ADDRESS)
        .and_then(|value| xor_mapped_address(value, id))
        .map(Answer::Mapped)
        .ok_or(StunError::NoAddress)
}

/// What a server sends back.
#[derive(Clone, Copy)]
pub struct Reply {
    bytes: [u8; MAX_REPLY],
    length: usize,
    /// Whether it is an error: the request had attributes that we would have to know.
    pub is_error: bool,
}

impl Reply {
    /// The datagram.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Reply")
            .field("bytes", &self.as_bytes())
            .field("is_error", &self.is_error)
            .finish_non_exhaustive()
    }
}

/// What a server has to send back to `source`, which sent `datagram`: the address itself, or error 420 with what
/// was not understood. With a fingerprint if the request had one. Never longer than the request and the attribute
/// that holds the address (12 bytes, for IPv6 24).
///
/// # Errors
/// [`StunError`]: nothing is to be sent.
pub fn reply(datagram: &[u8], source: SocketAddr) -> Result<Reply, StunError> {
    let request = Message::parse(datagram)?;
    if request.kind != kind::REQUEST {
        return Err(StunError::Unexpected(request.kind));
    }
    // A socket of both families shows IPv4 as IPv6.
    let source = SocketAddr::new(source.ip().to_canonical(), source.port());
    let address = XorMappedAddress::new(source, request.id);
    let mut unknown = [[0; 2]; MAX_UNKNOWN_ATTRIBUTES];
    let mut unknown_count = 0;
    for (slot, kind) in unknown.iter_mut().zip(request.unknown()) {
        *slot = kind.to_be_bytes();
        unknown_count += 1;
    }
    let is_error = unknown_count > 0;

    let mut reply = Writer::new(
        if is_error { kind::ERROR } else { kind::SUCCESS },
        request.id,
    );
    if is_error {
        let [class, number] = UNKNOWN_ATTRIBUTE;
        reply.attribute(attribute::ERROR_CODE, &[0, 0, class, number]);
        let named = unknown.get(..unknown_count).unwrap_or_default();
        reply.attribute(attribute::UNKNOWN_ATTRIBUTES, named.as_flattened());
    } else {
        reply.attribute(attribute::XOR_MAPPED_ADDRESS, address.value());
    }
    if request.has_fingerprint {
        reply.fingerprint();
    }
    let reply = reply.finish(is_error);
    if reply.length > datagram.len() + ATTRIBUTE_HEADER + address.value().len() {
        return Err(StunError::ReplyTooLarge);
    }
    Ok(reply)
}

/// A message that was looked through once: all its attributes lie within it, and its fingerprint, if any, is right.
struct Message<'a> {
    kind: u16,
    id: TransactionId,
    attributes: &'a [u8],
    has_fingerprint: bool,
}

impl<'a> Message<'a> {
    fn parse(datagram: &'a [u8]) -> Result<Self, StunError> {
        let (&[k0, k1, l0, l1, c0, c1, c2, c3, ref id @ ..], attributes) = datagram
            .split_first_chunk::<HEADER_LENGTH>()
            .ok_or(StunError::NotStun)?;
        let kind = u16::from_be_bytes([k0, k1]);
        // The first two bits are zero.
        if kind & 0xc000 != 0 || [c0, c1, c2, c3] != MAGIC_COOKIE {
            return Err(StunError::NotStun);
        }
        if usize::from(u16::from_be_bytes([l0, l1])) != attributes.len() {
            return Err(StunError::Malformed("its length is not the datagram's"));
        }
        let mut message = Self {
            kind,
            id: TransactionId(*id),
            attributes,
            has_fingerprint: false,
        };
        let mut walk = message.attributes();
        while let Some((kind, value)) = walk.next() {
            if kind != attribute::FINGERPRINT {
                continue;
            }
            if !walk.rest.is_empty() {
                return Err(StunError::Malformed("something follows the fingerprint"));
            }
            let before = datagram.len().checked_sub(FINGERPRINT_LENGTH);
            let before = before.and_then(|end| datagram.get(..end));
            if before.is_none_or(|before| value != fingerprint(before)) {
                return Err(StunError::Malformed("its fingerprint is wrong"));
            }
            message.has_fingerprint = true;
        }
        if !walk.rest.is_empty() {
            return Err(StunError::Malformed("an attribute reaches beyond its end"));
        }
        Ok(message)
    }

    fn attributes(&self) -> Attributes<'a> {
        Attributes {
            rest: self.attributes,
        }
    }

    /// The value of an attribute; the first counts (RFC 8489 §14).
    fn find(&self, wanted: u16) -> Option<&'a [u8]> {
        self.attributes()
            .find_map(|(kind, value)| (kind == wanted).then_some(value))
    }

    /// The types of attributes that would have to be known and are not.
    fn unknown(&self) -> impl Iterator<Item = u16> + use<'a> {
        self.attributes()
            .map(|(kind, _)| kind)
            .filter(|&kind| kind < attribute::OPTIONAL && !attribute::is_known(kind))
    }
}

/// Types and values, up to the first attribute that is not whole: that is left in `rest`.
struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[k0, k1, l0, l1], rest) = self.rest.split_first_chunk::<ATTRIBUTE_HEADER>()?;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let value = rest.get(..length)?;
        // What it is padded with means nothing.
        self.rest = rest.get(length.next_multiple_of(4)..)?;
        Some((u16::from_be_bytes([k0, k1]), value))
    }
}

/// The code of an ERROR-CODE attribute, if it is one.
fn error_code(value: &[u8]) -> Option<u16> {
    let &[_, _, class, number, ..] = value else {
        return None;
    };
    // The rest of the class's byte is reserved.
    let class = class & 0b111;
    ((3..=6).contains(&class) && number < 100).then(|| u16::from(class) * 100 + u16::from(number))
}

fn xor_mapped_address(value: &[u8], id: TransactionId) -> Option<SocketAddr> {
    let (&[_, family, p0, p1], address) = value.split_first_chunk::<4>()?;
    let port = u16::from_be_bytes(xored([p0, p1], id));
    let address = match family {
        family::V4 => IpAddr::from(Ipv4Addr::from(xored(address.try_into().ok()?, id))),
        family::V6 => IpAddr::from(Ipv6Addr::from(xored(address.try_into().ok()?, id))),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Bytes combined by exclusive or with the magic cookie and the transaction's id, there and back (RFC 8489 §14.2):
/// so that no translator on the way takes an address for one that it should rewrite.
fn xored<const N: usize>(mut bytes: [u8; N], id: TransactionId) -> [u8; N] {
    for (byte, key) in bytes.iter_mut().zip(MAGIC_COOKIE.iter().chain(&id.0)) {
        *byte ^= key;
    }
    bytes
}

/// The value of a XOR-MAPPED-ADDRESS attribute.
struct XorMappedAddress {
    bytes: [u8; 20],
    length: usize,
}

impl XorMappedAddress {
    fn new(source: SocketAddr, id: TransactionId) -> Self {
        let mut bytes = [0; 20];
        let [_, family, port @ ..] = &mut bytes;
        let (port, address) = port.split_at_mut(2);
        port.copy_from_slice(&xored(source.port().to_be_bytes(), id));
        let length = match source.ip() {
            IpAddr::V4(v4) => {
                *family = family::V4;
                fill(address, &xored(v4.octets(), id))
            }
            IpAddr::V6(v6) => {
                *family = family::V6;
                fill(address, &xored(v6.octets(), id))
            }
        };
        Self {
            bytes,
            length: 4 + length,
        }
    }

    fn value(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Copies what fits, and says how much that was.
fn fill(to: &mut [u8], from: &[u8]) -> usize {
    to.iter_mut()
        .zip(from)
        .map(|(to, from)| *to = *from)
        .count()
}

fn header(kind: u16, length: u16, id: TransactionId) -> [u8; HEADER_LENGTH] {
    let mut bytes = [0; HEADER_LENGTH];
    let words = kind.to_be_bytes().into_iter().chain(length.to_be_bytes());
    let words = words.chain(MAGIC_COOKIE).chain(id.0);
    for (byte, value) in bytes.iter_mut().zip(words) {
        *byte = value;
    }
    bytes
}

/// The value of a FINGERPRINT attribute that follows `message`, whose length counts it already (RFC 8489 §14.7).
fn fingerprint(message: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(message);
    (crc.sum() ^ FINGERPRINT_XOR).to_be_bytes()
}

/// A message that is being written. What does not fit is left out; [`MAX_REPLY`] is so chosen that all fits.
struct Writer {
    kind: u16,
    id: TransactionId,
    bytes: [u8; MAX_REPLY],
    length: usize,
}

impl Writer {
    fn new(kind: u16, id: TransactionId) -> Self {
        Self {
            kind,
            id,
            bytes: [0; MAX_REPLY],
            length: HEADER_LENGTH,
        }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len()).unwrap_or_default();
        self.push(&kind.to_be_bytes());
        self.push(&length.to_be_bytes());
        self.push(value);
        // The bytes are zero already.
        self.length = self.length.next_multiple_of(4).min(MAX_REPLY);
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        self.length += fill(room, bytes);
    }

    fn fingerprint(&mut self) {
        self.write_header(FINGERPRINT_LENGTH);
        let value = fingerprint(self.bytes.get(..self.length).unwrap_or_default());
        self.attribute(attribute::FINGERPRINT, &value);
    }

    /// Writes the header, with a length that counts `more` bytes which are to follow.
    fn write_header(&mut self, more: usize) {
        let length = (self.length + more).saturating_sub(HEADER_LENGTH);
        let length = u16::try_from(length).unwrap_or_default();
        fill(&mut self.bytes, &header(self.kind, length, self.id));
    }

    fn finish(mut self, is_error: bool) -> Reply {
        self.write_header(0);
        Reply {
            bytes: self.bytes,
            length: self.length,
            is_error,
        }
    }
}

#[cfg(test)]
mod tests;
