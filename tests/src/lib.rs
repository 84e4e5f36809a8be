//! The labs that xkub is tested, shown and measured in.
//!
//! A lab is made of network namespaces that belong to guard objects: dropping the lab, a panic or the end of the
//! process removes everything, and two labs never share a name or an address with each other or with the host.
//!
//! This library must build without the eBPF toolchain, because `cargo xtask setup` and `cargo xtask demo` use it
//! before that is installed. The `xkub` binary is therefore called as a program, never linked: see [`xkub`].

pub mod agent;
pub mod foreign;
pub mod guest;
pub mod masquerade;
pub mod namespace;
pub mod program;
pub mod row;
pub mod skip;
pub mod traffic;
pub mod wait;
pub mod xkub;

pub use masquerade::{Masquerade, Node};
pub use namespace::Namespace;
