//! The order at boot: the worker starts when the agent is ready, and not before.
//!
//! `Before=` in the agent's unit holds when both are started by the same boot. The drop-in is for a worker that is
//! started by hand or by cloud-init: it brings the agent with it. And before it starts, the agent looks once more:
//! what installs a worker (`k0s install worker`) writes its unit and its token a moment before.
//!
//! A worker that waits has no `Requires=`: systemd would stop the worker with every stop or upgrade of the agent,
//! and the datapath needs no agent to run. It looks once, before it starts; when it is refused it is started again
//! by its own `Restart=always`, which all workers have.

use super::{
    distribution::Distribution,
    file_change::FileChange,
    node_ip::{MODE, drop_in_path},
};

/// The agent's unit.
pub const AGENT_UNIT: &str = "xkub-agent.service";
/// The name of our drop-ins that say what comes first. Read before the one that carries the command line.
pub const DROP_IN: &str = "40-xkub-order.conf";

/// Whether a worker starts without a node address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It does, once the agent is ready or has failed to be.
    FailOpen,
    /// It waits for as long as it takes.
    FailClosed,
}

/// The drop-in of a worker. `binary` is where ours is installed.
#[must_use]
pub fn drop_in(distribution: Distribution, start: Start, binary: &str) -> FileChange {
    let head = format!(
        "# Written by xkub: the node's address is known and in place before the kubelet asks for it.\n\
         [Unit]\nWants={AGENT_UNIT}\nAfter={AGENT_UNIT}\n\n[Service]\n"
    );
    let wait = match start {
        Start::FailOpen => String::new(),
        Start::FailClosed => format!(
            "# Active means ready. Not Requires=, which would stop the worker with the agent.\n\
             ExecStartPre=/bin/systemctl is-active --quiet {AGENT_UNIT}\n"
        ),
    };
    let look = format!(
        "# The agent looks at what this worker was given to join with. Whatever comes of it, the worker starts.\n\
         ExecStartPre=-{binary} status --look --check live\n"
    );
    let unit = distribution.unit();
    FileChange::write(
        drop_in_path(unit, DROP_IN),
        head + &wait + &look,
        MODE,
        format!("{unit} starts after {AGENT_UNIT}"),
    )
}
