//! Printing a document as JSON, as YAML, or for people.

use std::{
    io::{self, Write as _},
    ops::ControlFlow,
};

use serde::Serialize;

/// The version of the documents' shapes.
const API_VERSION: &str = "xkub.io/v1";

/// How state is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
}

/// A document with its kind.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a, T> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

/// Prints a document.
pub fn print<T: Serialize>(
    format: Format,
    kind: &'static str,
    body: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let document = Document {
        api_version: API_VERSION,
        kind,
        body,
    };
    let printed = match format {
        Format::Text => text(body),
        Format::Json => serde_json::to_string_pretty(&document)? + "\n",
        Format::Yaml => serde_saphyr::to_string(&document)?,
    };
    write(&printed)
}

/// Prints one of several documents: JSON on one line, YAML behind a separator.
pub fn print_next<T: Serialize>(
    format: Format,
    kind: &'static str,
    body: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    write(&next(format, kind, body, text)?)
}

/// The same, for whoever has something to do before the process ends: breaks when nobody reads any more.
pub fn print_while_read<T: Serialize>(
    format: Format,
    kind: &'static str,
    body: &T,
    text: impl FnOnce(&T) -> String,
) -> ControlFlow<anyhow::Result<()>> {
    let printed = next(format, kind, body, text).and_then(|text| Ok(write_all(&text)?));
    match printed {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) if is_broken_pipe(&error) => ControlFlow::Break(Ok(())),
        Err(error) => ControlFlow::Break(Err(error)),
    }
}

fn next<T: Serialize>(
    format: Format,
    kind: &'static str,
    body: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<String> {
    let document = Document {
        api_version: API_VERSION,
        kind,
        body,
    };
    Ok(match format {
        Format::Text => text(body),
        Format::Json => serde_json::to_string(&document)? + "\n",
        Format::Yaml => format!("---\n{}", serde_saphyr::to_string(&document)?),
    })
}

fn write(text: &str) -> anyhow::Result<()> {
    match write_all(text) {
        // Whoever reads has seen enough: `xkub … | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

fn write_all(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
