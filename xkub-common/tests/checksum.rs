//! The incremental arithmetic against sums computed anew, by etherparse.

use etherparse::checksum::Sum16BitWords;
use proptest::prelude::*;
use xkub_common::checksum::{
    Udp, difference, fold, sum, udp_state, update, update_pending, update_udp,
};

/// The complement of the folded sum over all bytes, as it stands in a header.
fn anew(address: [u32; 4], rest: &[u8]) -> u16 {
    let bytes: Vec<u8> = address.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Sum16BitWords::new()
        .add_slice(&bytes)
        .add_slice(rest)
        .ones_complement()
}

proptest! {
    #[test]
    fn a_finished_checksum(old: [u32; 4], new: [u32; 4], rest in prop::collection::vec(any::<u8>(), 1..100)) {
        let difference = u32::from(difference(&old, &new));
        let (before, after) = (anew(old, &rest), anew(new, &rest));
        // 0 and 0xffff are the same number; only all-zero data sums to 0.
        prop_assume!(rest.iter().any(|byte| *byte != 0));
        prop_assert_eq!(update(before, difference) % 0xffff, after % 0xffff);
        let udp = if before == 0 { 0xffff } else { before };
        prop_assert_eq!(update_udp(udp, difference), if after == 0 { 0xffff } else { after });
    }

    #[test]
    fn there_and_back(field: u16, old: [u32; 1], new: [u32; 1]) {
        let there = update(field, u32::from(difference(&old, &new)));
        let back = update(there, u32::from(difference(&new, &old)));
        prop_assert_eq!(back % 0xffff, field % 0xffff);
    }

    #[test]
    fn a_pending_checksum(old: [u32; 4], new: [u32; 4], rest in prop::collection::vec(any::<u8>(), 1..20)) {
        prop_assume!(rest.iter().any(|byte| *byte != 0));
        let difference = u32::from(difference(&old, &new));
        prop_assert_eq!(update_pending(!anew(old, &rest), difference) % 0xffff, !anew(new, &rest) % 0xffff);
    }

    #[test]
    fn the_state_of_a_udp_checksum(source: [u32; 4], destination: [u32; 4], length: u16, field in 1..=u16::MAX) {
        let pseudo = sum(&source) + sum(&destination) + u32::from(17u16.to_be()) + u32::from(length.to_be());
        prop_assert_eq!(udp_state(0, pseudo), Udp::None);
        prop_assume!(fold(pseudo) != 0);
        prop_assert_eq!(udp_state(fold(pseudo), pseudo), Udp::Pending);
        if field != fold(pseudo) {
            prop_assert_eq!(udp_state(field, pseudo), Udp::Finished);
        }
    }

    #[test]
    fn folding(value: u32) {
        prop_assert_eq!(u32::from(fold(value)) % 0xffff, value % 0xffff);
        prop_assert_eq!(fold(value) == 0, value == 0);
    }
}
