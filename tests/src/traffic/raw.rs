//! Frames sent exactly as given.

use anyhow::{Context as _, Result};

use super::capture::packet_socket;
use crate::namespace::Namespace;

/// Sends one Ethernet frame out of `device`, past every checksum, fragment and route decision of the kernel.
///
/// The TC egress programs still see it.
///
/// # Errors
/// When there is no such device, or the frame is longer than its MTU allows.
pub fn send_frame(namespace: &Namespace, device: &str, frame: &[u8]) -> Result<()> {
    let socket = packet_socket(namespace, device)?;
    socket
        .send(frame)
        .with_context(|| format!("send {} bytes out of {device}", frame.len()))?;
    Ok(())
}
