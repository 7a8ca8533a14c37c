//! Which policy the data plane decides by: from the command line and the configuration file, at the
//! start and again at every SIGHUP.
//!
//! A configuration that cannot hold changes nothing: at the start the daemon ends, later the policy
//! in force stays.

use crate::config_files::{ConfigFiles, ConfigText};
use crate::configuration::{ConfigContext, ConfigError, read_policy};
use crate::gpus::{Gpu, Gpus};
use crate::link::AskError;
use partita_model::{
    GpuConfig, GpuNumber, PartitionerKind, PolicyConfig, PolicyName, TenantId, Timekeeping,
};
use partita_wire::supervise::{Answer, Ask};
use std::io;
use std::path::{Path, PathBuf};

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
    #[error(
        "--policy static needs shares: write them as [[policy.share]] into the file that --config \
         names"
    )]
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
    pub named: Option<PolicyName>,
}

impl PolicySource {
    /// Reads the configuration and lets every GPU's data plane decide by it, and those that come
    /// after it. The answer is what the first GPU has.
    ///
    /// # Errors
    /// [`PolicyError`]; the policies in force stay.
    pub async fn apply(&self, gpus: &Gpus) -> Result<GpuConfig, PolicyError> {
        let (source, all) = (self.clone(), gpus.clone());
        // Looking up users may ask a directory server.
        let loaded = tokio::task::spawn_blocking(move || source.load_all(&all)).await;
        let loaded = loaded.map_err(|error| PolicyError::Refused(error.to_string()))??;
        for (index, (gpu, config)) in gpus.all().iter().zip(&loaded).enumerate() {
            if let Err(error) = decide_by(gpu, config).await {
                for earlier in &gpus.all()[..index] {
                    let before = earlier.policy.borrow().clone();
                    let Some(before) = before else { continue };
                    if let Err(error) = decide_by(earlier, &before).await {
                        tracing::error!(gpu = earlier.number.0, %error, "cannot go back to the \
                            policy in force");
                    }
                }
                return Err(error);
            }
        }
        for (gpu, config) in gpus.all().iter().zip(&loaded) {
            gpu.policy.send_replace(Some(config.clone()));
        }
        loaded.into_iter().next().ok_or(PolicyError::Ask(AskError::Gone))
    }

    fn load_all(&self, gpus: &Gpus) -> Result<Vec<GpuConfig>, PolicyError> {
        let gpu_count = u16::try_from(gpus.all().len()).unwrap_or(u16::MAX);
        let written = self.written()?;
        let load = |gpu: &Gpu| {
            let facts = gpu.handle.state().facts.ok_or(AskError::Gone)?;
            let device = (facts.sm_count, facts.timekeeping);
            self.load(gpu.number, gpu_count, device, written.as_ref())
        };
        gpus.all().iter().map(load).collect()
    }

    fn written(&self) -> Result<Option<ConfigText>, PolicyError> {
        let Some(file) = &self.file else { return Ok(None) };
        let files = ConfigFiles::read(file)
            .map_err(|(file, source)| PolicyError::Unreadable { file, source })?;
        Ok(Some(files.text()?))
    }

    /// Checks the files without a GPU, for each of `gpu_count` GPUs, and names the files. How many
    /// SMs there are is not known, and not checked.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn check(&self, gpu_count: u16) -> Result<Vec<PathBuf>, PolicyError> {
        let written = self.written()?;
        for number in (0..gpu_count).map(GpuNumber) {
            self.load(number, gpu_count, (u16::MAX, Timekeeping::Real), written.as_ref())?;
        }
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let files = ConfigFiles::read(file)
            .map_err(|(file, source)| PolicyError::Unreadable { file, source })?;
        Ok(files.paths().map(Path::to_owned).collect())
    }

    fn load(
        &self,
        gpu: GpuNumber,
        gpu_count: u16,
        (sm_count, timekeeping): (u16, Timekeeping),
        written: Option<&ConfigText>,
    ) -> Result<GpuConfig, PolicyError> {
        let written = match written {
            None => None,
            Some(ConfigText { name, text }) => read_policy(&ConfigContext {
                file: name,
                text,
                gpu,
                gpu_count,
                sm_count,
                user: &|name| uzers::get_user_by_name(name).map(|user| TenantId(user.uid())),
                user_exists: &|tenant| uzers::get_user_by_uid(tenant.0).is_some(),
            })?,
        };
        let mut config = written.unwrap_or_else(|| default_for(timekeeping));
        if let Some(PolicyName { selector, partitioner }) = self.named {
            config.policy.selector = selector.unwrap_or(config.policy.selector);
            let usual = || config.policy.selector.usual_partitioner();
            let partitioner = partitioner.unwrap_or_else(usual);
            if partitioner == PartitionerKind::Static && config.policy.shares.is_empty() {
                return Err(PolicyError::NoShares);
            }
            config.policy.partitioner = partitioner;
        }
        Ok(config)
    }
}

/// A data plane that already decides by this, under an earlier `partitad`, keeps what its policy
/// has measured.
async fn decide_by(gpu: &Gpu, config: &GpuConfig) -> Result<(), PolicyError> {
    let first = gpu.policy.borrow().is_none();
    let link = gpu.handle.state().link;
    if first && link.is_some_and(|link| link.config_found() == Some(config)) {
        return Ok(());
    }
    match gpu.handle.ask(Ask::Configure(config.clone())).await? {
        Answer::Done => Ok(()),
        Answer::Refused { detail, .. } => {
            Err(PolicyError::Refused(format!("{}: {detail}", gpu.number)))
        }
        other => Err(PolicyError::Refused(format!("partita-gpu answered {other:?}"))),
    }
}

/// CD-search; even shares where speeds cannot be compared because no time is kept.
fn default_for(timekeeping: Timekeeping) -> GpuConfig {
    let partitioner = match timekeeping {
        Timekeeping::Real | Timekeeping::Simulated => PartitionerKind::CdSearch,
        Timekeeping::Off => PartitionerKind::Even,
    };
    let policy = PolicyConfig { partitioner, ..PolicyConfig::default() };
    GpuConfig { policy, ..GpuConfig::default() }
}
