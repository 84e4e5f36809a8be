//! A blocking connection to rtnetlink, in the network namespace of the thread that opens it.

use std::{future::Future, io};

use futures::{Stream, TryStreamExt as _};
use rtnetlink::Handle;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};

/// Why rtnetlink did not do what it was asked.
#[derive(Debug, Error)]
pub enum NetlinkError {
    /// There is no socket, or no runtime for it.
    #[error("rtnetlink can't be opened")]
    Open(#[source] io::Error),
    /// The kernel refused a request.
    #[error("the kernel refused to {doing}")]
    Refused {
        /// What was asked, in the infinitive: "list filters on eth0".
        doing: String,
        /// The kernel's errno, or what was wrong with its answer.
        #[source]
        source: io::Error,
    },
}

impl NetlinkError {
    /// The errno the kernel answered with, if it was the kernel.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open(source) | Self::Refused { source, .. } => source.raw_os_error(),
        }
    }
}

/// A connection. Its methods block, so in asynchronous code they belong into `spawn_blocking`.
#[derive(Debug)]
pub struct Netlink {
    runtime: Runtime,
    handle: Handle,
}

impl Netlink {
    /// Connects.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open() -> Result<Self, NetlinkError> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(NetlinkError::Open)?;
        let guard = runtime.enter();
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Open)?;
        drop(guard);
        // Runs whenever this thread waits in `block_on`, which is whenever it waits for an answer.
        runtime.spawn(connection);
        Ok(Self { runtime, handle })
    }

    /// What requests are made from.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits for a request's answer. `doing` says what was asked, in the infinitive.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`].
    pub fn wait<T>(
        &self,
        doing: impl FnOnce() -> String,
        request: impl Future<Output = Result<T, rtnetlink::Error>>,
    ) -> Result<T, NetlinkError> {
        self.runtime
            .block_on(request)
            .map_err(|error| NetlinkError::Refused {
                doing: doing(),
                source: io_error(&error),
            })
    }

    /// Waits for all of a request's answers. `doing` says what was asked, in the infinitive.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`].
    pub fn collect<T>(
        &self,
        doing: impl FnOnce() -> String,
        answers: impl Stream<Item = Result<T, rtnetlink::Error>>,
    ) -> Result<Vec<T>, NetlinkError> {
        self.wait(doing, answers.try_collect())
    }
}

fn io_error(error: &rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}
