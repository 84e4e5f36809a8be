//! `xkub reflector`: the STUN server for the infra cluster.

use std::{net::SocketAddr, num::NonZeroU32};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tokio::{
    runtime::Builder,
    select,
    signal::unix::{SignalKind, signal},
};
use xkub_userspace::address::{
    limit::Rate,
    reflector::{Counts, Reflector},
};

use super::output::{Format, print_next};

/// Arguments of `xkub reflector`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to listen, UDP; may be repeated. Without it, port 3478 of all addresses of both families
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        value_delimiter = ',',
        env = "XKUB_REFLECTOR_LISTEN"
    )]
    listen: Vec<SocketAddr>,
    /// How many requests of one source address are answered per second
    #[arg(
        long,
        value_name = "N",
        default_value = "10",
        env = "XKUB_REFLECTOR_RATE"
    )]
    rate: NonZeroU32,
    /// How many requests of one source address are answered at once
    #[arg(
        long,
        value_name = "N",
        default_value = "50",
        env = "XKUB_REFLECTOR_BURST"
    )]
    burst: NonZeroU32,
}

/// What is printed: that it listens, and at its end what it did.
#[derive(Debug, Serialize)]
#[serde(
    tag = "event",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
enum Event {
    Listening {
        addresses: Vec<SocketAddr>,
    },
    Stopped {
        #[serde(flatten)]
        counts: Counts,
    },
}

/// Answers until SIGTERM or SIGINT.
pub fn run(arguments: &Arguments, format: Format) -> anyhow::Result<()> {
    let Arguments {
        listen,
        rate,
        burst,
    } = arguments;
    let rate = Rate {
        per_second: *rate,
        burst: *burst,
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("there is no runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let reflector = Reflector::bind(listen, rate)?;
        print_event(
            format,
            &Event::Listening {
                addresses: reflector.addresses(),
            },
        )?;
        select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            broken = reflector.serve() => match broken? {},
        }
        print_event(
            format,
            &Event::Stopped {
                counts: reflector.counts(),
            },
        )
    })
}

fn print_event(format: Format, event: &Event) -> anyhow::Result<()> {
    print_next(format, "ReflectorEvent", event, event_text)
}

fn event_text(event: &Event) -> String {
    match event {
        Event::Listening { addresses } => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            format!("listening on UDP {}\n", addresses.join(", "))
        }
        Event::Stopped {
            counts:
                Counts {
                    answered,
                    unknown_attribute,
                    limited,
                    ignored,
                    unsent,
                },
        } => format!(
            "stopped: {answered} answered, {unknown_attribute} with unknown attributes, {limited} over the limit, \
             {ignored} no requests, {unsent} not sent\n"
        ),
    }
}
