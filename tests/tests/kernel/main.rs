//! The programs in the real kernel, through `BPF_PROG_TEST_RUN`: a packet goes in, the exact bytes that are
//! expected come out.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod checksums;
mod counters;
mod egress;
mod flows;
mod fragments;
mod harness;
mod icmp_errors;
mod ingress;
mod malformed;
mod neighbour;
mod packets;
mod pages;
mod random;
mod sockets;
mod untouched;
