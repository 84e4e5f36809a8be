//! Announcements that leave the guest: so does a VM whose live migration has ended.

use std::io;

use aya::maps::{Map, MapData, MapError, RingBuf};
use tokio::io::unix::AsyncFd;
use xkub_common::map;

use super::{error::Error, object::ObjectError, pins::Pins};

/// The announcements of one uplink: gratuitous ARP (RFC 5227 §3) and unsolicited neighbour advertisements
/// (RFC 4861 §7.2.6) for the guest address or the node address.
pub struct Announcements(AsyncFd<RingBuf<MapData>>);

impl Announcements {
    pub(super) fn open(pins: &Pins) -> Result<Self, Error> {
        let unreadable = |source: MapError| {
            Error::Object(ObjectError::Map {
                name: map::ANNOUNCED.to_owned(),
                source: Box::new(source),
            })
        };
        let data = MapData::from_pin(pins.map(map::ANNOUNCED)).map_err(unreadable)?;
        let ring = RingBuf::try_from(Map::RingBuf(data)).map_err(unreadable)?;
        // SAFETY: the ring buffer owns its descriptor, and closes it no sooner than it is dropped itself.
        let ring = unsafe { AsyncFd::register(ring).map_err(|error| Error::Wait(error.into()))? };
        Ok(Self(ring))
    }

    /// Waits for the next announcement. Several that came together count as one.
    ///
    /// # Errors
    /// When the ring buffer can't be waited for.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            let mut any = false;
            while ready.get_inner_mut().next().is_some() {
                any = true;
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }
}
