//! xkub's user space: the datapath on the uplink, and what a node needs beside it.

pub mod datapath;
pub mod netlink;
pub mod node;
