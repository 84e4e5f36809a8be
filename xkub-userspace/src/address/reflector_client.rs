//! Asking reflectors which address they see: the client's side of a STUN Binding (RFC 8489 §6.2.1).

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use serde::Serialize;
use thiserror::Error;
use tokio::{
    net::{UdpSocket, lookup_host},
    time::{Instant, sleep, timeout_at},
};

use super::{
    Family,
    stun::{self, Answer, StunError, TransactionId},
};

/// How many addresses of one name and family are tried. More than that is no list of servers.
const MAX_ADDRESSES: usize = 8;

/// A reflector: a name or an address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    host: String,
    port: u16,
}

/// A text that is no server.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is no reflector; say NAME, ADDRESS or [IPV6-ADDRESS], with :PORT unless it is 3478")]
pub struct NotAServer(pub String);

impl FromStr for Server {
    type Err = NotAServer;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || NotAServer(text.to_owned());
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self {
                host: address.to_string(),
                port: stun::PORT,
            });
        }
        let (host, port) = match text.rsplit_once(':') {
            // The last group of an address in brackets is none.
            Some((host, port)) if !port.ends_with(']') => {
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                let port = port.parse().ok().filter(|&port| digits && port != 0);
                (host, port.ok_or_else(error)?)
            }
            _ => (text, stun::PORT),
        };
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_host = bracketed.map_or_else(
            || is_name(host),
            |address| address.parse::<Ipv6Addr>().is_ok(),
        );
        is_host
            .then(|| Self {
                host: bracketed.unwrap_or(host).to_owned(),
                port,
            })
            .ok_or_else(error)
    }
}

/// Whether a text can be a host's name (RFC 1123 §2.1; underscores occur) or an IPv4 address.
fn is_name(host: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=253).contains(&host.len()) && host.bytes().all(is_part) && !host.starts_with(['.', '-'])
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(formatter, "[{host}]:{port}")
        } else {
            write!(formatter, "{host}:{port}")
        }
    }
}

impl Serialize for Server {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// When a request is sent again, and when an answer is no longer waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// RTO: the first pause. Each one after it is twice as long.
    pub first_pause: Duration,
    /// Rc: how many requests are sent.
    pub requests: u32,
    /// Rm: the wait after the last request, in RTOs.
    pub last_wait: u32,
    /// The end of everything, names included.
    pub limit: Duration,
}

impl Default for Timing {
    /// RFC 8489 §6.2.1: after 39.5 s it is over.
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(500),
            requests: 7,
            last_wait: 16,
            limit: Duration::from_millis(39_500),
        }
    }
}

impl Timing {
    /// The default, but for an end that comes sooner.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// For each request: how long after the first one its answer is waited for before the next step.
    fn waits(self) -> impl Iterator<Item = Duration> {
        let Self {
            first_pause,
            requests,
            last_wait,
            limit,
        } = self;
        let mut pause = first_pause;
        let mut end = Duration::ZERO;
        (1..=requests)
            .map(move |number| {
                let wait = if number == requests {
                    first_pause.saturating_mul(last_wait)
                } else {
                    pause
                };
                end = end.saturating_add(wait);
                pause = pause.saturating_mul(2);
                end.min(limit)
            })
            // What would be sent after the end is not sent.
            .scan(Duration::ZERO, move |before, end| {
                let sent = std::mem::replace(before, end);
                (sent < limit).then_some(end)
            })
    }
}

/// How to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// When to send.
    pub timing: Timing,
    /// The interface that questions leave by. A question that went through an overlay instead would be answered with
    /// the overlay's address. None is whatever routes say.
    pub uplink: Option<String>,
}

/// What a reflector said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// The address that it saw. Its family is the one that was asked for.
    pub address: IpAddr,
    /// Who saw it.
    pub server: Server,
    /// Where that is.
    pub server_address: SocketAddr,
}

/// Why one reflector told nothing.
#[derive(Debug, Error)]
pub enum AskError {
    /// Its name has no address.
    #[error("reflector {server} can't be resolved: {error}")]
    Resolve {
        /// Who was to be asked.
        server: Server,
        /// The resolver's answer.
        error: io::Error,
    },
    /// It has addresses, but none of the family that was asked for.
    #[error("reflector {server} has no {family} address")]
    NoAddress {
        /// Who was to be asked.
        server: Server,
        /// For what.
        family: Family,
    },
    /// There is no socket, or no random bits for a transaction.
    #[error("reflector {server} can't be asked: {error}")]
    Prepare {
        /// Who was to be asked.
        server: Server,
        /// The system's answer.
        error: io::Error,
    },
    /// The system or the network says that it can't be reached.
    #[error("reflector {server} can't be reached at {address}: {error}")]
    Unreachable {
        /// Who was asked.
        server: Server,
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// No answer.
    #[error(
        "reflector {server} at {address} has answered none of {requests} requests; is it running, and is UDP to \
         it allowed?"
    )]
    Silent {
        /// Who was asked.
        server: Server,
        /// Where.
        address: SocketAddr,
        /// How often.
        requests: usize,
    },
    /// It answered with an error.
    #[error("reflector {server} at {address} refuses to answer: STUN error {code}")]
    Refused {
        /// Who was asked.
        server: Server,
        /// Where.
        address: SocketAddr,
        /// RFC 8489 §14.8.
        code: u16,
    },
    /// It answered with nothing that can be used.
    #[error("the answer of reflector {server} at {address} can't be used: {error}")]
    Unusable {
        /// Who was asked.
        server: Server,
        /// Where.
        address: SocketAddr,
        /// What is wrong with it.
        error: StunError,
    },
    /// It saw an address of another family: a translator between the families is on the way.
    #[error(
        "reflector {server} at {address} sees {seen}, though it was asked over {family}: something between translates"
    )]
    OtherFamily {
        /// Who was asked.
        server: Server,
        /// Where.
        address: SocketAddr,
        /// How it was asked.
        family: Family,
        /// What it saw.
        seen: IpAddr,
    },
}

/// Why no reflector told anything: an error for each address of each one; none at all if nobody was to be asked.
#[derive(Debug, Error)]
pub struct AskErrors(pub Vec<AskError>);

impl fmt::Display for AskErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else {
            return formatter.write_str("there is no reflector to ask");
        };
        write!(formatter, "{first}")?;
        others
            .iter()
            .try_for_each(|error| write!(formatter, "; {error}"))
    }
}

/// Asks reflectors which address of `family` they see, and takes the first valid answer. The next one in the list is
/// asked, too, as soon as all before it have failed or have been silent for the first pause; those go on.
///
/// # Errors
/// [`AskErrors`], after `settings.timing.limit` at the latest.
pub async fn ask(
    servers: &[Server],
    family: Family,
    settings: &Settings,
) -> Result<Seen, AskErrors> {
    let question = Question {
        family,
        settings,
        end: Instant::now() + settings.timing.limit,
    };
    let questions = servers.iter().map(|server| question.ask_server(server));
    staggered(questions, settings.timing.first_pause).await
}

#[derive(Clone, Copy)]
struct Question<'a> {
    family: Family,
    settings: &'a Settings,
    end: Instant,
}

impl Question<'_> {
    async fn ask_server(self, server: &Server) -> Result<Seen, AskErrors> {
        let addresses = self.resolve(server).await.map_err(AskErrors::from)?;
        let questions = addresses.into_iter().map(|address| async move {
            self.ask_address(server, address)
                .await
                .map_err(AskErrors::from)
        });
        staggered(questions, self.settings.timing.first_pause).await
    }

    async fn resolve(self, server: &Server) -> Result<Vec<SocketAddr>, AskError> {
        let name = (server.host.as_str(), server.port);
        let addresses = match timeout_at(self.end, lookup_host(name)).await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => {
                return Err(AskError::Resolve {
                    server: server.clone(),
                    error,
                });
            }
            Err(_) => {
                return Err(AskError::Resolve {
                    server: server.clone(),
                    error: io::ErrorKind::TimedOut.into(),
                });
            }
        };
        let addresses: Vec<SocketAddr> = addresses
            .filter(|address| Family::of(address.ip()) == self.family)
            .take(MAX_ADDRESSES)
            .collect();
        if addresses.is_empty() {
            return Err(AskError::NoAddress {
                server: server.clone(),
                family: self.family,
            });
        }
        Ok(addresses)
    }

    /// One transaction. Its socket is connected: the kernel drops what others send, and tells of ICMP errors.
    async fn ask_address(self, server: &Server, address: SocketAddr) -> Result<Seen, AskError> {
        let Self {
            family,
            settings: Settings { timing, uplink },
            end,
        } = self;
        let prepare = |error| AskError::Prepare {
            server: server.clone(),
            error,
        };
        let unreachable = |error| AskError::Unreachable {
            server: server.clone(),
            address,
            error,
        };
        let socket = socket(family, uplink.as_deref()).await.map_err(prepare)?;
        socket.connect(address).await.map_err(unreachable)?;
        let mut bits = [0; 12];
        getrandom::fill(&mut bits).map_err(|error| prepare(error.into()))?;
        let id = TransactionId::from_random(bits);
        let request = stun::request(id);
        let mut buffer = [0; stun::MAX_DATAGRAM];
        let mut requests = 0;
        let start = Instant::now();
        for wait in timing.waits() {
            if Instant::now() >= end {
                break;
            }
            socket.send(&request).await.map_err(unreachable)?;
            requests += 1;
            let until = end.min(start + wait);
            // Looked at in between: who sends without a pause must not keep us here.
            while Instant::now() < until {
                let Ok(received) = timeout_at(until, socket.recv(&mut buffer)).await else {
                    break;
                };
                let length = received.map_err(unreachable)?;
                let datagram = buffer.get(..length).unwrap_or_default();
                match stun::parse_answer(datagram, id) {
                    Ok(Answer::Mapped(seen)) => return self.seen(server, address, seen.ip()),
                    Ok(Answer::Refused(code)) => {
                        return Err(AskError::Refused {
                            server: server.clone(),
                            address,
                            code,
                        });
                    }
                    Err(error @ (StunError::UnknownAttribute(_) | StunError::NoAddress)) => {
                        return Err(AskError::Unusable {
                            server: server.clone(),
                            address,
                            error,
                        });
                    }
                    // Not ours; the answer may still come.
                    Err(_) => {}
                }
            }
        }
        Err(AskError::Silent {
            server: server.clone(),
            address,
            requests,
        })
    }

    fn seen(self, server: &Server, address: SocketAddr, seen: IpAddr) -> Result<Seen, AskError> {
        let seen = seen.to_canonical();
        if Family::of(seen) != self.family {
            return Err(AskError::OtherFamily {
                server: server.clone(),
                address,
                family: self.family,
                seen,
            });
        }
        Ok(Seen {
            address: seen,
            server: server.clone(),
            server_address: address,
        })
    }
}

impl From<AskError> for AskErrors {
    fn from(error: AskError) -> Self {
        Self(vec![error])
    }
}

/// A socket with any port: the answer holds whatever port a translator gave it, and that means nothing.
async fn socket(family: Family, uplink: Option<&str>) -> io::Result<UdpSocket> {
    let unspecified = match family {
        Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((unspecified, 0)).await?;
    if let Some(uplink) = uplink {
        socket.bind_device(Some(uplink.as_bytes()))?;
    }
    Ok(socket)
}

/// Starts one after the other, the next one `pause` after the last or as soon as all that were started have failed,
/// and takes the first success.
async fn staggered<T>(
    questions: impl Iterator<Item = impl Future<Output = Result<T, AskErrors>>>,
    pause: Duration,
) -> Result<T, AskErrors> {
    let mut questions = questions.fuse();
    let mut asked = FuturesUnordered::new();
    let mut errors = Vec::new();
    loop {
        let is_last = match questions.next() {
            Some(question) => {
                asked.push(question);
                false
            }
            None => true,
        };
        let mut pause = std::pin::pin!(sleep(pause));
        loop {
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    Some(Ok(answer)) => return Ok(answer),
                    Some(Err(AskErrors(more))) => errors.extend(more),
                    None if is_last => return Err(AskErrors(errors)),
                    None => break,
                },
                () = &mut pause, if !is_last => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn servers_are_read_as_they_are_written() {
        for (text, host, written) in [
            (
                "stun.infra.example",
                "stun.infra.example",
                "stun.infra.example:3478",
            ),
            ("stun:19302", "stun", "stun:19302"),
            ("10.0.0.1", "10.0.0.1", "10.0.0.1:3478"),
            ("10.0.0.1:1", "10.0.0.1", "10.0.0.1:1"),
            ("fd00::1", "fd00::1", "[fd00::1]:3478"),
            ("[fd00::1]", "fd00::1", "[fd00::1]:3478"),
            ("[fd00::1]:65535", "fd00::1", "[fd00::1]:65535"),
        ] {
            let server: Server = text.parse().unwrap();
            assert_eq!(server.host, host);
            assert_eq!(server.to_string(), written);
            assert_eq!(written.parse(), Ok(server));
        }
        for text in [
            "",
            ":",
            ":3478",
            "stun:",
            "stun:0",
            "stun:65536",
            "stun:+1",
            "a b",
            "[stun]:1",
            "[fd00::1",
            "fd00::1]:1",
            "fd00::x",
            "stun://a",
            "-a",
            "ä",
        ] {
            assert_eq!(
                text.parse::<Server>(),
                Err(NotAServer(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn requests_are_sent_when_rfc_8489_says() {
        let millis =
            |timing: Timing| -> Vec<u128> { timing.waits().map(|wait| wait.as_millis()).collect() };
        // "0 ms, 500 ms, 1500 ms, 3500 ms, 7500 ms, 15500 ms, and 31500 ms … after 39500 ms": each wait ends where
        // the next request is sent.
        assert_eq!(
            millis(Timing::default()),
            [500, 1500, 3500, 7500, 15_500, 31_500, 39_500]
        );
        assert_eq!(
            millis(Timing::within(Duration::from_secs(4))),
            [500, 1500, 3500, 4000]
        );
        assert_eq!(
            millis(Timing::within(Duration::from_millis(1500))),
            [500, 1500]
        );
        assert!(millis(Timing::within(Duration::ZERO)).is_empty());
        let extreme = Timing {
            first_pause: Duration::MAX,
            ..Timing::default()
        };
        assert_eq!(millis(extreme), [39_500]);
    }

    fn failure(code: u16) -> AskErrors {
        let server: Server = "fake".parse().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, code));
        AskErrors::from(AskError::Refused {
            server,
            address,
            code,
        })
    }

    #[test]
    fn the_next_is_asked_when_those_before_fail_or_are_silent() {
        type Boxed = std::pin::Pin<Box<dyn Future<Output = Result<u16, AskErrors>>>>;
        let silent = || -> Boxed { Box::pin(pending()) };
        let fails = |code| -> Boxed { Box::pin(ready(Err(failure(code)))) };
        let tells = |code| -> Boxed { Box::pin(ready(Ok(code))) };
        // An hour would be noticed: a failure alone makes the next one start.
        let hour = Duration::from_secs(60 * 60);
        for (questions, pause, expected) in [
            (vec![tells(1), tells(2)], hour, Ok(1)),
            (vec![fails(500), tells(2)], hour, Ok(2)),
            (vec![silent(), tells(2)], Duration::ZERO, Ok(2)),
            (vec![silent(), fails(500), tells(3)], Duration::ZERO, Ok(3)),
            (vec![fails(500), fails(501)], hour, Err(2)),
            (vec![], hour, Err(0)),
        ] {
            let outcome = runtime().block_on(staggered(questions.into_iter(), pause));
            assert_eq!(outcome.map_err(|AskErrors(errors)| errors.len()), expected);
        }
    }

    #[test]
    fn what_went_wrong_is_said_of_each() {
        let AskErrors(mut errors) = failure(500);
        errors.push(AskError::NoAddress {
            server: "other".parse().unwrap(),
            family: Family::V6,
        });
        assert_eq!(
            AskErrors(errors).to_string(),
            "reflector fake:3478 at 127.0.0.1:500 refuses to answer: STUN error 500; \
             reflector other:3478 has no IPv6 address"
        );
        let nobody = runtime().block_on(ask(&[], Family::V4, &Settings::default()));
        assert_eq!(
            nobody.unwrap_err().to_string(),
            "there is no reflector to ask"
        );
    }

    #[test]
    fn an_address_has_one_family() {
        let server = ["10.0.0.1".parse().unwrap()];
        let outcome = runtime().block_on(ask(&server, Family::V6, &Settings::default()));
        assert!(matches!(
            outcome.unwrap_err().0[..],
            [AskError::NoAddress {
                family: Family::V6,
                ..
            }]
        ));
    }
}
