//! Flags in a list of arguments, as pflag (k0s, kubelet) and urfave/cli (k3s) read them.

/// The value of a flag, given as `--name=value` or `--name value`; the last one counts.
pub fn value<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    values(arguments, name).pop()
}

/// All values of a flag that may be repeated.
pub fn values<'a>(arguments: &'a [String], name: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == name {
            found.extend(rest.next().map(String::as_str));
        } else if let Some(value) = argument
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('='))
        {
            found.push(value);
        }
    }
    found
}

/// Whether a flag without a value is set: `--name`, or `--name=` and what Go's `strconv.ParseBool` calls true.
pub fn is_set(arguments: &[String], name: &str) -> bool {
    arguments
        .iter()
        .filter_map(|argument| argument.strip_prefix(name))
        .rfind(|rest| rest.is_empty() || rest.starts_with('='))
        .is_some_and(|rest| matches!(rest, "" | "=1" | "=t" | "=T" | "=true" | "=True" | "=TRUE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_counts() {
        for (line, expected, set) in [
            ("", None, false),
            ("--a=b", Some("b"), false),
            ("--a b --ab=c", Some("b"), true),
            ("--a=b --a=c", Some("c"), false),
            ("--a", None, true),
            ("--a=true", Some("true"), true),
            ("--a=true --a=false", Some("false"), false),
            ("a --aa=b", None, false),
        ] {
            let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(value(&arguments, "--a"), expected, "{line}");
            assert_eq!(is_set(&arguments, "--a"), set, "{line}");
        }
    }
}
