//! How many requests a reflector answers: four sockets ask without a pause, each with several requests
//! under way. Prints answers per second of the clock, and per second of the server's processor time, which
//! is what one core can do when nobody else wants it.
#![expect(clippy::unwrap_used, reason = "a measurement that can't go on ends")]

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use xkub_tests::{Namespace, wait::PATIENCE};
use xkub_userspace::address::stun::{self, TransactionId};

/// How long it is measured.
const DURATION: Duration = Duration::from_secs(5);
/// How many ask at the same time, each from an address of its own.
const CLIENTS: u8 = 4;
/// Requests under way per client: those of all fit the server's receive queue.
const UNDER_WAY: usize = 32;
const PORT: u16 = 3478;

fn main() {
    let namespace = Namespace::new("reflector").unwrap();
    let binary = xkub_tests::xkub::binary().unwrap();
    let binary = binary.to_string_lossy();
    let no_limit = u32::MAX.to_string();
    let command = [
        binary.as_ref(),
        "reflector",
        "--rate",
        &no_limit,
        "--burst",
        &no_limit,
    ];
    let mut reflector = namespace.spawn(command).unwrap();
    reflector.wait_output("listening", PATIENCE).unwrap();
    let sockets: Vec<UdpSocket> = (1..=CLIENTS)
        .map(|number| {
            let address = (Ipv4Addr::new(127, 0, 1, number), 0);
            let socket = namespace.within(|| UdpSocket::bind(address)).unwrap();
            let socket = socket.unwrap();
            socket.connect((Ipv4Addr::LOCALHOST, PORT)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
        .collect();

    let before = processor_seconds(reflector.pid());
    let start = Instant::now();
    let mut answers = 0_u32;
    while start.elapsed() < DURATION {
        answers += std::thread::scope(|scope| {
            let clients: Vec<_> = sockets
                .iter()
                .map(|socket| scope.spawn(move || rounds(socket)))
                .collect();
            clients
                .into_iter()
                .map(|client| client.join().unwrap())
                .sum::<u32>()
        });
    }
    let clock = start.elapsed().as_secs_f64();
    let processor = processor_seconds(reflector.pid()) - before;
    reflector.signal(Signal::SIGTERM).unwrap();
    let output = reflector.wait(PATIENCE).unwrap().success().unwrap();
    let answers = f64::from(answers);
    println!(
        "{answers} answers in {clock:.2} s: {:.0} per second",
        answers / clock
    );
    println!(
        "{processor:.2} s of processor time: {:.0} per second of one core",
        answers / processor
    );
    print!("{output}");
}

/// Some rounds of requests and their answers.
fn rounds(socket: &UdpSocket) -> u32 {
    const ROUNDS: usize = 100;
    let request = stun::request(TransactionId::from_random([7; 12]));
    let mut buffer = [0; stun::MAX_REPLY];
    let mut answers = 0;
    for _ in 0..ROUNDS {
        for _ in 0..UNDER_WAY {
            socket.send(&request).unwrap();
        }
        for _ in 0..UNDER_WAY {
            socket.recv(&mut buffer).unwrap();
            answers += 1;
        }
    }
    answers
}

/// Time that a process of one thread has had so far, in seconds (Linux, `Documentation/scheduler/sched-stats.rst`).
fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    let nanoseconds = text.split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(nanoseconds).as_secs_f64()
}
