//! Traffic in a lab: what is sent, and what arrives.

mod capture;
mod echo;
mod iperf;
mod ping;
mod raw;

pub use capture::{Capture, Frame};
pub use echo::{Client, EchoServer, Seen};
pub use iperf::{Iperf, IperfServer, Measured};
pub use ping::{Ping, PingResult};
pub use raw::send_frame;
