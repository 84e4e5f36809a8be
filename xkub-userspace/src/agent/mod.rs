//! The agent: observe, plan, apply.

pub mod action;
mod default_route;
mod kernel;
mod node_ports;
pub mod observe;
pub mod plan;
