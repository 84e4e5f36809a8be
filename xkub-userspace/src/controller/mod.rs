//! The controller in the infra cluster: one file per reconciler, and the admission webhook.
//!
//! Every reconciler is level-triggered: it compares what is with what should be, and changes the difference. What
//! starts one is a watch, never a poll, so that a cluster in which nothing changes is asked nothing.

mod context;
pub mod record;
pub mod settings;

pub use self::{context::Context, record::Record, settings::Settings};
