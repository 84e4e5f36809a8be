//! cloud-init user data, as it comes: jinja, several `#cloud-config` in a row, MIME, shell, gzip or base64 of these.
//!
//! It is not parsed, since with `## template: jinja` it need not be YAML. It is searched for what a join file in it
//! would be written like: base64 (of gzip, too), in one line or wrapped, and server addresses behind their keys.
//! k0smotron's and Cluster API's bootstrap Secrets have both.

use std::ops::Range;

use super::{
    Kind, detect,
    encoding::{self, GZIP_MAGIC, Run},
    endpoint::Server,
    error::{JoinError, Place},
    ignition, k0s, kubeadm,
    kubeconfig::Kubeconfig,
    scan::{self, Edit, Lines, Scan, Whose},
};

/// Letters of base64 below which there is no join file: gzip of nothing has 28, `server: https://1.1.1.1` has 32.
const SHORTEST: usize = 28;

/// Searches user data, or what an encoding in it holds.
pub(super) fn scan(
    input: &[u8],
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<Vec<Edit>, JoinError> {
    if input.starts_with(&GZIP_MAGIC) {
        let inside = place.inside("gzip")?;
        let decoded = encoding::gunzip(input, &inside, scan)?;
        let mut edits = content(&decoded, &inside, scan)?;
        if edits.is_empty() {
            return Ok(edits);
        }
        let changed = scan::apply(&decoded, &mut edits, &inside)?;
        return Ok(vec![Edit {
            range: 0..input.len(),
            bytes: encoding::gzip(&changed),
        }]);
    }
    text(input, place, scan)
}

/// Scans what an encoding held, by what it looks like. Where it is not what it looks like, it is searched as text.
pub(super) fn content(
    input: &[u8],
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<Vec<Edit>, JoinError> {
    let Ok(text) = std::str::from_utf8(input) else {
        return if input.starts_with(&GZIP_MAGIC) {
            self::scan(input, place, scan)
        } else {
            // A program, a picture: no join file.
            Ok(Vec::new())
        };
    };
    let found = scan.found.len();
    let result = match detect::of_text(text) {
        Kind::Kubeconfig => Kubeconfig::read(text, place).and_then(|config| {
            let kind = if k0s::is_token(&config) {
                Kind::K0s
            } else {
                Kind::Kubeconfig
            };
            config.scan(kind, text, scan)
        }),
        Kind::Kubeadm => kubeadm::scan(text, place, scan),
        Kind::Ignition => ignition::scan(text, place, scan),
        _ => return self::text(input, place, scan),
    };
    match result {
        Err(
            JoinError::NotYaml { .. }
            | JoinError::NotJson { .. }
            | JoinError::NotOfKind { .. }
            | JoinError::Spelling { .. },
        ) => {
            scan.found.truncate(found);
            self::text(input, place, scan)
        }
        result => result,
    }
}

/// Searches text.
fn text(text: &[u8], place: &Place, scan: &mut Scan<'_>) -> Result<Vec<Edit>, JoinError> {
    let lines = Lines::of(text);
    let Addresses { places, mut edits } = addresses(text, place, &lines, scan);
    let mut from = 0;
    while let Some(run) = Run::next(text, from, SHORTEST) {
        let range = run.range();
        from = range.end;
        // What an address stands in is no base64, whether the address changes or not.
        let behind = places.partition_point(|place| place.end <= range.start);
        if places
            .get(behind)
            .is_some_and(|place| place.start < range.end)
        {
            continue;
        }
        let place = place.line(lines.at(range.start));
        if run.is_gzip(text) {
            let (edit, end) = packed(text, run, &place, scan)?;
            edits.extend(edit);
            from = end;
        } else if let Some((edit, end)) = plain(text, run, &place, scan)? {
            edits.extend(edit);
            from = end;
        }
    }
    Ok(edits)
}

/// base64 of gzip: a k0s token, or a file of `write_files`. Where it ends, too.
fn packed(
    text: &[u8],
    run: Run,
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<(Option<Edit>, usize), JoinError> {
    let inside = place.inside("base64")?.inside("gzip")?;
    let mut first_error = None;
    for run in run.candidates() {
        let decoded = match run.decode(text) {
            None => Err(JoinError::NotBase64 {
                place: place.clone(),
            }),
            Some(packed) => encoding::gunzip(&packed, &inside, scan),
        };
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(error @ JoinError::TooLarge { .. }) => return Err(error),
            Err(error) => {
                first_error.get_or_insert(error);
                continue;
            }
        };
        let mut edits = content(&decoded, &inside, scan)?;
        let end = run.range().end;
        if edits.is_empty() {
            return Ok((None, end));
        }
        let changed = scan::apply(&decoded, &mut edits, &inside)?;
        let edit = Edit {
            range: run.range(),
            bytes: run.encode(text, &encoding::gzip(&changed)),
        };
        return Ok((Some(edit), end));
    }
    Err(first_error.unwrap_or_else(|| JoinError::NotBase64 {
        place: place.clone(),
    }))
}

/// What may be base64 of text, and often is a path or a word. Where it ends, if it was.
fn plain(
    text: &[u8],
    run: Run,
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<Option<(Option<Edit>, usize)>, JoinError> {
    for run in run.candidates() {
        scan.spend(run.range().len(), place)?;
        let Some(decoded) = run.decode(text) else {
            continue;
        };
        if std::str::from_utf8(&decoded).is_err() && !decoded.starts_with(&GZIP_MAGIC) {
            continue;
        }
        let inside = place.inside("base64")?;
        let mut edits = content(&decoded, &inside, scan)?;
        let end = run.range().end;
        if edits.is_empty() {
            return Ok(Some((None, end)));
        }
        let changed = scan::apply(&decoded, &mut edits, &inside)?;
        let edit = Edit {
            range: run.range(),
            bytes: run.encode(text, &changed),
        };
        return Ok(Some((Some(edit), end)));
    }
    Ok(None)
}

/// What a server address stands behind.
struct Key {
    name: &'static str,
    /// What may stand between it and the address.
    assigns: &'static [u8],
    /// Whether the address is a URL, rather than `host:port`.
    url: bool,
    kind: Kind,
}

const KEYS: [Key; 4] = [
    Key {
        name: "server",
        assigns: b":",
        url: true,
        kind: Kind::CloudInit,
    },
    Key {
        name: "apiServerEndpoint",
        assigns: b":",
        url: false,
        kind: Kind::Kubeadm,
    },
    Key {
        name: "K3S_URL",
        assigns: b"=:",
        url: true,
        kind: Kind::K3sEnv,
    },
    Key {
        name: "RKE2_URL",
        assigns: b"=:",
        url: true,
        kind: Kind::K3sEnv,
    },
];

/// The server addresses of a text.
#[derive(Default)]
struct Addresses {
    /// Where each of them stands, in the order of the text.
    places: Vec<Range<usize>>,
    edits: Vec<Edit>,
}

/// Server addresses behind their keys, quoted or not.
fn addresses(text: &[u8], place: &Place, lines: &Lines, scan: &mut Scan<'_>) -> Addresses {
    let mut addresses = Addresses::default();
    let mut start = 0;
    while let Some(byte) = text.get(start) {
        let key = KEYS.iter().find(|key| {
            // The first letter alone decides nearly always.
            key.name.as_bytes().first() == Some(byte)
                && text
                    .get(start..)
                    .is_some_and(|rest| rest.starts_with(key.name.as_bytes()))
                && is_word_start(text, start)
        });
        let Some(key) = key else {
            start += 1;
            continue;
        };
        start += key.name.len();
        let Some(range) = value(text, start, key.assigns) else {
            continue;
        };
        start = range.end;
        let Some(value) = text
            .get(range.clone())
            .and_then(|value| std::str::from_utf8(value).ok())
        else {
            continue;
        };
        let Some(server) = Server::parse(value).filter(|server| server.is_url() == key.url) else {
            continue;
        };
        let place = place.line(lines.at(range.start));
        if let Some((part, new)) = scan.server(key.kind, place, &server, Whose::default()) {
            addresses.edits.push(Edit {
                range: range.start + part.start..range.start + part.end,
                bytes: new.into_bytes(),
            });
        }
        addresses.places.push(range);
    }
    addresses
}

/// Whether no word goes on here: `no_server` is another key. The letter of an escaped line break is no word.
fn is_word_start(text: &[u8], start: usize) -> bool {
    let before = |back: usize| start.checked_sub(back).and_then(|index| text.get(index));
    match before(1) {
        None => true,
        Some(b'n' | b't' | b'r') if before(2) == Some(&b'\\') => true,
        Some(byte) => !(byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'$')),
    }
}

/// The value behind a key that ends at `start`: past its quote, `:` or `=`, spaces and another quote.
fn value(text: &[u8], start: usize, assigns: &[u8]) -> Option<Range<usize>> {
    let skip = |from: usize, skipped: &[u8]| {
        let rest = text.get(from..).unwrap_or_default();
        from + rest
            .iter()
            .take_while(|byte| skipped.contains(byte))
            .count()
    };
    let start = skip(skip(start, b"\\\"'"), b" \t");
    if !assigns.contains(text.get(start)?) {
        return None;
    }
    let start = skip(skip(start + 1, b" \t"), b"\\\"'");
    let length = text
        .get(start..)?
        .iter()
        .take_while(|byte| {
            byte.is_ascii_graphic()
                && !matches!(
                    byte,
                    b'"' | b'\'' | b'\\' | b',' | b'{' | b'}' | b'<' | b'>' | b'`' | b'|' | b';'
                )
        })
        .count();
    (length > 0).then_some(start..start + length)
}

/// Whether a text begins as cloud-init wants user data to begin (its `user-data formats`), or as MIME does.
pub(super) fn looks_like_user_data(text: &str) -> bool {
    [
        "## template:",
        "#cloud-",
        "#!",
        "#include",
        "#part-handler",
        "#upstart-job",
        "Content-Type:",
        "MIME-Version:",
        "From nobody",
    ]
    .iter()
    .any(|start| text.starts_with(start))
}
