//! The agent: observe, plan, apply.
