//! Traffic in a lab: what is sent, and what arrives.

mod capture;
mod echo;
mod iperf;
mod ping;
mod raw;

pub use capture::{Capture, Frame};
pub use echo::{Client, EchoServer, Seen};
pub(crate) use iperf::parse as parse_iperf;
pub use iperf::{Iperf, IperfServer, Measured};
pub(crate) use ping::parse as parse_ping;
pub use ping::{Ping, PingResult};
pub use raw::send_frame;
