//! The HTTP server of metrics and health: no more than three pages, on an address of the operator's choice.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use tokio::{net::TcpListener, task::spawn_blocking};
use tracing::warn;

use super::Metrics;
use crate::agent::status::Shared;

/// Of `OpenMetrics`.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
struct Pages {
    metrics: Arc<Metrics>,
    status: Shared,
}

/// Serves from now on.
///
/// # Errors
/// The address can't be listened at.
pub async fn serve(address: SocketAddr, metrics: Arc<Metrics>, status: Shared) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let router = router(Pages { metrics, status });
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            warn!(%error, "metrics and health are not served any more");
        }
    });
    Ok(())
}

fn router(pages: Pages) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(pages)
}

async fn metrics(State(pages): State<Pages>) -> impl IntoResponse {
    match spawn_blocking(move || pages.metrics.text()).await {
        Ok(text) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn healthz(State(pages): State<Pages>) -> (StatusCode, String) {
    if pages.status.get().live {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent's loop hangs\n".to_owned(),
        )
    }
}

async fn readyz(State(pages): State<Pages>) -> (StatusCode, String) {
    let status = pages.status.get();
    if status.ready {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let lines = status
        .problems
        .iter()
        .chain(&status.waiting)
        .chain(&status.pending);
    let text: String = lines.flat_map(|line| [line.as_str(), "\n"]).collect();
    (StatusCode::SERVICE_UNAVAILABLE, text)
}
