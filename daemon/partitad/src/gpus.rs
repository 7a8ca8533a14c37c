//! The GPUs of the daemon: for each the line to its `partita-gpu` and the policy that it decides
//! by.

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
    /// The line to its `partita-gpu`.
    pub handle: GpuHandle,
    /// What its `partita-gpu` decides by, this one and those that come after it.
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

/// All GPUs, in order of number, from 0. There is one at least.
#[derive(Clone, Debug)]
pub struct Gpus(Arc<[Gpu]>);

impl Gpus {
    /// The GPUs behind these lines.
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

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Gpu] {
        &self.0
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, number: GpuNumber) -> Option<&Gpu> {
        self.0.get(usize::from(number.0))
    }

    /// Those that programs of a user may use.
    pub fn admitting(&self, tenant: TenantId) -> impl Iterator<Item = &Gpu> {
        self.0.iter().filter(move |gpu| gpu.admits(tenant))
    }

    /// The same, as they are told to a program.
    #[must_use]
    pub fn offers(&self, tenant: TenantId) -> Vec<GpuOffer> {
        let offer =
            |gpu: &Gpu| Some(GpuOffer { number: gpu.number, facts: gpu.handle.state().facts? });
        self.admitting(tenant).filter_map(offer).collect()
    }
}
