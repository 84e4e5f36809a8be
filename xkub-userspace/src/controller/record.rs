//! What a reconciler did or refused, said in three places: the log, an Event on the object, and a metric.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tracing::{info, warn};

use super::settings::Reconciler;

/// The name that Events and field managers carry.
pub const CONTROLLER: &str = "xkub-controller";

/// Names and values.
type Labels = [(&'static str, &'static str); 2];

/// How it ended for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was changed; in a dry run, it would have been.
    Changed,
    /// It is wrong and was left alone.
    Refused,
    /// Someone else or the network was in the way; it is tried again.
    Failed,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Says what was done.
pub struct Record {
    recorder: Recorder,
    dry_run: bool,
    outcomes: Family<Labels, Counter>,
}

impl Record {
    /// Events go to the infra cluster that `client` leads to; none in a dry run, which changes nothing.
    #[must_use]
    pub fn new(client: Client, dry_run: bool) -> Self {
        Self {
            recorder: Recorder::new(client, Reporter::from(CONTROLLER)),
            dry_run,
            outcomes: Family::default(),
        }
    }

    /// The metrics of what was done, into `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "controller_outcomes",
            "What reconcilers did to objects, by reconciler and result",
            self.outcomes.clone(),
        );
    }

    /// What `reconciler` did to `object` in the infra cluster; `reason` is a word of an Event such as
    /// `JoinEndpointWritten`, `note` a sentence without secrets.
    ///
    /// That an Event can't be written is said in the log: it must not keep a reconciler from its work.
    pub async fn say(
        &self,
        reconciler: Reconciler,
        outcome: Outcome,
        object: &ObjectReference,
        reason: &str,
        note: &str,
    ) {
        self.outcomes
            .get_or_create(&[
                ("reconciler", reconciler.name()),
                ("result", outcome.label()),
            ])
            .inc();
        let kind = object.kind.as_deref().unwrap_or_default();
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let name = object.name.as_deref().unwrap_or_default();
        let dry_run = self.dry_run;
        match outcome {
            Outcome::Changed => {
                info!(
                    reconciler = reconciler.name(),
                    kind, namespace, name, reason, dry_run, "{note}"
                );
            }
            Outcome::Refused | Outcome::Failed => {
                warn!(
                    reconciler = reconciler.name(),
                    kind, namespace, name, reason, dry_run, "{note}"
                );
            }
        }
        if dry_run {
            return;
        }
        let event = Event {
            type_: match outcome {
                Outcome::Changed => EventType::Normal,
                Outcome::Refused | Outcome::Failed => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: Some(note.to_owned()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, object).await {
            warn!(
                kind,
                namespace,
                name,
                error = &error as &dyn std::error::Error,
                "an Event could not be written"
            );
        }
    }
}
