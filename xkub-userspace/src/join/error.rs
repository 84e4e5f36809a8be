//! Why an input could not be read, and where in it; never what is in it.

use std::fmt;

use serde::{Serialize, Serializer};
use thiserror::Error;

use super::scan::DEPTH_LIMIT;

/// Where in an input something is, from the outside in: `line 12, base64, gzip, line 5`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    text: String,
    depth: usize,
}

impl Place {
    /// A line (from 1), a path, or whatever else leads on in the same layer.
    pub(super) fn at(&self, step: impl fmt::Display) -> Self {
        let text = if self.text.is_empty() {
            step.to_string()
        } else {
            format!("{}, {step}", self.text)
        };
        Self { text, ..*self }
    }

    /// A line, from 1.
    pub(super) fn line(&self, line: usize) -> Self {
        self.at(format_args!("line {line}"))
    }

    /// What an encoding holds.
    pub(super) fn inside(&self, encoding: &str) -> Result<Self, JoinError> {
        if self.depth >= DEPTH_LIMIT {
            return Err(JoinError::TooDeep {
                place: self.clone(),
            });
        }
        let mut place = self.at(encoding);
        place.depth += 1;
        Ok(place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            formatter.write_str("the input")
        } else {
            formatter.write_str(&self.text)
        }
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Why an input could not be read or rewritten. Shows no byte of it: a join file holds secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// More than anyone joins with.
    #[error("{place}: more than {limit} bytes")]
    TooLarge {
        /// What is too large.
        place: Place,
        /// How many bytes were allowed.
        limit: usize,
    },
    /// Encodings, mappings or lists within each other.
    #[error("{place}: nested too deep")]
    TooDeep {
        /// The layer that was one too many.
        place: Place,
    },
    /// Bytes where there should be text.
    #[error("{place}: not UTF-8 text")]
    NotText {
        /// Where.
        place: Place,
    },
    /// Broken base64, or a part of it.
    #[error("{place}: not base64 (standard alphabet), or cut off")]
    NotBase64 {
        /// Where it begins.
        place: Place,
    },
    /// Broken gzip, a truncated one as a rule.
    #[error("{place}: not a whole gzip stream; was it cut off?")]
    NotGzip {
        /// Where it begins.
        place: Place,
    },
    /// Broken YAML.
    #[error("{place}: not valid YAML")]
    NotYaml {
        /// The line that can't be read.
        place: Place,
    },
    /// Broken JSON.
    #[error("{place}: not valid JSON")]
    NotJson {
        /// The line that can't be read.
        place: Place,
    },
    /// Something else than the format it was said to be.
    #[error("{place}: not {kind}: {why}")]
    NotOfKind {
        /// Where.
        place: Place,
        /// The format, with its article.
        kind: &'static str,
        /// What is missing or wrong.
        why: &'static str,
    },
    /// A server address in a spelling that can't be edited in place.
    #[error("{place}: the server address {why}; write it out plainly")]
    Spelling {
        /// Where.
        place: Place,
        /// What is unusual about it.
        why: &'static str,
    },
    /// Two changes to the same bytes.
    #[error("{place}: two server addresses overlap")]
    Overlap {
        /// Where.
        place: Place,
    },
}
