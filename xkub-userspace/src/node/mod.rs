//! What a node needs beside the datapath: its uplink as it is, a device that holds its address, and a worker that
//! knows the address too.

pub mod address_device;
pub mod blocked_source;
pub mod boot_order;
pub mod command_line;
pub mod distribution;
pub mod environment;
pub mod file_change;
mod flags;
mod k0s;
mod k3s;
mod kubeadm;
pub mod node_ip;
pub mod restart_guard;
pub mod rooted;
pub mod serving_certificate;
pub mod systemd;
pub mod tree;
pub mod unit;
pub mod uplink;
mod yaml;
