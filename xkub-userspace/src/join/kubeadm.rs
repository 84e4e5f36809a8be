//! kubeadm's `JoinConfiguration`: `discovery.bootstrapToken.apiServerEndpoint`, in any of the file's documents.
//!
//! The key is the same in kubeadm.k8s.io v1beta1 to v1beta4.

use super::{
    Kind,
    error::{JoinError, Place},
    kubeconfig::token_id,
    scan::{Edit, Scan, Whose},
    yaml::{self, Written},
};

const ENDPOINT: [&str; 3] = ["discovery", "bootstrapToken", "apiServerEndpoint"];
const TOKEN: [&str; 3] = ["discovery", "bootstrapToken", "token"];
const FILE: [&str; 3] = ["discovery", "file", "kubeConfigPath"];

/// Notes the endpoints, and changes them.
pub(super) fn scan(text: &str, place: &Place, scan: &mut Scan<'_>) -> Result<Vec<Edit>, JoinError> {
    let mut endpoints: Vec<(usize, Written)> = Vec::new();
    let mut tokens: Vec<(usize, Option<String>)> = Vec::new();
    let mut join = false;
    yaml::scalars(text, place, |scalar| {
        if scalar.is(&["kind"]) {
            join |= scalar.value == Some("JoinConfiguration");
        } else if scalar.is(&ENDPOINT) {
            let endpoint = Written::of(scalar, place)?;
            endpoints.push((scalar.document, endpoint));
        } else if scalar.is(&TOKEN) {
            let id = scalar.value.and_then(token_id).map(str::to_owned);
            tokens.push((scalar.document, id));
        }
        Ok(())
    })?;
    if !join {
        return Err(JoinError::NotOfKind {
            place: place.clone(),
            kind: Kind::Kubeadm.with_article(),
            why: "no document is a JoinConfiguration",
        });
    }
    let mut edits = Vec::new();
    for (document, written) in &endpoints {
        let Some(server) = written.server() else {
            return Err(JoinError::Spelling {
                place: written.place.clone(),
                why: "has no host, or a wrong port",
            });
        };
        let token = tokens.iter().find(|(candidate, _)| candidate == document);
        let whose = Whose {
            user: None,
            token_id: token.and_then(|(_, id)| id.clone()),
        };
        if let Some(edit) = scan.server(Kind::Kubeadm, written.place.clone(), &server, whose) {
            edits.push(written.edit(text, edit)?);
        }
    }
    Ok(edits)
}

/// The kubeconfig that a `JoinConfiguration` discovers the cluster by (`discovery.file.kubeConfigPath`): a file that
/// has to be rewritten itself. None where it discovers by token, or from a URL.
///
/// # Errors
/// [`JoinError::NotText`], [`JoinError::NotYaml`], [`JoinError::TooDeep`].
pub fn discovery_file(input: &[u8]) -> Result<Option<String>, JoinError> {
    let place = Place::default();
    let text = std::str::from_utf8(input).map_err(|_| JoinError::NotText {
        place: place.clone(),
    })?;
    let mut path = None;
    yaml::scalars(text, &place, |scalar| {
        if scalar.is(&FILE) {
            path = scalar
                .value
                .filter(|value| value.starts_with('/'))
                .map(str::to_owned);
        }
        Ok(())
    })?;
    Ok(path)
}
