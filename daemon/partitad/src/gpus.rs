//! The GPUs of the daemon: for each, the link to its `partita-gpu` and its policy.

use crate::link::GpuHandle;
use partita_model::{GpuConfig, GpuNumber, TenantId};
use partita_wire::GpuOffer;
use std::sync::Arc;
use tokio::sync::watch;

/// One GPU.
#[derive(Debug)]
pub struct Gpu {
    /// Its number.
    pub number: GpuNumber,
    /// The link to its `partita-gpu`.
    pub handle: GpuHandle,
    /// The configuration of its `partita-gpu`, and of each that replaces it after a restart.
    pub policy: watch::Sender<Option<GpuConfig>>,
}

impl Gpu {
    /// Whether programs of a user may use it.
    #[must_use]
    pub fn admits(&self, tenant: TenantId) -> bool {
        let policy = self.policy.borrow();
        policy
            .as_ref()
            .and_then(|policy| policy.tenants.as_ref())
            .is_none_or(|those| those.contains(&tenant))
    }
}

/// All GPUs, in order of number, from 0; at least one.
#[derive(Clone, Debug)]
pub struct Gpus(Arc<[Gpu]>);

impl Gpus {
    /// The GPUs behind these links.
    #[must_use]
    pub fn new(lines: Vec<(GpuHandle, watch::Sender<Option<GpuConfig>>)>) -> Self {
        let gpus = (0..).zip(lines);
        Gpus(
            gpus.map(|(number, (handle, policy))| Gpu {
                number: GpuNumber(number),
                handle,
                policy,
            })
            .collect(),
        )
    }

    /// All GPUs.
    #[must_use]
    pub fn all(&self) -> &[Gpu] {
        &self.0
    }

    /// One GPU.
    #[must_use]
    pub fn get(&self, number: GpuNumber) -> Option<&Gpu> {
        self.0.get(usize::from(number.0))
    }

    /// The GPUs that programs of a user may use.
    pub fn admitting(&self, tenant: TenantId) -> impl Iterator<Item = &Gpu> {
        self.0.iter().filter(move |gpu| gpu.admits(tenant))
    }

    /// The same, as the offer to a program.
    #[must_use]
    pub fn offers(&self, tenant: TenantId) -> Vec<GpuOffer> {
        let offer =
            |gpu: &Gpu| Some(GpuOffer { number: gpu.number, facts: gpu.handle.state().facts? });
        self.admitting(tenant).filter_map(offer).collect()
    }
}
