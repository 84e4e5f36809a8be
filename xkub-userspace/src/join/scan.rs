//! One pass over an input: what was found in it, and which bytes of it change.

use std::{fmt, ops::Range};

use super::{
    Expiry, Found, Kind, Outcome,
    endpoint::{Replace, Server},
    error::{JoinError, Place},
};

/// Encodings within each other. The deepest real one: base64 of gzip of user data that holds base64 of gzip of a
/// token, with an Ignition data URL around it.
pub(super) const DEPTH_LIMIT: usize = 8;

/// What one gzip stream may hold: no join file has more than some ten KiB, and a Secret holds 1 MiB.
pub(super) const DECODED_LIMIT: usize = 1 << 20;

/// What all layers of one input may hold together.
const DECODED_TOTAL: usize = 16 * DECODED_LIMIT;

/// Some bytes that change. Shows only where: the new bytes may be a whole token.
#[derive(Clone)]
pub(super) struct Edit {
    /// In the layer that was scanned.
    pub range: Range<usize>,
    /// The new bytes.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Edit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Edit")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// A layer with its changes.
pub(super) fn apply(input: &[u8], edits: &mut [Edit], place: &Place) -> Result<Vec<u8>, JoinError> {
    edits.sort_by_key(|edit| edit.range.start);
    let mut output = Vec::with_capacity(input.len());
    let mut done = 0;
    for Edit { range, bytes } in edits.iter() {
        let kept = input
            .get(done..range.start)
            .ok_or_else(|| JoinError::Overlap {
                place: place.clone(),
            })?;
        output.extend_from_slice(kept);
        output.extend_from_slice(bytes);
        done = range.end;
    }
    output.extend_from_slice(input.get(done..).unwrap_or_default());
    Ok(output)
}

/// Whose address a server is.
#[derive(Clone, Debug, Default)]
pub(super) struct Whose {
    /// The kubeconfig's name for whoever joins.
    pub user: Option<String>,
    /// The half of a bootstrap token that is not secret.
    pub token_id: Option<String>,
}

/// What a pass knows and has found.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    replace: Option<&'a Replace>,
    /// In the order of the input.
    pub found: Vec<Found>,
    budget: usize,
}

impl<'a> Scan<'a> {
    /// Without `replace`, nothing changes.
    pub fn new(replace: Option<&'a Replace>) -> Self {
        Self {
            replace,
            found: Vec::new(),
            budget: DECODED_TOTAL,
        }
    }

    /// Pays for what was or will be decoded.
    pub fn spend(&mut self, bytes: usize, place: &Place) -> Result<(), JoinError> {
        self.budget = self
            .budget
            .checked_sub(bytes)
            .ok_or_else(|| JoinError::TooLarge {
                place: place.clone(),
                limit: DECODED_TOTAL,
            })?;
        Ok(())
    }

    /// Notes a server address. Which bytes of its text change, and into what.
    pub fn server(
        &mut self,
        kind: Kind,
        place: Place,
        server: &Server<'_>,
        whose: Whose,
    ) -> Option<(Range<usize>, String)> {
        let moved = self.replace.map(|replace| outcome(replace, server, &whose));
        let (outcome, edit) = match moved {
            None => (None, None),
            Some((outcome, edit)) => (Some(outcome), edit),
        };
        let expiry = if whose.token_id.is_some() {
            Expiry::OfBootstrapToken
        } else {
            Expiry::Unknown
        };
        self.found.push(Found {
            kind,
            place,
            server: server.shown(),
            user: whose.user,
            token_id: whose.token_id,
            expiry,
            outcome,
        });
        edit
    }
}

fn outcome(
    replace: &Replace,
    server: &Server<'_>,
    whose: &Whose,
) -> (Outcome, Option<(Range<usize>, String)>) {
    // A controller joins at port 9443 of one certain controller, not at the API's endpoint.
    if whose.user.as_deref() == Some(super::k0s::CONTROLLER) {
        return (Outcome::ControllerToken, None);
    }
    let Some(address) = server.address() else {
        return (Outcome::Name, None);
    };
    if !replace.cidrs.iter().any(|cidr| cidr.contains(&address)) {
        return (Outcome::OtherAddress, None);
    }
    let (range, text) = server.moved_to(&replace.endpoint);
    if server.text().get(range.clone()) == Some(text.as_str()) {
        return (Outcome::Already, None);
    }
    let mut moved = server.text().to_owned();
    moved.replace_range(range.clone(), &text);
    let to = Server::parse(&moved).map_or_else(String::new, |server| server.shown());
    (Outcome::Replaced { to }, Some((range, text)))
}

/// Where the lines of a layer begin.
pub(super) struct Lines(Vec<usize>);

impl Lines {
    /// Of a layer.
    pub fn of(text: &[u8]) -> Self {
        let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        Self(ends.map(|(index, _)| index).collect())
    }

    /// The line (from 1) that a byte is in.
    pub fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|end| *end < offset) + 1
    }
}
