//! The node agent in a guest of the namespace lab: started, asked, and run once.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tempfile::TempDir;

use crate::masquerade::Node;
use crate::namespace::{Output, Running};
use crate::wait::{PATIENCE, wait_for};
use crate::xkub;

/// An agent, or what would be one, with a folder of its own, where its configuration is empty.
#[derive(Debug)]
pub struct Agent<'a> {
    /// Where it runs.
    pub node: &'a Node,
    /// Its flags.
    pub arguments: Vec<String>,
    folder: TempDir,
}

impl<'a> Agent<'a> {
    /// One that has not started.
    ///
    /// # Errors
    /// When its folder can't be made.
    pub fn new<S: Into<String>>(
        node: &'a Node,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("config.toml"), "")?;
        Ok(Self {
            node,
            arguments: arguments.into_iter().map(Into::into).collect(),
            folder,
        })
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its state directory, which it makes itself.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.folder().join("state")
    }

    fn words(&self, more: &[&str]) -> Result<Vec<String>> {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let mut words = vec![
            path(&xkub::binary()?),
            "agent".to_owned(),
            format!("--config={}", path(&self.folder().join("config.toml"))),
            format!("--state-directory={}", path(&self.state())),
            "--observe-listen=127.0.0.1:9969".to_owned(),
        ];
        words.extend(self.arguments.iter().cloned());
        words.extend(more.iter().map(|word| (*word).to_owned()));
        Ok(words)
    }

    /// Starts it.
    ///
    /// # Errors
    /// When the binary can't be run.
    pub fn spawn(&self) -> Result<Running> {
        self.node.guest.spawn(self.words(&[])?)
    }

    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become so.
    pub fn start(&self) -> Result<Running> {
        let running = self.spawn()?;
        self.wait_status("the agent to be ready", |status| status["ready"] == true)
            .with_context(|| running.stderr())?;
        Ok(running)
    }

    /// Runs it once, with more flags.
    ///
    /// # Errors
    /// When the binary can't be run.
    pub fn once(&self, more: &[&str]) -> Result<Output> {
        let mut words = vec!["--once"];
        words.extend(more);
        self.node.guest.run(self.words(&words)?)
    }

    /// The plan that it would carry out.
    ///
    /// # Errors
    /// When it can't make one.
    pub fn plan(&self) -> Result<Value> {
        let text = self.once(&["--dry-run", "--output=json"])?.success()?;
        Ok(serde_json::from_str(&text)?)
    }

    /// What the running agent thinks; none before it answers.
    ///
    /// # Errors
    /// When its answer is no JSON.
    pub fn status(&self) -> Result<Option<Value>> {
        let state = self.state();
        let state = state.to_string_lossy();
        let arguments = ["status", "--output=json", "--state-directory", &state];
        match self.node.xkub(&arguments)?.success() {
            Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
            Err(_) => Ok(None),
        }
    }

    /// What the running agent thinks, once that is what it should.
    ///
    /// # Errors
    /// When it never is, with what it was last.
    pub fn wait_status(&self, what: &str, is_met: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = None;
        let found = wait_for(what, PATIENCE, || {
            last = self.status()?;
            Ok(last.clone().filter(&is_met))
        });
        found.with_context(|| last.unwrap_or_default().to_string())
    }
}
