//! Parsing, against etherparse on whatever bytes there are.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod agreement;

use proptest::{collection::vec, prelude::*};

use agreement::{check, ours, theirs};

/// Frames that are nearly right.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop_oneof![
        Just(vec![]),
        Just(vec![0x81, 0x00, 0x00, 0x07]),
        Just(vec![0x88, 0xa8, 0x00, 0x07, 0x81, 0x00, 0x00, 0x08])
    ];
    let payload = (any::<[u16; 2]>(), vec(any::<u8>(), 0..40));
    (
        tags,
        any::<bool>(),
        any::<bool>(),
        5..=15u8,
        any::<[u8; 8]>(),
        payload,
    )
        .prop_map(
            |(tags, is_v4, is_tcp, words, address, ([source, destination], data))| {
                let mut transport = [source.to_be_bytes(), destination.to_be_bytes()].concat();
                if is_tcp {
                    transport.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
                } else {
                    transport.extend(u16::try_from(8 + data.len()).unwrap().to_be_bytes());
                    transport.extend([0, 0]);
                }
                transport.extend(data);
                let mut frame = vec![2; 12];
                frame.extend(tags);
                let protocol = if is_tcp { 6 } else { 17 };
                if is_v4 {
                    let length = usize::from(words) * 4;
                    frame.extend([0x08, 0x00, 0x40 | words, 0]);
                    frame.extend(
                        u16::try_from(length + transport.len())
                            .unwrap()
                            .to_be_bytes(),
                    );
                    frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
                    frame.extend(address);
                    frame.extend(vec![1; length - 20]);
                } else {
                    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                    frame.extend(u16::try_from(transport.len()).unwrap().to_be_bytes());
                    frame.extend([protocol, 64]);
                    frame.extend(address.repeat(4));
                }
                frame.extend(transport);
                frame
            },
        )
}

proptest! {
    #[test]
    fn a_right_frame_says_the_same_to_both(frame in frames()) {
        let (ours, theirs) = (ours(&frame), theirs(&frame));
        prop_assert!(ours.is_some());
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn a_frame_with_one_wrong_byte_never_says_something_else(frame in frames(), at: prop::sample::Index, value: u8) {
        let mut frame = frame;
        let at = 12 + at.index(frame.len() - 12);
        frame[at] = value;
        check(&frame);
    }

    #[test]
    fn any_bytes_are_survived(frame in vec(any::<u8>(), 0..200)) {
        check(&frame);
    }

    #[test]
    fn every_length_of_a_right_frame_is_survived(frame in frames()) {
        for length in 0..frame.len() {
            prop_assert_eq!(ours(&frame[..length]), None, "a frame cut short contradicts its own length");
        }
    }
}
