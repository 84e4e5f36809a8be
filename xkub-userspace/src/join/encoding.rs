//! gzip and base64 as join files use them: bounded, and put back in the shape they were found in.

use std::{io::Read as _, ops::Range};

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use flate2::{Compression, bufread::MultiGzDecoder, read::GzEncoder};
use zeroize::Zeroizing;

use super::{
    error::{JoinError, Place},
    scan::{DECODED_LIMIT, Scan},
};

/// What gzip streams begin with: RFC 1952 section 2.3.1, with the only compression method there is.
pub(super) const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 8];

/// The same in base64; the next bytes don't matter, since three bytes make four letters.
pub(super) const GZIP_MAGIC_BASE64: &[u8] = b"H4sI";

/// Go's decoder, which k0s and cloud-init's peers use, is as lenient about the last letter's spare bits.
const DECODER: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

const ENCODER: GeneralPurpose = GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new());

const UNPADDED_ENCODER: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_encode_padding(false),
);

/// What a gzip stream of one or more members holds.
pub(super) fn gunzip(
    packed: &[u8],
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<Zeroizing<Vec<u8>>, JoinError> {
    let mut decoded = Zeroizing::new(Vec::new());
    // One byte more than allowed tells a full layer from one that is too large.
    let limit = u64::try_from(DECODED_LIMIT)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let result = MultiGzDecoder::new(packed)
        .take(limit)
        .read_to_end(&mut decoded);
    scan.spend(decoded.len(), place)?;
    if decoded.len() > DECODED_LIMIT {
        return Err(JoinError::TooLarge {
            place: place.clone(),
            limit: DECODED_LIMIT,
        });
    }
    result.map_err(|_| JoinError::NotGzip {
        place: place.clone(),
    })?;
    Ok(decoded)
}

/// As k0s packs its tokens: one member, best compression.
pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    // Reading from memory can't fail.
    let _: std::io::Result<usize> =
        GzEncoder::new(bytes, Compression::best()).read_to_end(&mut packed);
    packed
}

/// Whether a byte is a letter of standard base64.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/'
}

/// Letters of base64 in one line, or wrapped over several.
#[derive(Clone, Debug)]
pub(super) struct Run {
    lines: Vec<Range<usize>>,
}

impl Run {
    /// A text that is nothing but base64 and white space.
    pub fn whole(text: &[u8]) -> Option<Self> {
        let mut lines: Vec<Range<usize>> = Vec::new();
        for (index, byte) in text.iter().enumerate() {
            if byte.is_ascii_whitespace() {
                continue;
            }
            if !is_letter(*byte) && *byte != b'=' {
                return None;
            }
            match lines.last_mut() {
                Some(line) if line.end == index => line.end += 1,
                _ => lines.push(index..index + 1),
            }
        }
        (!lines.is_empty()).then_some(Self { lines })
    }

    /// The next run of `minimum` letters or more at or behind `from`. Lines of the same length that follow it belong
    /// to it, and a shorter last one; whether they really do, only decoding tells: see [`Run::candidates`].
    pub fn next(text: &[u8], from: usize, minimum: usize) -> Option<Self> {
        let mut from = from;
        loop {
            let start = from + text.get(from..)?.iter().position(|byte| is_letter(*byte))?;
            // The `n` of an escaped line break is no letter of what follows it.
            let escape = start > 0 && text.get(start - 1) == Some(&b'\\');
            let first = letters(text, if escape { start + 1 } else { start });
            if first.len() < minimum {
                from = first.end.max(start + 1);
                continue;
            }
            let width = first.len();
            let mut lines = vec![first];
            while let Some(line) = lines
                .last()
                .and_then(|last| continuation(text, last, width))
            {
                lines.push(line);
            }
            return Some(Self { lines });
        }
    }

    /// From the first letter to the last.
    pub fn range(&self) -> Range<usize> {
        let start = self.lines.first().map_or(0, |line| line.start);
        let end = self.lines.last().map_or(start, |line| line.end);
        start..end
    }

    /// The run as it may be meant: all of it, without its last line (a word below a token looks like one), or its
    /// first line alone.
    pub fn candidates(self) -> impl Iterator<Item = Self> {
        let mut lengths = [self.lines.len(), self.lines.len().saturating_sub(1), 1].to_vec();
        lengths.retain(|length| *length > 0);
        lengths.dedup();
        lengths.into_iter().map(move |length| Self {
            lines: self.lines.iter().take(length).cloned().collect(),
        })
    }

    /// Whether it begins as gzip does.
    pub fn is_gzip(&self, text: &[u8]) -> bool {
        text.get(self.range())
            .is_some_and(|letters| letters.starts_with(GZIP_MAGIC_BASE64))
    }

    /// What it holds; none where it is no base64.
    pub fn decode(&self, text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let letters = Zeroizing::new(self.letters(text));
        DECODER.decode(&*letters).ok().map(Zeroizing::new)
    }

    /// Other bytes in the same shape: wrapped as before, padded as before.
    pub fn encode(&self, text: &[u8], bytes: &[u8]) -> Vec<u8> {
        let unpadded = !self.letters(text).len().is_multiple_of(4);
        let engine = if unpadded { UNPADDED_ENCODER } else { ENCODER };
        let encoded = engine.encode(bytes).into_bytes();
        let [first, second, ..] = self.lines.as_slice() else {
            return encoded;
        };
        let separator = text.get(first.end..second.start).unwrap_or_default();
        encoded
            .chunks(first.len())
            .collect::<Vec<_>>()
            .join(separator)
    }

    fn letters(&self, text: &[u8]) -> Vec<u8> {
        let lines = self.lines.iter().filter_map(|line| text.get(line.clone()));
        lines.flatten().copied().collect()
    }
}

/// The letters that begin at `start`, and the padding behind them.
fn letters(text: &[u8], start: usize) -> Range<usize> {
    let rest = text.get(start..).unwrap_or_default();
    let length = rest.iter().take_while(|byte| is_letter(**byte)).count();
    let padding = rest
        .iter()
        .skip(length)
        .take_while(|byte| **byte == b'=')
        .take(if length == 0 { 0 } else { 2 });
    start..start + length + padding.count()
}

/// The next line of a wrapped run, whose first line is `width` wide.
fn continuation(text: &[u8], last: &Range<usize>, width: usize) -> Option<Range<usize>> {
    let padded = text.get(last.clone())?.ends_with(b"=");
    if last.len() != width || padded {
        return None;
    }
    let rest = text.get(last.end..)?;
    // A line break, or an escaped one in quotes.
    let line_break: &[u8] = [&b"\r\n"[..], b"\n", b"\\r\\n", b"\\n"]
        .into_iter()
        .find(|line_break| rest.starts_with(line_break))?;
    let start = last.end + line_break.len();
    let indent = text
        .get(start..)?
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t'))
        .count();
    let line = letters(text, start + indent);
    let alone = match text.get(line.end) {
        None => true,
        Some(byte) => matches!(byte, b'\r' | b'\n' | b'\\' | b'"' | b'\''),
    };
    let begins = text.get(line.clone())?.starts_with(GZIP_MAGIC_BASE64);
    (!line.is_empty() && line.len() <= width && alone && !begins).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(text: &str, minimum: usize) -> Vec<Vec<&str>> {
        let mut runs = Vec::new();
        let mut from = 0;
        while let Some(run) = Run::next(text.as_bytes(), from, minimum) {
            runs.push(run.lines.iter().map(|line| &text[line.clone()]).collect());
            from = run.range().end;
        }
        runs
    }

    #[test]
    fn runs_are_found_in_any_text() {
        for (text, expected) in [
            ("", vec![]),
            ("a.b.c", vec![]),
            ("text: abcdefgh\n", vec![vec!["abcdefgh"]]),
            (
                "abcdefg=,abcdef==",
                vec![vec!["abcdefg="], vec!["abcdef=="]],
            ),
            ("TOKEN_X=abcdefgh", vec![vec!["abcdefgh"]]),
            // Wrapped: equal lines and a shorter last one.
            (
                "  abcdef\n  ghijkl\n  mn==\n  opqrst",
                vec![vec!["abcdef", "ghijkl", "mn=="], vec!["opqrst"]],
            ),
            ("abcdef\r\nghijkl\r\n", vec![vec!["abcdef", "ghijkl"]]),
            (r#""x:\nabcdef\nghi\n""#, vec![vec!["abcdef", "ghi"]]),
            // What follows is other text.
            ("abcdef\nowner: x", vec![vec!["abcdef"]]),
            ("abcdef\nghijklm", vec![vec!["abcdef"], vec!["ghijklm"]]),
            ("abcdef\nH4sIAA", vec![vec!["abcdef"], vec!["H4sIAA"]]),
            (r"\\nabcdef", vec![vec!["abcdef"]]),
        ] {
            assert_eq!(runs(text, 6), expected, "{text}");
        }
    }

    #[test]
    fn shape_is_kept() {
        for text in [
            "Zm9vYmFy",
            "Zm9v\nYmFy",
            "Zm9v\r\n  YmFy",
            "Zm9vYg==",
            "Zm9vYg",
            "Zm\n9v\nYg\n==",
        ] {
            let run = Run::whole(text.as_bytes()).unwrap();
            let bytes = run.decode(text.as_bytes()).unwrap();
            assert_eq!(run.encode(text.as_bytes(), &bytes), text.as_bytes());
        }
        assert!(Run::whole(b"Zm9v-").is_none());
        assert!(Run::whole(b" \n").is_none());
        assert!(
            Run::whole(b"Zm9v=Zm9")
                .unwrap()
                .decode(b"Zm9v=Zm9")
                .is_none()
        );
    }

    #[test]
    fn gzip_is_bounded_and_takes_several_members() {
        let place = Place::default();
        let mut scan = Scan::new(None);
        let mut both = gzip(b"one ");
        both.extend(gzip(b"two"));
        assert_eq!(*gunzip(&both, &place, &mut scan).unwrap(), b"one two");
        let full = vec![0; DECODED_LIMIT];
        assert_eq!(
            gunzip(&gzip(&full), &place, &mut scan).unwrap().len(),
            DECODED_LIMIT
        );
        let bomb = gzip(&vec![0; DECODED_LIMIT + 1]);
        assert!(matches!(
            gunzip(&bomb, &place, &mut scan),
            Err(JoinError::TooLarge {
                limit: DECODED_LIMIT,
                ..
            })
        ));
        let mut wrong_checksum = gzip(b"one");
        let checksum = wrong_checksum.len() - 8;
        wrong_checksum[checksum] ^= 1;
        for broken in [&both[..both.len() - 1], &both[..12], b"", &wrong_checksum] {
            assert!(matches!(
                gunzip(broken, &place, &mut scan),
                Err(JoinError::NotGzip { .. })
            ));
        }
    }

    #[test]
    fn all_layers_together_are_bounded() {
        let place = Place::default();
        let mut scan = Scan::new(None);
        let layer = gzip(&vec![0; DECODED_LIMIT]);
        let enough = (0..100).find_map(|_| gunzip(&layer, &place, &mut scan).err());
        assert!(matches!(enough, Some(JoinError::TooLarge { limit, .. }) if limit > DECODED_LIMIT));
    }
}
