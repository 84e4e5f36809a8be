//! Where the scalars of a YAML or JSON text stand, byte for byte, so that one can change and the rest stay.

use std::ops::Range;

use saphyr_parser::{Event, Parser};

use super::{
    endpoint::Server,
    error::{JoinError, Place},
    scan::Edit,
};

/// Mappings and lists within each other; a kubeconfig has five.
const NESTING_LIMIT: usize = 64;

/// One step from the root of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// A scalar, or an alias in its place.
pub(super) struct Scalar<'a> {
    /// The document's number, from 0.
    pub document: usize,
    /// The steps that lead to it.
    pub path: &'a [Step],
    /// What it means; none for an alias.
    pub value: Option<&'a str>,
    /// Where it is written, quotes included.
    pub span: Range<usize>,
    /// The line (from 1) that it begins in.
    pub line: usize,
}

impl Scalar<'_> {
    /// Whether the path is this one; `*` is any place in a list.
    pub fn is(&self, pattern: &[&str]) -> bool {
        self.path.len() == pattern.len()
            && self
                .path
                .iter()
                .zip(pattern)
                .all(|(step, part)| match step {
                    Step::Key(key) => key == part,
                    Step::Index(_) => *part == "*",
                })
    }

    /// The place in the list that is the path's second step, as in `clusters[1].name`.
    pub fn index(&self) -> usize {
        match self.path.get(1) {
            Some(Step::Index(index)) => *index,
            _ => 0,
        }
    }
}

/// The inside of a mapping or a list.
enum Frame {
    /// A mapping that waits for a key.
    Key,
    /// A mapping that waits for the value of the path's last step.
    Value,
    /// A list; how many items it had.
    Items(usize),
}

/// Shows each scalar of each document, keys excepted.
///
/// # Errors
/// [`JoinError::NotYaml`], [`JoinError::TooDeep`], and whatever `visit` says.
pub(super) fn scalars(
    text: &str,
    place: &Place,
    mut visit: impl FnMut(&Scalar<'_>) -> Result<(), JoinError>,
) -> Result<(), JoinError> {
    // The parser counts characters.
    let offsets: Option<Vec<usize>> =
        (!text.is_ascii()).then(|| text.char_indices().map(|(offset, _)| offset).collect());
    let offset = |index: usize| match &offsets {
        None => index.min(text.len()),
        Some(offsets) => offsets.get(index).copied().unwrap_or(text.len()),
    };
    // Not `new_from_str`: that input counts the bytes of comments.
    let mut parser = Parser::new_from_iter(text.chars());
    let mut frames: Vec<Frame> = Vec::new();
    let mut path: Vec<Step> = Vec::new();
    let mut document = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| JoinError::NotYaml {
            // What ends too early is wrong on a line that is not there.
            place: place.line(error.marker().line().min(text.lines().count().max(1))),
        })?;
        let value = match &event {
            Event::Scalar(value, ..) => Some(value.as_ref()),
            _ => None,
        };
        match event {
            Event::DocumentEnd => document += 1,
            Event::Scalar(..) | Event::Alias(_) => {
                if !begin(&mut frames, &mut path, value) {
                    visit(&Scalar {
                        document,
                        path: &path,
                        value,
                        span: offset(span.start.index())..offset(span.end.index()),
                        line: span.start.line(),
                    })?;
                    end(&mut frames, &mut path);
                }
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                // A mapping as a key: what is in it is nobody's path.
                if begin(&mut frames, &mut path, None) {
                    return Err(JoinError::NotYaml {
                        place: place.line(span.start.line()),
                    });
                }
                if frames.len() >= NESTING_LIMIT {
                    return Err(JoinError::TooDeep {
                        place: place.line(span.start.line()),
                    });
                }
                frames.push(match event {
                    Event::SequenceStart(..) => Frame::Items(0),
                    _ => Frame::Key,
                });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                frames.pop();
                end(&mut frames, &mut path);
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) => {}
        }
    }
    Ok(())
}

/// A node begins: its step joins the path. Whether it is a key, which is no node of its own.
fn begin(frames: &mut [Frame], path: &mut Vec<Step>, value: Option<&str>) -> bool {
    match frames.last_mut() {
        Some(frame @ Frame::Key) => {
            path.push(Step::Key(value.unwrap_or_default().to_owned()));
            *frame = Frame::Value;
            true
        }
        None | Some(Frame::Value) => false,
        Some(Frame::Items(count)) => {
            path.push(Step::Index(*count));
            *count += 1;
            false
        }
    }
}

/// A node has ended: its step leaves the path.
fn end(frames: &mut [Frame], path: &mut Vec<Step>) {
    if let Some(frame) = frames.last_mut() {
        path.pop();
        if matches!(frame, Frame::Value) {
            *frame = Frame::Key;
        }
    }
}

/// A server address that a scalar holds: its text, and where that is written.
pub(super) struct Written {
    /// What the scalar means.
    pub value: String,
    /// Where it is written, quotes included.
    pub span: Range<usize>,
    /// Where, for people.
    pub place: Place,
}

impl Written {
    /// Of a scalar.
    pub fn of(scalar: &Scalar<'_>, place: &Place) -> Result<Self, JoinError> {
        let place = place.line(scalar.line);
        let Some(value) = scalar.value else {
            return Err(JoinError::Spelling {
                place,
                why: "is an alias",
            });
        };
        Ok(Self {
            value: value.trim().to_owned(),
            span: scalar.span.clone(),
            place,
        })
    }

    /// The address; none where the scalar holds no host.
    pub fn server(&self) -> Option<Server<'_>> {
        Server::parse(&self.value)
    }

    /// A change of the value as a change of the text that it is written in.
    pub fn edit(
        &self,
        text: &str,
        (range, new): (Range<usize>, String),
    ) -> Result<Edit, JoinError> {
        let raw = text.get(self.span.clone()).unwrap_or_default();
        let old = self.value.get(range.clone()).unwrap_or_default();
        // Either the whole value stands there, or some of it is escaped, and the part that changes is not.
        let start = raw
            .find(&self.value)
            .map(|start| start + range.start)
            .or_else(|| raw.find(old))
            .ok_or_else(|| JoinError::Spelling {
                place: self.place.clone(),
                why: "is written with escapes",
            })?;
        let start = self.span.start + start;
        Ok(Edit {
            range: start..start + old.len(),
            bytes: new.into_bytes(),
        })
    }
}
