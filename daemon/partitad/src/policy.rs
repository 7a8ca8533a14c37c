//! Which policy the data plane decides by: from the command line and the configuration file, at the
//! start and again at every SIGHUP.
//!
//! A configuration that cannot hold changes nothing: at the start the daemon ends, later the policy
//! in force stays.

use crate::config_files::{ConfigFiles, ConfigText};
use crate::configuration::{ConfigContext, ConfigError, read_policy};
use crate::gpus::{Gpu, Gpus};
use crate::in_force::InForce;
use crate::link::AskError;
use crate::written::Written;
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
    #[error("{}: {source}: {}", file.display(), remedy(source))]
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

/// The error with the file and the line in which it is, where several files make one text.
fn located(
    error: PolicyError,
    files: Option<&ConfigFiles>,
    text: Option<&ConfigText>,
) -> PolicyError {
    match (error, files.zip(text)) {
        (PolicyError::Config(error), Some((files, text))) if files.paths().count() > 1 => {
            PolicyError::Config(Written::located(files, text, error))
        }
        (error, _) => error,
    }
}

/// What helps where a file of the configuration cannot be read.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => {
            "name the file that is there with --config; without --config the defaults hold"
        }
        io::ErrorKind::PermissionDenied => "let the user of partitad read it",
        io::ErrorKind::InvalidData => "write it as UTF-8",
        _ => "correct that, or name another file with --config",
    }
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
    /// after it. The answer is what the first GPU has. `in_force` hears the result.
    ///
    /// # Errors
    /// [`PolicyError`]; the policies in force stay.
    pub async fn apply(&self, gpus: &Gpus, in_force: &InForce) -> Result<GpuConfig, PolicyError> {
        match self.put_in_force(gpus).await {
            Ok((config, written)) => {
                in_force.read(written);
                Ok(config)
            }
            Err(error) => {
                in_force.refused(error.to_string());
                Err(error)
            }
        }
    }

    async fn put_in_force(&self, gpus: &Gpus) -> Result<(GpuConfig, Written), PolicyError> {
        let (source, all) = (self.clone(), gpus.clone());
        // Looking up users may ask a directory server.
        let loaded = tokio::task::spawn_blocking(move || source.load_all(&all)).await;
        let (loaded, written) =
            loaded.map_err(|error| PolicyError::Refused(error.to_string()))??;
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
        let first = loaded.into_iter().next().ok_or(PolicyError::Ask(AskError::Gone))?;
        Ok((first, written))
    }

    fn load_all(&self, gpus: &Gpus) -> Result<(Vec<GpuConfig>, Written), PolicyError> {
        let gpu_count = u16::try_from(gpus.all().len()).unwrap_or(u16::MAX);
        let files = self.files()?;
        let text = files.as_ref().map(ConfigFiles::text).transpose()?;
        let load = |gpu: &Gpu| {
            let facts = gpu.handle.state().facts.ok_or(AskError::Gone)?;
            let device = (facts.sm_count, facts.timekeeping);
            self.load(gpu.number, gpu_count, device, text.as_ref())
        };
        let loaded = gpus.all().iter().map(load).collect::<Result<_, _>>();
        let loaded = loaded.map_err(|error| located(error, files.as_ref(), text.as_ref()))?;
        let written = files.map(|files| Written::of(&files, &user_named)).unwrap_or_default();
        Ok((loaded, written))
    }

    fn files(&self) -> Result<Option<ConfigFiles>, PolicyError> {
        let read = self.file.as_deref().map(ConfigFiles::read).transpose();
        read.map_err(|(file, source)| PolicyError::Unreadable { file, source })
    }

    /// Checks the files without a GPU, for each of `gpu_count` GPUs, and names the files. How many
    /// SMs there are is not known, and not checked.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn check(&self, gpu_count: u16) -> Result<Vec<PathBuf>, PolicyError> {
        let files = self.files()?;
        let text = files.as_ref().map(ConfigFiles::text).transpose()?;
        for number in (0..gpu_count).map(GpuNumber) {
            self.load(number, gpu_count, (u16::MAX, Timekeeping::Real), text.as_ref())
                .map_err(|error| located(error, files.as_ref(), text.as_ref()))?;
        }
        let paths = files.iter().flat_map(ConfigFiles::paths);
        Ok(paths.map(Path::to_owned).collect())
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
                user: &user_named,
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

/// The user of this name, where there is one.
fn user_named(name: &str) -> Option<TenantId> {
    uzers::get_user_by_name(name).map(|user| TenantId(user.uid()))
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
