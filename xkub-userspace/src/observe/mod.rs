//! Metrics and health, over HTTP: `/metrics`, `/healthz`, `/readyz`.

pub mod metrics;
mod server;

pub use self::{metrics::Metrics, server::serve};
