//! The certificate that the kubelet serves with: whether the API server may reach it by the node's address.
//!
//! Source: reference/bootstrap.md §4.4. With server TLS bootstrap a new one comes by itself once the Node has the
//! address, and no restart is needed. Without, the kubelet makes a self-signed one at its first start, for its
//! host name alone (`GenerateSelfSignedCertKey(hostName, nil, nil)`): no address is ever in it, and no API server
//! that checks certificates accepts it anyhow. So xkub never removes it: the next one would be the same.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use x509_parser::{
    extensions::GeneralName,
    pem::Pem,
    prelude::{FromDer as _, X509Certificate},
};

/// A serving certificate's file, and how it comes to hold another address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingCertificate {
    /// The file, PEM; the first certificate in it counts.
    pub path: PathBuf,
    /// How it is renewed.
    pub renewal: Renewal,
}

/// How a certificate comes to hold another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// By itself, through a `CertificateSigningRequest` that somebody approves.
    Rotated,
    /// At every start of the worker (k3s and rke2 fetch it then).
    AtStart,
    /// Not at all: the kubelet made it once, or somebody else did.
    Never,
}

/// What a certificate is worth for the addresses that it should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It holds them all.
    Holds {
        /// Until when it is valid.
        expires: SystemTime,
    },
    /// It holds some, or none.
    Lacks {
        /// Those that it does not hold.
        missing: Vec<IpAddr>,
        /// Those that it does.
        held: Vec<IpAddr>,
    },
    /// The kubelet signed it itself.
    SelfSigned {
        /// Those that it does not hold.
        missing: Vec<IpAddr>,
    },
    /// It was valid until then.
    Expired {
        /// When it ended.
        expired: SystemTime,
    },
    /// There is no file.
    Missing,
    /// There is no certificate in the file.
    Unreadable,
}

impl State {
    /// Looks into a file's contents at a moment.
    pub fn of(contents: Option<&[u8]>, wanted: &[IpAddr], now: SystemTime) -> Self {
        let Some(contents) = contents else {
            return Self::Missing;
        };
        // A private key may follow; it is not looked at.
        let blocks: Vec<Pem> = Pem::iter_from_buffer(contents)
            .filter_map(Result::ok)
            .filter(|block| block.label == "CERTIFICATE")
            .collect();
        let certificates: Vec<X509Certificate<'_>> = blocks
            .iter()
            .filter_map(|block| X509Certificate::from_der(&block.contents).ok())
            .map(|(_, certificate)| certificate)
            .collect();
        let Some(certificate) = certificates.first() else {
            return Self::Unreadable;
        };
        let expires = certificate.validity().not_after.timestamp();
        let expires = UNIX_EPOCH + Duration::from_secs(u64::try_from(expires).unwrap_or(0));
        if expires < now {
            return Self::Expired { expired: expires };
        }
        let held = addresses(certificate);
        let missing: Vec<_> = wanted
            .iter()
            .copied()
            .filter(|address| !held.contains(address))
            .collect();
        // The kubelet puts the certificate of its own throw-away authority behind it.
        let is_self_signed = certificates.iter().any(|issuer| {
            issuer.subject() == certificate.issuer() && issuer.issuer() == issuer.subject()
        });
        if is_self_signed {
            Self::SelfSigned { missing }
        } else if missing.is_empty() {
            Self::Holds { expires }
        } else {
            Self::Lacks { missing, held }
        }
    }

    /// What a person should know or do; none where all is well.
    #[must_use]
    pub fn advice(&self, renewal: Renewal) -> Option<String> {
        match (self, renewal) {
            (Self::Holds { .. }, _) => None,
            (Self::Lacks { missing, .. }, Renewal::Rotated) => Some(format!(
                "the kubelet's serving certificate does not hold {} yet; if it stays so, nobody approves its request: \
                 kubectl get csr, then kubectl certificate approve NAME",
                list(missing)
            )),
            (Self::Lacks { missing, .. }, Renewal::AtStart) => Some(format!(
                "the kubelet's serving certificate does not hold {}; it is fetched when the worker starts",
                list(missing)
            )),
            (Self::Lacks { missing, .. }, Renewal::Never) => Some(format!(
                "the kubelet's serving certificate does not hold {}, and nobody renews it: set serverTLSBootstrap, \
                 or make a new one",
                list(missing)
            )),
            (Self::SelfSigned { .. }, _) => Some(
                "the kubelet's serving certificate is self-signed and holds its host name alone; an API server with \
                 --kubelet-certificate-authority refuses it. Set serverTLSBootstrap: true in the kubelet's configuration \
                 and approve its requests"
                    .to_owned(),
            ),
            (Self::Expired { .. }, Renewal::Never) => {
                Some("the kubelet's serving certificate has expired; make a new one".to_owned())
            }
            (Self::Expired { .. }, _) => Some(
                "the kubelet's serving certificate has expired; restart the worker, and look for requests that nobody \
                 approves: kubectl get csr"
                    .to_owned(),
            ),
            (Self::Missing, Renewal::Rotated) => Some(
                "the kubelet has no serving certificate yet; if it stays so, nobody approves its request: \
                 kubectl get csr, then kubectl certificate approve NAME"
                    .to_owned(),
            ),
            (Self::Missing, Renewal::AtStart | Renewal::Never) => {
                Some("the kubelet has no serving certificate yet; it is made when the worker starts".to_owned())
            }
            (Self::Unreadable, _) => {
                Some("there is no certificate in the kubelet's serving certificate file".to_owned())
            }
        }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(", ")
}

/// The addresses among a certificate's alternative names (RFC 5280 §4.2.1.6: 4 or 16 octets).
fn addresses(certificate: &X509Certificate<'_>) -> Vec<IpAddr> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::IPAddress(octets) => <[u8; 4]>::try_from(*octets)
                .map(|octets| Ipv4Addr::from(octets).into())
                .or_else(|_| {
                    <[u8; 16]>::try_from(*octets).map(|octets| Ipv6Addr::from(octets).into())
                })
                .ok(),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signed by an authority, with the addresses 10.244.1.226 and `fd00::1`; valid until 2126.
    const SIGNED: &str = include_str!("testdata/kubelet-server.pem");
    /// As the kubelet makes it: no address, and its own authority behind it.
    const SELF_SIGNED: &str = include_str!("testdata/kubelet.crt");

    fn moment(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_certificate_holds_addresses_or_not() {
        let [v4, v6, other] =
            ["10.244.1.226", "fd00::1", "10.244.3.60"].map(|text| text.parse::<IpAddr>().unwrap());
        let now = moment(1_800_000_000);
        let State::Holds { expires } = State::of(Some(SIGNED.as_bytes()), &[v4, v6], now) else {
            panic!("it holds both");
        };
        assert!(expires > now);
        for (contents, wanted, now, expected) in [
            (
                SIGNED,
                &[other, v6][..],
                now,
                State::Lacks {
                    missing: vec![other],
                    held: vec![v4, v6],
                },
            ),
            (
                SIGNED,
                &[v4],
                moment(9_000_000_000),
                State::Expired { expired: expires },
            ),
            (
                SELF_SIGNED,
                &[v4],
                now,
                State::SelfSigned { missing: vec![v4] },
            ),
            ("", &[v4], now, State::Unreadable),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                &[v4],
                now,
                State::Unreadable,
            ),
        ] {
            assert_eq!(State::of(Some(contents.as_bytes()), wanted, now), expected);
        }
        assert_eq!(State::of(None, &[v4], now), State::Missing);
    }

    #[test]
    fn only_a_good_one_needs_no_advice() {
        let missing = vec!["10.244.3.60".parse().unwrap()];
        let lacks = State::Lacks {
            missing: missing.clone(),
            held: Vec::new(),
        };
        for renewal in [Renewal::Rotated, Renewal::AtStart, Renewal::Never] {
            let holds = State::Holds {
                expires: UNIX_EPOCH,
            };
            assert_eq!(holds.advice(renewal), None);
            assert!(lacks.advice(renewal).unwrap().contains("10.244.3.60"));
            for state in [
                State::SelfSigned {
                    missing: missing.clone(),
                },
                State::Expired {
                    expired: UNIX_EPOCH,
                },
                State::Missing,
                State::Unreadable,
            ] {
                assert!(state.advice(renewal).is_some(), "{state:?}");
            }
        }
        assert!(
            lacks
                .advice(Renewal::Rotated)
                .unwrap()
                .contains("kubectl get csr")
        );
    }
}
