//! xkub's user space: the datapath on the uplink, and what a node needs beside it.

pub mod address;
pub mod agent;
pub mod cluster;
pub mod cni;
pub mod config;
pub mod controller;
pub mod datapath;
pub mod files;
pub mod install;
pub mod join;
pub mod netlink;
pub mod node;
pub mod observe;
