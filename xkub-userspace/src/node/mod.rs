//! What a node needs beside the datapath: its uplink as it is, and a device that holds its address.

pub mod address_device;
pub mod uplink;
