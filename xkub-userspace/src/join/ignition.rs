//! Ignition configurations (version 3, as Butane writes them): join files in `data:` URLs and in inline strings.
//!
//! Only the strings that change are written anew; the rest of the JSON stays byte for byte.

use std::{fmt::Write as _, ops::Range};

use serde::{Deserialize, de::IgnoredAny};

use super::{
    Kind, cloud_init,
    encoding::Run,
    error::{JoinError, Place},
    scan::{self, Edit, Scan},
};

/// What makes a JSON text an Ignition configuration.
#[derive(Deserialize)]
struct Head {
    ignition: Option<IgnoredAny>,
}

/// Scans every string.
pub(super) fn scan(text: &str, place: &Place, scan: &mut Scan<'_>) -> Result<Vec<Edit>, JoinError> {
    let head: Head = serde_json::from_str(text).map_err(|error| JoinError::NotJson {
        place: place.line(error.line()),
    })?;
    if head.ignition.is_none() {
        return Err(JoinError::NotOfKind {
            place: place.clone(),
            kind: Kind::Ignition.with_article(),
            why: "it has no `ignition`",
        });
    }
    let mut edits = Vec::new();
    for string in strings(text) {
        let place = place.at(&string.path);
        for edit in value(&string.layer, &place, scan)? {
            let new = String::from_utf8_lossy(&edit.bytes).into_owned();
            let quoted = serde_json::Value::String(new).to_string();
            edits.push(Edit {
                range: string.layer.source(&edit.range),
                bytes: quoted
                    .strip_prefix('"')
                    .and_then(|rest| rest.strip_suffix('"'))
                    .unwrap_or_default()
                    .as_bytes()
                    .to_vec(),
            });
        }
    }
    Ok(edits)
}

/// A string's value: a data URL, or text.
fn value(layer: &Layer, place: &Place, scan: &mut Scan<'_>) -> Result<Vec<Edit>, JoinError> {
    let header = layer
        .bytes
        .starts_with(b"data:")
        .then(|| layer.bytes.iter().position(|byte| *byte == b','))
        .flatten();
    let Some(comma) = header else {
        return cloud_init::content(&layer.bytes, place, scan);
    };
    let is_base64 = layer
        .bytes
        .get(..comma)
        .is_some_and(|header| header.ends_with(b";base64"));
    let payload = unescaped(&layer.bytes, comma + 1);
    scan.spend(payload.bytes.len(), place)?;
    let edits = if is_base64 {
        in_base64(&payload, place, scan)?
    } else {
        let inside = place.inside("data URL")?;
        cloud_init::content(&payload.bytes, &inside, scan)?
    };
    let edits = edits.into_iter().map(|edit| {
        let range = payload.source(&edit.range);
        let was_escaped = layer
            .bytes
            .get(range.clone())
            .is_some_and(|source| source.contains(&b'%'));
        Edit {
            range,
            bytes: escaped(&edit.bytes, was_escaped).into_bytes(),
        }
    });
    Ok(edits.collect())
}

/// The payload of a `;base64` URL.
fn in_base64(payload: &Layer, place: &Place, scan: &mut Scan<'_>) -> Result<Vec<Edit>, JoinError> {
    let inside = place.inside("base64")?;
    let Some(run) = Run::whole(&payload.bytes) else {
        // `data:;base64,` is an empty file.
        return if payload.bytes.is_empty() {
            Ok(Vec::new())
        } else {
            Err(JoinError::NotBase64 {
                place: place.clone(),
            })
        };
    };
    let decoded = run
        .decode(&payload.bytes)
        .ok_or_else(|| JoinError::NotBase64 {
            place: place.clone(),
        })?;
    let mut edits = cloud_init::content(&decoded, &inside, scan)?;
    if edits.is_empty() {
        return Ok(edits);
    }
    let changed = scan::apply(&decoded, &mut edits, &inside)?;
    Ok(vec![Edit {
        range: run.range(),
        bytes: run.encode(&payload.bytes, &changed),
    }])
}

/// Bytes that were written with escapes.
struct Layer {
    bytes: Vec<u8>,
    /// Where each of the bytes is written, and where the last one ends.
    offsets: Vec<usize>,
}

impl Layer {
    /// Where some of the bytes are written.
    fn source(&self, range: &Range<usize>) -> Range<usize> {
        let offset = |index: usize| self.offsets.get(index).copied().unwrap_or_default();
        offset(range.start)..offset(range.end)
    }
}

/// Undoes percent-encoding (RFC 3986 section 2.1) from `start` on.
fn unescaped(source: &[u8], start: usize) -> Layer {
    let mut layer = Layer {
        bytes: Vec::new(),
        offsets: Vec::new(),
    };
    let mut at = start;
    while let Some(byte) = source.get(at) {
        let digit = |index: usize| {
            let digit = char::from(*source.get(index)?).to_digit(16)?;
            u8::try_from(digit).ok()
        };
        layer.offsets.push(at);
        if let (b'%', Some(high), Some(low)) = (byte, digit(at + 1), digit(at + 2)) {
            layer.bytes.push(high << 4 | low);
            at += 3;
        } else {
            layer.bytes.push(*byte);
            at += 1;
        }
    }
    layer.offsets.push(at);
    layer
}

/// Percent-encodes what RFC 3986 doesn't call unreserved, but for what base64 and a plain address consist of where
/// they stood unescaped before.
fn escaped(bytes: &[u8], strictly: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        let plain = byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'_' | b'.' | b'~')
            || (!strictly && matches!(byte, b':' | b'/' | b'+' | b'='));
        if plain {
            text.push(char::from(*byte));
        } else {
            // Writing to a string can't fail.
            let _: std::fmt::Result = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// A string of a JSON text that is not a key.
struct JsonString {
    /// Such as `storage.files[0].contents.source`.
    path: String,
    layer: Layer,
}

/// The inside of an object or an array.
enum Frame {
    /// An object: the last key, and whether its value is next.
    Object(String, bool),
    /// An array: the number of the item.
    Array(usize),
}

/// All strings of a text that is valid JSON.
fn strings(text: &str) -> Vec<JsonString> {
    let bytes = text.as_bytes();
    let mut strings = Vec::new();
    let mut frames: Vec<Frame> = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match (byte, frames.last_mut()) {
            (b'{', _) => frames.push(Frame::Object(String::new(), false)),
            (b'[', _) => frames.push(Frame::Array(0)),
            (b'}' | b']', _) => {
                frames.pop();
            }
            (b':', Some(Frame::Object(_, value))) => *value = true,
            (b',', Some(Frame::Object(_, value))) => *value = false,
            (b',', Some(Frame::Array(index))) => *index += 1,
            (b'"', frame) => {
                let (layer, end) = string(text, at);
                at = end;
                match frame {
                    Some(Frame::Object(key, false)) => {
                        *key = String::from_utf8_lossy(&layer.bytes).into_owned();
                    }
                    _ => strings.push(JsonString {
                        path: path(&frames),
                        layer,
                    }),
                }
            }
            _ => {}
        }
    }
    strings
}

fn path(frames: &[Frame]) -> String {
    let mut path = String::new();
    for frame in frames {
        // Writing to a string can't fail.
        let _: std::fmt::Result = match frame {
            Frame::Object(key, _) if path.is_empty() => write!(path, "{key}"),
            Frame::Object(key, _) => write!(path, ".{key}"),
            Frame::Array(index) => write!(path, "[{index}]"),
        };
    }
    path
}

/// The string whose first character is at `start`, and where the text goes on behind its quote.
fn string(text: &str, start: usize) -> (Layer, usize) {
    let mut layer = Layer {
        bytes: Vec::new(),
        offsets: Vec::new(),
    };
    let mut at = start;
    let mut rest = text.get(start..).unwrap_or_default();
    while let Some(first) = rest.chars().next().filter(|first| *first != '"') {
        let (character, length) = if first == '\\' {
            escape(rest)
        } else {
            (first, first.len_utf8())
        };
        let mut buffer = [0; 4];
        for byte in character.encode_utf8(&mut buffer).bytes() {
            layer.bytes.push(byte);
            layer.offsets.push(at);
        }
        at += length;
        rest = text.get(at..).unwrap_or_default();
    }
    layer.offsets.push(at);
    (layer, at + 1)
}

/// The character that an escape (RFC 8259 section 7) means, and its length.
fn escape(text: &str) -> (char, usize) {
    let unit = |start: usize| {
        let digits = text.get(start..start + 4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    match text.as_bytes().get(1) {
        Some(b'n') => ('\n', 2),
        Some(b't') => ('\t', 2),
        Some(b'r') => ('\r', 2),
        Some(b'b') => ('\u{8}', 2),
        Some(b'f') => ('\u{c}', 2),
        Some(b'u') => {
            let first = unit(2).unwrap_or_default();
            let second = text
                .get(6..8)
                .filter(|next| *next == "\\u")
                .and_then(|_| unit(8));
            match (char::from_u32(first.into()), second) {
                (Some(character), _) => (character, 6),
                (None, Some(second)) => {
                    let decoded = char::decode_utf16([first, second]).next();
                    match decoded {
                        Some(Ok(character)) => (character, 12),
                        _ => (char::REPLACEMENT_CHARACTER, 6),
                    }
                }
                (None, None) => (char::REPLACEMENT_CHARACTER, 6),
            }
        }
        Some(character) => (char::from(*character), 2),
        None => ('\\', 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_have_paths_and_places() {
        let text =
            r#"{"a": [1, "x\n\u00e9\ud83d\ude00y", {"b,c": "z\/"}], "d": {"e": ["f"]}, "g": ""}"#;
        let strings = strings(text);
        let read: Vec<(&str, &str)> = strings
            .iter()
            .map(|string| {
                let value = std::str::from_utf8(&string.layer.bytes);
                (string.path.as_str(), value.unwrap_or("not text"))
            })
            .collect();
        assert_eq!(
            read,
            [
                ("a[1]", "x\né😀y"),
                ("a[2].b,c", "z/"),
                ("d.e[0]", "f"),
                ("g", ""),
            ]
        );
        let first = &strings[0].layer;
        assert_eq!(&text[first.source(&(0..1))], "x");
        assert_eq!(&text[first.source(&(2..4))], r"\u00e9");
        assert_eq!(&text[first.source(&(8..9))], "y");
    }

    #[test]
    fn percent_encoding_goes_both_ways() {
        let layer = unescaped(b"data:,a%20b%3Ac%zz%4", 6);
        assert_eq!(layer.bytes, b"a b:c%zz%4");
        assert_eq!(layer.source(&(3..4)), 11..14);
        assert_eq!(escaped(b"a b:c", true), "a%20b%3Ac");
        assert_eq!(escaped(b"[a]:b/+=", false), "%5Ba%5D:b/+=");
    }
}
