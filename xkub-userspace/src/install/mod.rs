//! `xkub install` and `xkub uninstall`: what they write and take away, in this system or in an image of one.

pub mod cloud_init;
pub mod config;
mod plan;
mod remove;
pub mod step;

use thiserror::Error;

use self::config::SettingError;
pub use self::{
    plan::{BINARY, Options, is_for_network, plan, unit_text},
    remove::{Removal, remove},
};
use crate::{
    files::FileError,
    node::{distribution::WorkerError, tree::TreeError},
};

/// Why nothing is installed or removed.
#[derive(Debug, Error)]
pub enum InstallError {
    /// A file can't be read or changed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is no text.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// What the distribution wrote is malformed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A setting is none.
    #[error(transparent)]
    Setting(#[from] SettingError),
}
