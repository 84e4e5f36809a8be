//! One's complement arithmetic for incremental checksum updates (RFC 1071, RFC 1624).
//!
//! All sums are over the 16-bit words as they lie in memory: one's complement addition does not care about
//! byte order as long as it is the same everywhere (RFC 1071 §2(B)).

/// Folds a sum of 16-bit words to 16 bits, carries added back in.
#[must_use]
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "no carry is left above 16 bits"
)]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The sum of 32-bit words, as an unfolded 32-bit number. At most 2^16 words.
#[must_use]
#[inline(always)]
pub const fn sum<const N: usize>(words: &[u32; N]) -> u32 {
    let mut total = 0;
    let mut i = 0;
    while i < N {
        total += (words[i] & 0xffff) + (words[i] >> 16);
        i += 1;
    }
    total
}

/// What a sum over `old` grows by when it becomes `new`, 16 bits.
#[must_use]
pub const fn difference<const N: usize>(old: &[u32; N], new: &[u32; N]) -> u16 {
    fold(sum(new) + !fold(sum(old)) as u32)
}

/// A finished checksum field after the data under it grew by `difference` (RFC 1624, equation 3).
#[must_use]
#[inline(always)]
pub const fn update(field: u16, difference: u32) -> u16 {
    !fold(!field as u32 + difference)
}

/// As [`update`], for UDP, where 0 means "no checksum" and a computed 0 is sent as 0xffff (RFC 768).
#[must_use]
#[inline(always)]
pub const fn update_udp(field: u16, difference: u32) -> u16 {
    match update(field, difference) {
        0 => 0xffff,
        updated => updated,
    }
}

/// A checksum field that still awaits completion (`CHECKSUM_PARTIAL`) holds the folded pseudo-header sum,
/// not complemented; this is that field after the pseudo header grew by `difference`.
#[must_use]
#[inline(always)]
pub const fn update_pending(field: u16, difference: u32) -> u16 {
    fold(field as u32 + difference)
}

/// The state of a UDP checksum field, told from the packet alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Udp {
    /// 0: the sender made none.
    None,
    /// The folded pseudo-header sum: the device, or GSO, will finish it.
    Pending,
    /// Finished, in software or by local checksum offload over an inner pending one.
    Finished,
}

/// Tells a UDP checksum's state. `pseudo_header` is the sum over source, destination, protocol and UDP
/// length, unfolded. A finished checksum looks pending once in 65,536 packets.
#[must_use]
#[inline(always)]
pub const fn udp_state(field: u16, pseudo_header: u32) -> Udp {
    if field == 0 {
        Udp::None
    } else if field == fold(pseudo_header) {
        Udp::Pending
    } else {
        Udp::Finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1624 §4: the example on which the arithmetic of RFC 1141 fails.
    #[test]
    fn rfc_1624_example() {
        let difference = u32::from(fold(u32::from(!0x5555u16) + 0x3285));
        assert_eq!(update(0xdd2f, difference), 0x0000);
        assert_eq!(update_udp(0xdd2f, difference), 0xffff);
    }

    #[test]
    fn nothing_changed_changes_nothing() {
        for field in [1, 0x1234, 0xfffe, 0xffff] {
            let difference = u32::from(difference(&[0x0a00_0202], &[0x0a00_0202]));
            assert_eq!(
                fold(u32::from(update(field, difference))) % 0xffff,
                field % 0xffff
            );
        }
    }
}
