//! The agent: observe, plan, apply.

pub mod action;
pub mod observe;
pub mod plan;
