//! Environment files as systemd reads them (systemd.exec(5) `EnvironmentFile=`), and how one variable in them is
//! changed and put back.
//!
//! The file belongs to somebody else. Therefore the line that was there stays in it, as a comment above ours.

use std::{fmt, ops::Range};

/// Marks the comment above our line.
const MARK: &str = "# xkub sets the next line, and takes it back with `xkub uninstall`.";
/// Begins each line of what was there before.
const SAVED: &str = "# xkub found: ";
/// Says that the file ended without a line feed.
const UNTERMINATED: &str = "# xkub found no end of line here.";

/// One assignment.
#[derive(Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value, without quotes.
    pub value: String,
    /// Where it stands: from the first byte of its name to the end of its last line.
    range: Range<usize>,
}

/// Without the value: it may be a secret.
impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Where the parser is within a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Plain,
    Single,
    Double,
}

/// All assignments, in their order. Lines that are none are passed over, as systemd does.
#[must_use]
pub fn parse(text: &str) -> Vec<Variable> {
    let mut variables = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let line_end = end_of_line(text, start);
        let line = text.get(start..line_end).unwrap_or_default();
        let trimmed = line.trim_start();
        let begin = start + line.len() - trimmed.len();
        let name = trimmed
            .split_once('=')
            .map(|(name, _)| (name.trim_end(), name.len()));
        match name {
            Some((name, length)) if !trimmed.starts_with(['#', ';']) && !name.is_empty() => {
                let (value, end) = value(text, begin + length + 1);
                variables.push(Variable {
                    name: name.to_owned(),
                    value,
                    range: begin..end,
                });
                start = end + 1;
            }
            _ => start = line_end + 1,
        }
    }
    variables
}

/// A value that begins at `start`, and where it ends.
fn value(text: &str, start: usize) -> (String, usize) {
    let mut value = String::new();
    // Spaces at the end of an unquoted value do not count.
    let mut kept = 0;
    let mut within = Within::Plain;
    let mut end = text.len();
    let mut characters = text.get(start..).unwrap_or_default().char_indices();
    while let Some((at, character)) = characters.next() {
        match (within, character) {
            (Within::Plain, '\n') => {
                end = start + at;
                break;
            }
            (Within::Plain, '\'') => within = Within::Single,
            (Within::Plain, '"') => within = Within::Double,
            (Within::Single, '\'') | (Within::Double, '"') => within = Within::Plain,
            (Within::Plain, '\\') => {
                // A line that goes on, or a character as it is.
                match characters.next() {
                    Some((_, '\n')) | None => {}
                    Some((_, next)) => value.push(next),
                }
            }
            (Within::Double, '\\') => match characters.next() {
                Some((_, '\n')) | None => {}
                Some((_, next)) => {
                    // POSIX shell, "Double-Quotes".
                    if !matches!(next, '"' | '\\' | '`' | '$') {
                        value.push('\\');
                    }
                    value.push(next);
                }
            },
            (Within::Plain, space) if space.is_whitespace() => {
                if !value.is_empty() {
                    value.push(space);
                }
                continue;
            }
            _ => value.push(character),
        }
        kept = value.len();
    }
    value.truncate(kept);
    (value, end)
}

fn end_of_line(text: &str, start: usize) -> usize {
    text.get(start..)
        .and_then(|rest| rest.find('\n'))
        .map_or(text.len(), |at| start + at)
}

/// The value that counts: of several assignments, the last.
#[must_use]
pub fn get(text: &str, name: &str) -> Option<String> {
    parse(text)
        .into_iter()
        .rfind(|variable| variable.name == name)
        .map(|variable| variable.value)
}

/// The text with `name` set to `value`, all else in it as it was. [`unset`] puts back what was there. None where a
/// quotation mark that is never closed, or a backslash at the end, would make our line part of another value.
#[must_use]
pub fn set(text: &str, name: &str, value: &str) -> Option<String> {
    let changed = with(text, name, value);
    let others = |text: &str| -> Vec<(String, String)> {
        parse(text)
            .into_iter()
            .filter(|variable| variable.name != name)
            .map(|variable| (variable.name, variable.value))
            .collect()
    };
    (get(&changed, name)? == value && others(&changed) == others(text)).then_some(changed)
}

fn with(text: &str, name: &str, value: &str) -> String {
    let line = format!("{name}={}", quote(value));
    let Some(last) = parse(text)
        .into_iter()
        .rfind(|variable| variable.name == name)
    else {
        let unterminated = if text.is_empty() || text.ends_with('\n') {
            String::new()
        } else {
            format!("\n{UNTERMINATED}\n")
        };
        return format!("{text}{unterminated}{MARK}\n{line}\n");
    };
    let Range { start, end } = last.range;
    let before = text.get(..start).unwrap_or_default();
    let found = text.get(start..end).unwrap_or_default();
    let after = text.get(end..).unwrap_or_default();
    if is_ours(before) {
        return format!("{before}{line}{after}");
    }
    let indent = before.len() - before.trim_end_matches([' ', '\t']).len();
    let (before, indent) = before.split_at(before.len() - indent);
    let mut result = before.to_owned();
    for saved in format!("{indent}{found}").split('\n') {
        result.push_str(SAVED);
        result.push_str(saved);
        result.push('\n');
    }
    format!("{result}{MARK}\n{line}{after}")
}

/// The text as it was before [`set`]; none where nothing is left of it, or where we set nothing. Whatever somebody
/// else changed meanwhile in our line stays, as far as `without_ours` keeps it.
pub fn unset(text: &str, name: &str, without_ours: impl Fn(&str) -> String) -> Option<String> {
    let last = parse(text)
        .into_iter()
        .rfind(|variable| variable.name == name)?;
    let Range { start, end } = last.range;
    let before = text.get(..start)?;
    if !is_ours(before) {
        return None;
    }
    let before = before.strip_suffix('\n')?.strip_suffix(MARK)?;
    let after = text.get(end..)?;
    let (before, saved) = split_saved(before);
    let remains = without_ours(&last.value);
    let was = get(&saved, name).map(|value| without_ours(&value));
    let after = match &was {
        // The line feed of our own line.
        None if remains.is_empty() => after.strip_prefix('\n').unwrap_or(after),
        _ => after,
    };
    let before = if saved.is_empty() && after.is_empty() && remains.is_empty() {
        before
            .strip_suffix('\n')
            .and_then(|before| before.strip_suffix(UNTERMINATED))
            .and_then(|before| before.strip_suffix('\n'))
            .unwrap_or(before)
    } else {
        before
    };
    Some(match was {
        Some(was) if was == remains => format!("{before}{saved}{after}"),
        None if remains.is_empty() => format!("{before}{after}"),
        _ => format!("{before}{name}={}{after}", quote(&remains)),
    })
}

/// Whether our mark is the line above.
fn is_ours(before: &str) -> bool {
    before
        .strip_suffix('\n')
        .is_some_and(|before| before.ends_with(MARK))
}

/// What was saved at the end of `before`, and what is before that.
fn split_saved(before: &str) -> (&str, String) {
    let mut rest = before;
    let mut saved = Vec::new();
    while let Some(lines) = rest.strip_suffix('\n') {
        let begin = lines.rfind('\n').map_or(0, |at| at + 1);
        let Some(line) = lines.get(begin..).and_then(|line| line.strip_prefix(SAVED)) else {
            break;
        };
        saved.push(line);
        rest = before.get(..begin).unwrap_or_default();
    }
    saved.reverse();
    (rest, saved.join("\n"))
}

/// A value in double quotes.
fn quote(value: &str) -> String {
    let mut quoted = String::from('"');
    for character in value.chars() {
        if matches!(character, '"' | '\\' | '`' | '$') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_what_systemd_makes_of_them() {
        for (text, expected) in [
            ("A=b", "b"),
            ("A=", ""),
            ("A=old\nA=new", "new"),
            (" A = b c  \n", "b c"),
            ("A=\"b  c \"", "b  c "),
            ("A='b\"c' \"d\"", "b\"c d"),
            ("A=b\\\nc", "bc"),
            ("A=\"b\nc\"\nB=d", "b\nc"),
            (r#"A="\a\"\$\`\\""#, r#"\a"$`\"#),
            (r"A=\a\ b", "a b"),
            ("# A=x\n; A=y\nno assignment\nA=b", "b"),
            ("A='open", "open"),
        ] {
            assert_eq!(get(text, "A").unwrap(), expected, "{text}");
        }
        assert_eq!(get("B=c\n#A=b", "A"), None);
    }

    #[test]
    fn a_variable_is_set_and_put_back() {
        for text in [
            "",
            "B=c\n",
            "B=c",
            "A=--v=2",
            "A=--v=2\n",
            "  A='--v=2'\nB=\"c\nd\"\n",
            "A=--v=2 \\\n  --x=y\nB=c\n",
            "A=first\n# comment\nA=\"--v=2\"\n\n",
        ] {
            let was = get(text, "A").unwrap_or_default();
            let one = format!("{was} +1");
            let two = format!("{was} +2");
            let set_once = set(text, "A", &one).unwrap();
            assert_eq!(get(&set_once, "A").unwrap(), one, "{text}");
            assert_eq!(get(&set_once, "B"), get(text, "B"), "{text}");
            let set_twice = set(&set_once, "A", &two).unwrap();
            assert_eq!(get(&set_twice, "A").unwrap(), two, "{text}");
            assert_eq!(set_once.lines().count(), set_twice.lines().count());
            let strip = |value: &str| value.split('+').next().unwrap().trim().to_owned();
            assert_eq!(unset(&set_twice, "A", strip).unwrap(), text);
            assert_eq!(unset(text, "A", strip), None, "{text}");
        }
    }

    #[test]
    fn what_others_add_to_our_line_stays() {
        let strip = |value: &str| value.replace(" +1", "");
        let text = set("A=x\nB=c\n", "A", "x +1").unwrap();
        let text = text.replace("\"x +1\"", "\"x y +1\"");
        assert_eq!(unset(&text, "A", strip).unwrap(), "A=\"x y\"\nB=c\n");
    }

    #[test]
    fn nothing_is_written_into_a_value_without_an_end() {
        for text in ["B='open\n", "B=goes on \\", "B=goes on \\\n"] {
            assert_eq!(set(text, "A", "x"), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_and_any_value_set(text in "[AB \n=\"'\\\\#x]{0,40}", value in "[^\0]{0,30}") {
            if let Some(changed) = set(&text, "A", &value) {
                prop_assert_eq!(get(&changed, "A").unwrap(), value);
                prop_assert_eq!(get(&changed, "B"), get(&text, "B"));
            }
        }
    }
}
