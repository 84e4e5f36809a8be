//! Metrics, health and status.
