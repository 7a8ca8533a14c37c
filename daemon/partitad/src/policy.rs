//! Which policy the data plane decides by: from the command line and the configuration file, at the start and again at
//! every SIGHUP.
//!
//! A configuration that cannot hold changes nothing: at the start the daemon ends, later the policy in force stays.

use crate::link::{AskError, GpuHandle};
use partita_model::{DeviceFacts, PartitionerKind, PolicyConfig, TenantId, Timekeeping};
use partita_policy::{ConfigContext, ConfigError, read_policy};
use partita_wire::supervise::{Answer, Ask};
use std::io;
use std::path::PathBuf;
use tokio::sync::watch;

/// Why a policy is not taken.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The file is at fault.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Shares cannot be given on the command line.
    #[error("--policy static needs shares: write them as [[policy.share]] into the file that --config names")]
    NoShares,
    /// The data plane cannot decide by it.
    #[error("this policy cannot hold here: {0}")]
    Refused(String),
    /// The data plane does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
}

/// Where the policy comes from.
#[derive(Clone, Debug)]
pub struct PolicySource {
    /// The configuration file, if one is named.
    pub file: Option<PathBuf>,
    /// What the command line says, which goes before the file.
    pub partitioner: Option<PartitionerKind>,
}

impl PolicySource {
    /// Reads the configuration and lets the data plane decide by it. `chosen` is what the next data plane gets too.
    ///
    /// # Errors
    /// [`PolicyError`]; the policy in force stays.
    pub async fn apply(
        &self,
        gpu: &GpuHandle,
        chosen: &watch::Sender<Option<PolicyConfig>>,
    ) -> Result<PolicyConfig, PolicyError> {
        let facts = gpu.state().facts.ok_or(AskError::Gone)?;
        let source = self.clone();
        // Looking up users may ask a directory server.
        let config = tokio::task::spawn_blocking(move || source.load(&facts)).await;
        let config = config.map_err(|error| PolicyError::Refused(error.to_string()))??;
        match gpu.ask(Ask::SetPolicy(config.clone())).await? {
            Answer::Done => {
                chosen.send_replace(Some(config.clone()));
                Ok(config)
            }
            Answer::Refused { detail, .. } => Err(PolicyError::Refused(detail)),
            other => Err(PolicyError::Refused(format!("partita-gpu answered {other:?}"))),
        }
    }

    fn load(&self, facts: &DeviceFacts) -> Result<PolicyConfig, PolicyError> {
        let written = match &self.file {
            None => None,
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|source| PolicyError::Unreadable { file: file.clone(), source })?;
                read_policy(&ConfigContext {
                    file: &file.display().to_string(),
                    text: &text,
                    sm_count: facts.sm_count,
                    user: &|name| uzers::get_user_by_name(name).map(|user| TenantId(user.uid())),
                    user_exists: &|tenant| uzers::get_user_by_uid(tenant.0).is_some(),
                })?
            }
        };
        let mut config = written.unwrap_or_else(|| default_for(facts));
        if let Some(partitioner) = self.partitioner {
            if partitioner == PartitionerKind::Static && config.shares.is_empty() {
                return Err(PolicyError::NoShares);
            }
            config.partitioner = partitioner;
        }
        Ok(config)
    }
}

/// CD-search; even shares where speeds cannot be compared because no time is kept.
fn default_for(facts: &DeviceFacts) -> PolicyConfig {
    let partitioner = match facts.timekeeping {
        Timekeeping::Real | Timekeeping::Simulated => PartitionerKind::CdSearch,
        Timekeeping::Off => PartitionerKind::Even,
    };
    PolicyConfig { partitioner, ..PolicyConfig::default() }
}
