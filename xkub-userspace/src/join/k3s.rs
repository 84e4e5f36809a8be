//! k3s and rke2: `server:` in their configuration, `K3S_URL` or `RKE2_URL` in the environment of their units.
//!
//! Their tokens hold no address.

use super::{
    Kind,
    endpoint::Server,
    error::{JoinError, Place},
    scan::{Edit, Scan, Whose},
    yaml::{self, Written},
};

/// Notes the server of `config.yaml` or a file of `config.yaml.d`, and changes it.
pub(super) fn config(
    text: &str,
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<Vec<Edit>, JoinError> {
    let mut servers = Vec::new();
    yaml::scalars(text, place, |scalar| {
        // `server: ""` is as good as none.
        if scalar.document == 0 && scalar.is(&["server"]) && scalar.value != Some("") {
            servers.push(Written::of(scalar, place)?);
        }
        Ok(())
    })?;
    let mut edits = Vec::new();
    for written in &servers {
        let Some(server) = written.server() else {
            return Err(JoinError::Spelling {
                place: written.place.clone(),
                why: "has no host, or a wrong port",
            });
        };
        let edit = scan.server(
            Kind::K3sConfig,
            written.place.clone(),
            &server,
            Whose::default(),
        );
        if let Some(edit) = edit {
            edits.push(written.edit(text, edit)?);
        }
    }
    Ok(edits)
}

/// The variables that name the server.
pub(super) const VARIABLES: [&str; 2] = ["K3S_URL", "RKE2_URL"];

/// The value of such a variable in a line of an environment file (systemd.exec(5), `EnvironmentFile=`), without its
/// quotes.
pub(super) fn assignment(line: &str) -> Option<&str> {
    let (name, value) = line.trim().split_once('=')?;
    if !VARIABLES.contains(&name.trim()) {
        return None;
    }
    let value = value.trim();
    let unquoted = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    Some(unquoted.unwrap_or(value))
}

/// Notes the server of an environment file, and changes it.
pub(super) fn environment(
    text: &str,
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<Vec<Edit>, JoinError> {
    let mut edits = Vec::new();
    let mut start = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let line_start = start;
        start += line.len();
        let Some(value) = assignment(line).filter(|value| !value.is_empty()) else {
            continue;
        };
        let place = place.line(index + 1);
        let Some(server) = Server::parse(value) else {
            return Err(JoinError::Spelling {
                place,
                why: "has no host, or a wrong port",
            });
        };
        // The value is a part of the line, and the name before it does not hold it.
        let value_start = line_start + line.rfind(value).unwrap_or_default();
        if let Some((range, new)) = scan.server(Kind::K3sEnv, place, &server, Whose::default()) {
            edits.push(Edit {
                range: value_start + range.start..value_start + range.end,
                bytes: new.into_bytes(),
            });
        }
    }
    Ok(edits)
}
