//! The reflector and its client: with a STUN client and server that others wrote, and with those who lie.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::runtime::Builder;
use xkub_tests::{
    Namespace,
    namespace::{Output, Running},
    wait::{PATIENCE, wait_for},
};
use xkub_userspace::address::{
    Family,
    reflector_client::{AskError, AskErrors, Seen, Server, Settings, Timing, ask},
    stun::{self, Answer, TransactionId},
};

const SERVER_V4: &str = "192.0.2.1";
/// On the same device: what the server's routes would not choose as a source.
const SECOND_V4: &str = "192.0.2.11";
const SERVER_V6: &str = "2001:db8::1";
const SECOND_V6: &str = "2001:db8::11";
const CLIENT_V4: &str = "192.0.2.2";
const OTHER_V4: &str = "192.0.2.22";
const CLIENT_V6: &str = "2001:db8::2";
const PORT: u16 = 3478;

const ID: TransactionId = TransactionId::from_random([7; 12]);

/// Two hosts on one wire, each with addresses of both families.
struct Wire {
    server: Namespace,
    client: Namespace,
}

impl Wire {
    fn new() -> Result<Self> {
        let (server, client) = (Namespace::new("server")?, Namespace::new("client")?);
        let pid = client.pid();
        server.ip(&format!(
            "link add eth0 type veth peer name eth0 netns {pid}\n\
             addr add {SERVER_V4}/24 dev eth0\naddr add {SECOND_V4}/24 dev eth0\n\
             addr add {SERVER_V6}/64 dev eth0 nodad\naddr add {SECOND_V6}/128 dev eth0 nodad preferred_lft 0\n\
             link set eth0 up\n"
        ))?;
        client.ip(&format!(
            "addr add {CLIENT_V4}/24 dev eth0\naddr add {OTHER_V4}/24 dev eth0\n\
             addr add {CLIENT_V6}/64 dev eth0 nodad\nlink set eth0 up\n"
        ))?;
        Ok(Self { server, client })
    }

    /// Starts our reflector, with its events as JSON.
    fn reflector(&self, arguments: &[&str]) -> Result<Running> {
        let binary = xkub_tests::xkub::binary()?;
        let binary = binary.to_string_lossy();
        let command = [binary.as_ref(), "reflector", "--output", "json"];
        let mut running = self.server.spawn([&command[..], arguments].concat())?;
        running.wait_output("listening", PATIENCE)?;
        Ok(running)
    }

    /// A socket of the client with an address of its own choice.
    fn socket(&self, address: &str) -> Result<UdpSocket> {
        let address: IpAddr = address.parse()?;
        let socket = self.client.within(|| UdpSocket::bind((address, 0)))??;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    /// Our client asks these servers, and is patient with the last request.
    fn ask(&self, servers: &[&str], family: Family) -> Result<Result<Seen, AskErrors>> {
        self.ask_waiting(u32::MAX, servers, family)
    }

    /// The same for servers that won't answer.
    fn ask_briefly(&self, servers: &[&str], family: Family) -> Result<Result<Seen, AskErrors>> {
        self.ask_waiting(1, servers, family)
    }

    fn ask_waiting(
        &self,
        last_wait: u32,
        servers: &[&str],
        family: Family,
    ) -> Result<Result<Seen, AskErrors>> {
        let settings = Settings {
            timing: Timing {
                first_pause: Duration::from_millis(50),
                requests: 5,
                last_wait,
                limit: PATIENCE,
            },
            uplink: Some("eth0".to_owned()),
        };
        let servers: Vec<Server> = servers
            .iter()
            .map(|server| Ok(server.parse()?))
            .collect::<Result<_>>()?;
        self.client.within(|| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(ask(&servers, family, &settings)))
        })?
    }
}

#[expect(clippy::unwrap_used, reason = "called by tests with constants")]
fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// What a datagram brings back.
fn exchange(socket: &UdpSocket, server: &str, datagram: &[u8]) -> Result<Vec<u8>> {
    socket.send_to(datagram, (address(server), PORT))?;
    let mut buffer = [0; 2048];
    let (length, from) = socket.recv_from(&mut buffer).context("no reply")?;
    assert_eq!(from, SocketAddr::new(address(server), PORT));
    Ok(buffer[..length].to_vec())
}

/// Ends a reflector as a service manager does, and reads what it counted.
fn stop(mut reflector: Running) -> Result<Value> {
    reflector.signal(Signal::SIGTERM)?;
    let text = reflector.wait(PATIENCE)?.success()?;
    let last = text.lines().last().context("no output")?;
    let event: Value = serde_json::from_str(last)?;
    assert_eq!(event["event"], "stopped", "{text}");
    Ok(event)
}

/// The STUN client of coturn, which has its own idea of the RFC.
fn turnutils(wire: &Wire, server: &str) -> Result<Output> {
    let port = PORT.to_string();
    wire.client
        .run(["turnutils_stunclient", "-p", &port, server])
}

#[test]
fn a_client_that_others_wrote_is_told_its_address() {
    let wire = Wire::new().unwrap();
    // Without --listen: both families.
    let reflector = wire.reflector(&[]).unwrap();
    for (server, client) in [(SERVER_V4, CLIENT_V4), (SERVER_V6, CLIENT_V6)] {
        let text = turnutils(&wire, server).unwrap().success().unwrap();
        // "UDP reflexive addr: 192.0.2.2:40000", "… 2001:db8::2:40000": of each test that it makes.
        let told: Vec<IpAddr> = text
            .lines()
            .filter_map(|line| line.split_once("reflexive addr: ")?.1.rsplit_once(':'))
            .map(|(address, _port)| address.parse().unwrap())
            .collect();
        assert!(!told.is_empty(), "{text}");
        assert!(told.iter().all(|&told| told == address(client)), "{text}");
    }
    let counts = stop(reflector).unwrap();
    assert!(counts["answered"].as_u64() >= Some(2), "{counts}");
}

#[test]
fn a_server_that_others_wrote_tells_us_ours() {
    let wire = Wire::new().unwrap();
    let port = PORT.to_string();
    let command = [
        "turnserver",
        "-n",
        "--stun-only",
        "--no-cli",
        "--no-tls",
        "--no-dtls",
        "--no-tcp",
        "--listening-ip",
        SERVER_V4,
        "--listening-ip",
        SERVER_V6,
        "--listening-port",
        &port,
        "--log-file",
        "stdout",
        "--pidfile",
        "/run/turnserver.pid",
        "--userdb",
        "/run/turndb",
    ];
    let mut server = wire.server.spawn(command).unwrap();
    for (at, family, expected) in [
        (SERVER_V4, Family::V4, CLIENT_V4),
        (SERVER_V6, Family::V6, CLIENT_V6),
    ] {
        let seen = wait_for("an answer of turnserver", PATIENCE, || {
            assert!(server.is_running()?, "{}", server.stdout());
            Ok(wire.ask(&[at], family)?.ok())
        })
        .unwrap();
        assert_eq!(seen.address, address(expected));
        assert_eq!(seen.server_address, SocketAddr::new(address(at), PORT));
    }
}

#[test]
fn ours_tells_ours_and_answers_from_where_it_was_asked() {
    let wire = Wire::new().unwrap();
    let reflector = wire.reflector(&[]).unwrap();
    for (server, family, expected) in [
        (SERVER_V4, Family::V4, CLIENT_V4),
        (SECOND_V4, Family::V4, CLIENT_V4),
        (SERVER_V6, Family::V6, CLIENT_V6),
        (SECOND_V6, Family::V6, CLIENT_V6),
    ] {
        // Each time from another port, which changes nothing.
        for _ in 0..2 {
            let seen = wire.ask(&[server], family).unwrap().unwrap();
            assert_eq!(seen.address, address(expected), "{server}");
        }
    }
    assert_eq!(stop(reflector).unwrap()["answered"], 8);
}

#[test]
fn one_server_of_several_is_enough() {
    let wire = Wire::new().unwrap();
    let listen = format!("{SERVER_V4}:{PORT}");
    let reflector = wire.reflector(&["--listen", &listen]).unwrap();
    // Nobody there, nobody listening, one of the other family, and the one.
    let servers = ["192.0.2.99", "192.0.2.1:9", SERVER_V6, SERVER_V4];
    let seen = wire.ask(&servers, Family::V4).unwrap().unwrap();
    assert_eq!(seen.address, address(CLIENT_V4));
    stop(reflector).unwrap();
    let AskErrors(errors) = wire.ask_briefly(&servers, Family::V4).unwrap().unwrap_err();
    assert_eq!(errors.len(), servers.len(), "{errors:?}");
    let refused = errors.iter().any(|error| {
        matches!(error, AskError::Unreachable { error, .. } if error.kind() == io::ErrorKind::ConnectionRefused)
    });
    assert!(refused, "{errors:?}");
}

/// A server with as many faces as a test needs: `behave` gets each request with its number and its sender.
fn fake(
    wire: &Wire,
    requests: usize,
    mut behave: impl FnMut(&UdpSocket, usize, &[u8], SocketAddr) + Send + 'static,
) -> Result<Fake> {
    let listen = (address(SERVER_V4), PORT);
    let socket = wire.server.within(|| UdpSocket::bind(listen))??;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(std::thread::spawn(move || {
        let mut seen = Vec::new();
        let mut buffer = [0; 2048];
        for number in 0..requests {
            let (length, from) = socket.recv_from(&mut buffer)?;
            behave(&socket, number, &buffer[..length], from);
            seen.push(buffer[..length].to_vec());
        }
        Ok(seen)
    }))
}

/// Gives the requests that came.
type Fake = std::thread::JoinHandle<io::Result<Vec<Vec<u8>>>>;

/// What an honest server would say to somebody at `address`.
#[expect(clippy::unwrap_used, reason = "called by tests with constants")]
fn honest(request: &[u8], address: &str) -> Vec<u8> {
    let address = address.parse().unwrap();
    stun::reply(request, address).unwrap().as_bytes().to_vec()
}

#[test]
fn lost_requests_and_answers_are_made_up_for() {
    let wire = Wire::new().unwrap();
    let server = fake(&wire, 4, |socket, number, request, from| {
        if number == 3 {
            socket
                .send_to(&honest(request, "10.244.1.226:1"), from)
                .unwrap();
        }
    })
    .unwrap();
    let seen = wire.ask(&[SERVER_V4], Family::V4).unwrap().unwrap();
    assert_eq!(seen.address, address("10.244.1.226"));
    // The same transaction, again and again.
    let requests = server.join().unwrap().unwrap();
    assert!(requests.iter().all(|request| *request == requests[0]));
    assert_eq!(requests[0].len(), stun::HEADER_LENGTH);
}

/// Everything that a liar can send who sees no transaction id, and some that one could who does.
fn lies(request: &[u8]) -> Vec<Vec<u8>> {
    let lie = honest(request, "10.66.6.6:1");
    let changed = |at: usize| {
        let mut changed = lie.clone();
        changed[at] ^= 1;
        changed
    };
    let mut fingerprint = [&lie[..], &[0x80, 0x28, 0, 4, 1, 2, 3, 4]].concat();
    fingerprint[3] += 8;
    vec![
        Vec::new(),
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        vec![0; 1500],
        // Another transaction; no cookie; another length; another method; a request.
        changed(19),
        changed(4),
        changed(3),
        changed(1),
        request.to_vec(),
        lie[..lie.len() - 4].to_vec(),
        fingerprint,
    ]
}

#[test]
fn lies_are_not_listened_to() {
    let wire = Wire::new().unwrap();
    // From the right address, but another port; and from another address.
    let elsewhere = [SERVER_V4, SECOND_V4].map(|from| {
        let from = (address(from), 0);
        wire.server
            .within(|| UdpSocket::bind(from))
            .unwrap()
            .unwrap()
    });
    let server = fake(&wire, 1, move |socket, _, request, from| {
        for liar in &elsewhere {
            liar.send_to(&honest(request, "10.66.6.6:1"), from).unwrap();
        }
        for lie in lies(request) {
            socket.send_to(&lie, from).unwrap();
        }
        socket
            .send_to(&honest(request, "10.244.1.226:1"), from)
            .unwrap();
    })
    .unwrap();
    let seen = wire.ask(&[SERVER_V4], Family::V4).unwrap().unwrap();
    assert_eq!(seen.address, address("10.244.1.226"));
    server.join().unwrap().unwrap();
}

#[test]
fn a_server_that_only_lies_is_silent_for_us() {
    let wire = Wire::new().unwrap();
    let server = fake(&wire, 5, |socket, _, request, from| {
        for lie in lies(request) {
            socket.send_to(&lie, from).unwrap();
        }
    })
    .unwrap();
    let error = wire
        .ask_briefly(&[SERVER_V4], Family::V4)
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(error.0[..], [AskError::Silent { requests: 5, .. }]),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("192.0.2.1:3478"), "{text}");
    server.join().unwrap().unwrap();
}

type Expected = fn(&AskError) -> bool;
type Answering = Box<dyn Fn(&[u8]) -> Vec<u8> + Send>;

#[test]
fn what_a_server_says_instead_of_an_address_is_passed_on() {
    let wire = Wire::new().unwrap();
    let header = |request: &[u8], kind: [u8; 2], length: u8| {
        [&kind[..], &[0, length], &request[4..20]].concat()
    };
    let answers: [(Expected, Answering); 3] = [
        (
            |error| matches!(error, AskError::Refused { code: 500, .. }),
            Box::new(move |request| {
                [
                    &header(request, [1, 0x11], 8)[..],
                    &[0, 9, 0, 4, 0, 0, 5, 0],
                ]
                .concat()
            }),
        ),
        (
            |error| matches!(error, AskError::Unusable { .. }),
            Box::new(move |request| header(request, [1, 1], 0)),
        ),
        (
            |error| {
                matches!(
                    error,
                    AskError::OtherFamily {
                        family: Family::V4,
                        ..
                    }
                )
            },
            Box::new(|request| honest(request, "[2001:db8::66]:1")),
        ),
    ];
    for (is_expected, answer) in answers {
        let server = fake(&wire, 1, move |socket, _, request, from| {
            socket.send_to(&answer(request), from).unwrap();
        })
        .unwrap();
        let AskErrors(errors) = wire.ask(&[SERVER_V4], Family::V4).unwrap().unwrap_err();
        assert!(
            matches!(&errors[..], [error] if is_expected(error)),
            "{errors:?}"
        );
        server.join().unwrap().unwrap();
    }
}

#[test]
fn one_source_is_limited_and_the_others_are_not() {
    const BURST: u64 = 5;
    const ASKED: u64 = 40;
    let wire = Wire::new().unwrap();
    let burst = BURST.to_string();
    let reflector = wire.reflector(&["--rate", "1", "--burst", &burst]).unwrap();
    let (greedy, modest) = (
        wire.socket(CLIENT_V4).unwrap(),
        wire.socket(OTHER_V4).unwrap(),
    );
    let start = Instant::now();
    for _ in 0..ASKED {
        greedy
            .send_to(&stun::request(ID), (address(SERVER_V4), PORT))
            .unwrap();
    }
    let answer = exchange(&modest, SERVER_V4, &stun::request(ID)).unwrap();
    assert!(matches!(
        stun::parse_answer(&answer, ID),
        Ok(Answer::Mapped(_))
    ));
    let counts = stop(reflector).unwrap();
    let count = |name: &str| counts[name].as_u64().unwrap();
    // Some of the greedy one's last requests may still have been on their way.
    assert!(
        count("answered") + count("limited") <= ASKED + 1,
        "{counts}"
    );
    assert!(count("limited") > 0, "{counts}");
    let may = BURST + start.elapsed().as_secs() + 1;
    assert!((1..=may).contains(&(count("answered") - 1)), "{counts}");
}

#[test]
fn it_is_no_amplifier() {
    let wire = Wire::new().unwrap();
    let reflector = wire.reflector(&[]).unwrap();
    let message = |attributes: &[u8]| {
        let length = u16::try_from(attributes.len()).unwrap().to_be_bytes();
        [&[0, 1], &length[..], &stun::request(ID)[4..], attributes].concat()
    };
    // One that is not known, many, and a large one that may be ignored.
    let many: Vec<u8> = (0..100).flat_map(|number| [0x70, number, 0, 0]).collect();
    let large = [&[0x80, 0x22, 4, 0][..], &[b'x'; 1024]].concat();
    let requests = [
        message(&[]),
        message(&[0x70, 1, 0, 0]),
        message(&many),
        message(&large),
    ];
    for (client, server, attribute) in [(CLIENT_V4, SERVER_V4, 12), (CLIENT_V6, SERVER_V6, 24)] {
        let socket = wire.socket(client).unwrap();
        for request in &requests {
            let reply = exchange(&socket, server, request).unwrap();
            assert!(reply.len() <= request.len() + attribute, "{reply:02x?}");
            // Neither an answer nor anything else is answered: what comes next is the reply to the next request.
            for lie in lies(request).iter().filter(|lie| *lie != request) {
                socket.send_to(lie, (address(server), PORT)).unwrap();
            }
            socket.send_to(&reply, (address(server), PORT)).unwrap();
            let plain = exchange(&socket, server, &stun::request(ID)).unwrap();
            assert!(matches!(
                stun::parse_answer(&plain, ID),
                Ok(Answer::Mapped(_))
            ));
        }
    }
    let counts = stop(reflector).unwrap();
    // Two families; the plain ones, and for each request one more.
    assert_eq!(counts["answered"], 2 * (2 + 4), "{counts}");
    assert_eq!(counts["unknownAttribute"], 2 * 2, "{counts}");
}

#[test]
fn bad_arguments_and_taken_ports_are_said() {
    let wire = Wire::new().unwrap();
    let binary = xkub_tests::xkub::binary().unwrap();
    let binary = binary.to_string_lossy();
    let run = |arguments: &[&str]| {
        let command = [binary.as_ref(), "reflector"];
        wire.server.run([&command[..], arguments].concat()).unwrap()
    };
    for bad in [["--listen", "3478"], ["--rate", "0"], ["--burst", "-1"]] {
        assert_eq!(run(&bad).code(), Some(2), "{bad:?}");
    }
    let _reflector = wire.reflector(&[]).unwrap();
    let taken = run(&["--listen", "0.0.0.0:3478"]);
    assert_eq!(taken.code(), Some(1), "{taken:?}");
    assert!(
        taken.stderr.contains("can't listen on UDP 0.0.0.0:3478: "),
        "{}",
        taken.stderr
    );
}

/// A host without IPv6 has a reflector of IPv4 alone.
#[test]
fn a_family_that_is_switched_off_is_left_out() {
    let wire = Wire::new().unwrap();
    wire.server
        .sysctl("net/ipv6/conf/all/disable_ipv6", "1")
        .unwrap();
    let reflector = wire.reflector(&[]).unwrap();
    let seen = wire.ask(&[SERVER_V4], Family::V4).unwrap().unwrap();
    assert_eq!(seen.address, address(CLIENT_V4));
    stop(reflector).unwrap();
}
