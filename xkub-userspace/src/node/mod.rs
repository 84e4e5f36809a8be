//! What a node needs beside the datapath: its uplink as it is, a device that holds its address, and a worker that
//! knows the address too.

pub mod address_device;
pub mod command_line;
pub mod environment;
pub mod file_change;
pub mod rooted;
pub mod tree;
pub mod unit;
pub mod uplink;
