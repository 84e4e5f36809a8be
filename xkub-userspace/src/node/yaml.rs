//! Configuration files of distributions: of them, what is asked for, and no word of them in an error.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::distribution::WorkerError;

/// Reads a file's text. Keys that nobody asks for are passed over; an empty file says nothing.
///
/// # Errors
/// [`WorkerError::Yaml`].
pub(super) fn read<T: DeserializeOwned + Default>(
    path: &Path,
    text: &str,
) -> Result<T, WorkerError> {
    match serde_saphyr::from_str::<Option<T>>(text) {
        Ok(read) => Ok(read.unwrap_or_default()),
        Err(error) => Err(WorkerError::Yaml {
            path: path.to_owned(),
            line: error.location().map(|location| location.line()),
        }),
    }
}
