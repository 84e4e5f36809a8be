//! Words of a command line in a unit file, quoted and escaped as systemd does it.
//!
//! Source: systemd.service(5) "Command lines", systemd.syntax(7) "Quoting", and `extract_first_word()`, which is
//! laxer than the manual: quotes count anywhere in a word, and an escape that it does not know stays as it is.

use std::{collections::BTreeMap, fmt::Write as _};

use thiserror::Error;

/// Why a command line could not be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SplitError {
    /// `"` or `'` without its like.
    #[error("a quotation mark is never closed")]
    OpenQuote,
    /// Bytes from escapes such as `\xff` that make no text.
    #[error("its escapes make no UTF-8")]
    NotUtf8,
}

/// One word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// As it stands in the file, to be written again as it was.
    pub raw: String,
    /// Without quotes and escapes. `%` and `$` still mean what they mean to systemd.
    pub value: String,
}

impl Word {
    /// A word with this value, quoted where that is needed.
    pub fn new(value: impl Into<String>) -> Self {
        let value = value.into();
        Self {
            raw: quote(&value),
            value,
        }
    }
}

/// Splits a command line into words.
///
/// # Errors
/// [`SplitError`], one variant per cause.
pub fn split(line: &str) -> Result<Vec<Word>, SplitError> {
    let mut words = Vec::new();
    let mut rest = line.trim_start_matches(is_space);
    while !rest.is_empty() {
        let (word, after) = first_word(rest)?;
        words.push(word);
        rest = after.trim_start_matches(is_space);
    }
    Ok(words)
}

/// The words as one line, each in its raw form.
#[must_use]
pub fn join(words: &[Word]) -> String {
    let mut line = words
        .iter()
        .map(|word| word.raw.as_str())
        .collect::<Vec<_>>()
        .join(" ");
    // At the end of a line a backslash means that the line goes on.
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    if backslashes % 2 == 1 {
        line.push('\\');
    }
    line
}

/// A word of a unit file that has this value. `%` and `$` are left to systemd; see [`literal`].
#[must_use]
pub fn quote(value: &str) -> String {
    if value.is_empty() {
        return r#""""#.to_owned();
    }
    // Between two words, a lone semicolon separates two commands.
    if value == ";" {
        return r"\x3b".to_owned();
    }
    let mut quoted = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => quoted.push_str(r"\\"),
            // k0s writes spaces like this too.
            ' ' | '"' | '\'' => push_hex(&mut quoted, character),
            _ if character.is_ascii_control() => push_hex(&mut quoted, character),
            _ => quoted.push(character),
        }
    }
    quoted
}

/// Text that systemd shall take as it is: no `%` and no `$` in it means anything.
#[must_use]
pub fn literal(text: &str) -> String {
    text.replace('%', "%%").replace('$', "$$")
}

/// The arguments of the process: specifiers, then variables, as systemd replaces them. A specifier that is not
/// known without asking the machine stays, and a variable that is not set is empty.
pub fn expand(words: &[Word], unit: &str, variables: &BTreeMap<String, String>) -> Vec<String> {
    let mut arguments = Vec::new();
    for word in words {
        let value = specifiers(&word.value, unit);
        match value.strip_prefix('$') {
            // `$NAME` that is a word of its own becomes as many words as its value has.
            Some(name) if is_name(name) => {
                let value = variables.get(name).map_or("", String::as_str);
                match split(value) {
                    Ok(words) => arguments.extend(words.into_iter().map(|word| word.value)),
                    Err(_) => arguments.extend(value.split_whitespace().map(str::to_owned)),
                }
            }
            _ => arguments.push(braces(&value, variables)),
        }
    }
    arguments
}

/// Replaces the specifiers that depend on the unit's name alone (systemd.unit(5) "Specifiers").
#[must_use]
pub fn specifiers(text: &str, unit: &str) -> String {
    let stem = unit.rsplit_once('.').map_or(unit, |(stem, _)| stem);
    let (prefix, instance) = stem.split_once('@').unwrap_or((stem, ""));
    let mut result = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            result.push(character);
            continue;
        }
        match characters.next() {
            Some('%') => result.push('%'),
            Some('n') => result.push_str(unit),
            Some('N') => result.push_str(stem),
            Some('p') => result.push_str(prefix),
            Some('i') => result.push_str(instance),
            other => {
                result.push('%');
                result.extend(other);
            }
        }
    }
    result
}

/// Replaces `${NAME}` and `$$` within a word.
fn braces(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            result.push('$');
            rest = after;
        } else if let Some((name, after)) = after
            .strip_prefix('{')
            .and_then(|after| after.split_once('}'))
            .filter(|(name, _)| is_name(name))
        {
            result.push_str(variables.get(name).map_or("", String::as_str));
            rest = after;
        } else {
            result.push('$');
            rest = after;
        }
    }
    result + rest
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// systemd's `WHITESPACE`.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

fn push_hex(text: &mut String, character: char) {
    // Writing to a string never fails.
    let _ = write!(text, r"\x{:02x}", u32::from(character));
}

/// The first word of a line that does not begin with a space, and what follows it.
fn first_word(line: &str) -> Result<(Word, &str), SplitError> {
    let mut value = Vec::new();
    let mut quote = None;
    let mut rest = line;
    while let Some(character) = rest.chars().next() {
        let after = rest.get(character.len_utf8()..).unwrap_or_default();
        match (quote, character) {
            (None, _) if is_space(character) => break,
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            (_, '\\') => {
                rest = unescape(after, &mut value);
                continue;
            }
            _ => value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
        rest = after;
    }
    if quote.is_some() {
        return Err(SplitError::OpenQuote);
    }
    let raw = line.get(..line.len() - rest.len()).unwrap_or_default();
    let value = if raw == r"\;" {
        // systemd.service(5): this is how a semicolon is passed.
        ";".to_owned()
    } else {
        String::from_utf8(value).map_err(|_| SplitError::NotUtf8)?
    };
    Ok((
        Word {
            raw: raw.to_owned(),
            value,
        },
        rest,
    ))
}

/// Takes what follows a backslash (`cunescape_one()`); what is no escape stays as it is, with its backslash.
fn unescape<'a>(text: &'a str, value: &mut Vec<u8>) -> &'a str {
    let mut characters = text.chars();
    let plain = match characters.next() {
        Some('a') => 0x07,
        Some('b') => 0x08,
        Some('f') => 0x0c,
        Some('n') => b'\n',
        Some('r') => b'\r',
        Some('t') => b'\t',
        Some('v') => 0x0b,
        Some('\\') => b'\\',
        Some('"') => b'"',
        Some('\'') => b'\'',
        Some('s') => b' ',
        Some('x') => return numeric(text, 1, 2, 16, value),
        Some('u') => return numeric(text, 1, 4, 16, value),
        Some('U') => return numeric(text, 1, 8, 16, value),
        Some('0'..='7') => return numeric(text, 0, 3, 8, value),
        _ => {
            value.push(b'\\');
            return text;
        }
    };
    value.push(plain);
    characters.as_str()
}

/// A character by number: `digits` of them from `start` on. `\x` and octal ones are bytes, `\u` and `\U` are
/// characters. NUL can't be in an argument.
fn numeric<'a>(
    text: &'a str,
    start: usize,
    digits: usize,
    radix: u32,
    value: &mut Vec<u8>,
) -> &'a str {
    let number = text
        .get(start..start + digits)
        .filter(|digits| digits.chars().all(|digit| digit.is_digit(radix)))
        .and_then(|digits| u32::from_str_radix(digits, radix).ok())
        .filter(|number| *number != 0);
    let taken = number.and_then(|number| {
        if digits > 3 {
            let character = char::from_u32(number)?;
            value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            value.push(u8::try_from(number).ok()?);
        }
        text.get(start + digits..)
    });
    taken.unwrap_or_else(|| {
        value.push(b'\\');
        text
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(line: &str) -> Vec<String> {
        split(line)
            .unwrap()
            .into_iter()
            .map(|word| word.value)
            .collect()
    }

    #[test]
    fn words_are_what_systemd_makes_of_them() {
        for (line, expected) in [
            ("", &[][..]),
            ("  a\tb  ", &["a", "b"]),
            // `k0s install worker` (lab-findings §3d).
            (
                r"/usr/local/bin/k0s worker --kubelet-extra-args=--v=2\x20--node-labels=a=b --labels=x=y",
                &[
                    "/usr/local/bin/k0s",
                    "worker",
                    "--kubelet-extra-args=--v=2 --node-labels=a=b",
                    "--labels=x=y",
                ],
            ),
            (r#""a b" 'c "d"' e"f g"h"#, &["a b", "c \"d\"", "ef gh"]),
            (r#""" ''"#, &["", ""]),
            (r"\s\t\x41\101\u00e9\U0001F600", &[" \tAA\u{e9}\u{1f600}"]),
            // No escapes, or not ones that an argument can hold.
            (
                r"\q \x4 \x00 \u12 \400 \",
                &[r"\q", r"\x4", r"\x00", r"\u12", r"\400", r"\"],
            ),
            (r"a \; b", &["a", ";", "b"]),
            (r"\xc3\xa9", &["\u{e9}"]),
            ("%i %% $A ${B}", &["%i", "%%", "$A", "${B}"]),
        ] {
            assert_eq!(values(line), expected, "{line}");
        }
        assert_eq!(split("a 'b"), Err(SplitError::OpenQuote));
        assert_eq!(split(r"a \xff"), Err(SplitError::NotUtf8));
    }

    #[test]
    fn what_is_not_changed_is_written_as_it_was() {
        for line in [
            r#"-@/bin/a "b c" d\x20e 'f' %i %% $A ${B} $$ \q \\"#,
            r"/usr/local/bin/k0s worker --token-file=/etc/k0s/100%%/k0s\x20token",
        ] {
            assert_eq!(join(&split(line).unwrap()), line);
        }
        // It would swallow the next line.
        assert_eq!(join(&split(r"a b\").unwrap()), r"a b\\");
    }

    #[test]
    fn specifiers_and_variables_are_replaced() {
        let variables = BTreeMap::from([
            ("A".to_owned(), "one 'two three'".to_owned()),
            ("B".to_owned(), "four five".to_owned()),
        ]);
        let words = split("%N %n %p %i %H 100%% $A ${B}x $$A $NONE a$A ${NONE}").unwrap();
        assert_eq!(
            expand(&words, "k3s@x.service", &variables),
            [
                "k3s@x",
                "k3s@x.service",
                "k3s",
                "x",
                "%H",
                "100%",
                "one",
                "two three",
                "four fivex",
                "$A",
                "a$A",
                "",
            ]
        );
    }

    proptest! {
        #[test]
        fn a_quoted_value_comes_back(value in "[^\0]{0,40}", other in "[^\0]{0,10}") {
            let words = [Word::new(value.as_str()), Word::new(other.as_str())];
            let line = join(&words);
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(split(&line).unwrap(), words);
        }

        #[test]
        fn a_literal_means_itself(value in "[^\0]{0,40}") {
            let words = [Word::new(literal(&value))];
            prop_assert_eq!(expand(&words, "a.service", &BTreeMap::new()), [value]);
        }

        #[test]
        fn any_line_is_split_or_refused(line in ".{0,60}") {
            if let Ok(words) = split(&line) {
                let again: Vec<_> = split(&join(&words)).unwrap().into_iter().map(|word| word.value).collect();
                let values: Vec<_> = words.into_iter().map(|word| word.value).collect();
                prop_assert_eq!(again, values);
            }
        }
    }
}
