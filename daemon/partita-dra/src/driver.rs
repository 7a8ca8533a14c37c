//! Preparing and unpreparing claims: to a claim the driver is what a prolog and an epilog are to a
//! job of Slurm.
//!
//! Invariants: both may be repeated at any time and end in the same state. What a failed
//! preparation has made is taken back. A claim that the kubelet has ended while the daemon could
//! not be told is remembered, and ended before another claim is prepared.

use crate::cdi;
use crate::claim::{ClaimError, Wanted, check_uid, device_of, reservations_of};
use crate::files::FileError;
use crate::kept::{Checkpoint, Kept};
use crate::kube::{Kube, KubeError};
use crate::options::Places;
use crate::partitad::{Partitad, PartitadError};
use crate::proto::dra::{Claim, Device};
use crate::user::{UserError, user_of};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;

const DAY: u64 = 24 * 60 * 60;

/// Why a claim cannot be prepared or unprepared.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The claim cannot be.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// Its user is not known.
    #[error(transparent)]
    User(#[from] UserError),
    /// The API server does not help.
    #[error(transparent)]
    Kube(#[from] KubeError),
    /// The daemon does not help.
    #[error(transparent)]
    Partitad(#[from] PartitadError),
    /// The disk does not help.
    #[error(transparent)]
    File(#[from] FileError),
    /// The claim was made anew meanwhile.
    #[error("claim {0} was deleted and made anew since the pod was scheduled: delete the pod")]
    Replaced(String),
    /// A device without a GPU.
    #[error(
        "partitad serves no `{0}`: its GPUs have changed since the claim was allocated; delete the \
         pod, so that it is scheduled anew"
    )]
    NoGpu(String),
}

/// The driver of one node.
pub struct Driver {
    places: Places,
    node: String,
    days: u16,
    kube: Kube,
    partitad: Partitad,
    checkpoint: Mutex<Checkpoint>,
}

impl Driver {
    /// A driver that goes on from its checkpoint.
    #[must_use]
    pub fn new(places: Places, node: String, days: u16, kube: Kube) -> Driver {
        let checkpoint = Checkpoint::open(places.plugin_dir().join("claims"));
        let partitad = Partitad::new(&places.socket_dir);
        Driver { places, node, days, kube, partitad, checkpoint: Mutex::new(checkpoint) }
    }

    /// The daemon of the node.
    #[must_use]
    pub fn partitad(&self) -> &Partitad {
        &self.partitad
    }

    /// Makes what the containers of a claim need.
    ///
    /// # Errors
    /// With the remedy; what was made is taken back.
    pub async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, DriverError> {
        check_uid(&claim.uid)?;
        let mut checkpoint = self.checkpoint.lock().await;
        self.end_the_ended(&mut checkpoint).await;
        let before = checkpoint.get(&claim.uid).filter(|kept| kept.is_prepared && !kept.is_ended);
        if let Some(kept) = before.cloned() {
            self.make(&kept).await?;
            return Ok(self.devices(&kept));
        }
        let kept = self.read(claim).await?;
        checkpoint.keep(kept.clone())?;
        let kept = Kept { is_prepared: true, ..kept };
        let made = match self.make(&kept).await {
            Ok(()) => checkpoint.keep(kept.clone()).map_err(DriverError::from),
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            if let Err(other) = self.end(&mut checkpoint, &kept).await {
                tracing::warn!(claim = kept.name, error = %other, "stays half prepared");
            }
            return Err(error);
        }
        tracing::info!(
            namespace = kept.namespace,
            claim = kept.name,
            uid = kept.uid,
            "is prepared"
        );
        Ok(self.devices(&kept))
    }

    /// Takes back what was made for a claim, if anything was.
    ///
    /// # Errors
    /// With the remedy; the kubelet asks again.
    pub async fn unprepare(&self, claim: &Claim) -> Result<(), DriverError> {
        check_uid(&claim.uid)?;
        let mut checkpoint = self.checkpoint.lock().await;
        let known = checkpoint.get(&claim.uid).cloned();
        let is_known = known.is_some();
        let mut kept =
            known.unwrap_or_else(|| Kept::new(&claim.namespace, &claim.name, &claim.uid));
        match self.end(&mut checkpoint, &kept).await {
            Ok(()) => {
                tracing::info!(
                    namespace = kept.namespace,
                    claim = kept.name,
                    uid = kept.uid,
                    "has ended"
                );
                Ok(())
            }
            // The pod must not stay because of the daemon.
            Err(DriverError::Partitad(error @ PartitadError::Silent { .. })) => {
                tracing::warn!(claim = kept.name, %error, "ends when partitad answers");
                crate::files::remove(&cdi::file(&self.places, &kept.uid))?;
                kept.is_ended = true;
                if is_known {
                    checkpoint.keep(kept)?;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Ends what has to end, renews the reservations of prepared claims, and makes those anew that
    /// the daemon has lost. How many were made anew.
    ///
    /// # Errors
    /// Where the daemon does not answer.
    pub async fn reconcile(&self) -> Result<usize, DriverError> {
        let mut checkpoint = self.checkpoint.lock().await;
        self.end_the_ended(&mut checkpoint).await;
        let there = self.partitad.reservations().await?;
        let prepared: Vec<Kept> =
            checkpoint.all().filter(|kept| kept.is_prepared && !kept.is_ended).cloned().collect();
        let mut count = 0;
        for mut kept in prepared {
            let half = now() + u64::from(self.days) * DAY / 2;
            let is_old = kept.reservations.values().any(|one| one.expires < half);
            if is_old {
                kept.reservations.values_mut().for_each(|one| one.expires = self.expiry());
                if let Err(error) = checkpoint.keep(kept.clone()) {
                    tracing::warn!(claim = kept.name, %error, "is not renewed");
                }
            }
            let lost = kept.reservations.iter().filter(|(id, request)| {
                !there.iter().any(|one| one.id == **id && one.request() == **request)
            });
            for (id, request) in lost {
                match self.partitad.reserve(id, request).await {
                    Ok(()) => count += 1,
                    Err(error) => tracing::warn!(claim = kept.name, %error, "has no reservation"),
                }
            }
        }
        Ok(count)
    }

    async fn read(&self, claim: &Claim) -> Result<Kept, DriverError> {
        let path = format!(
            "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}",
            claim.namespace, claim.name
        );
        let found: ResourceClaim = self.kube.get(&path).await?;
        if found.metadata.uid.as_deref() != Some(claim.uid.as_str()) {
            return Err(DriverError::Replaced(format!("{}/{}", claim.namespace, claim.name)));
        }
        let wanted = Wanted::read(&found, &self.places.driver_name, &self.node)?;
        let tenant = match wanted.user {
            Some(user) => user,
            None => user_of(&self.pods(&found, &claim.namespace).await?, &claim.name)?,
        };
        let served = self.partitad.gpus().await?;
        let uuid = |gpu| {
            let item = served.iter().find(|item| item.gpu.number == gpu);
            item.map(|item| item.uuid.clone()).ok_or_else(|| DriverError::NoGpu(device_of(gpu)))
        };
        let gpus = wanted.gpus.keys().map(|gpu| uuid(*gpu)).collect::<Result<_, _>>()?;
        Ok(Kept {
            reservations: wanted.reservations(&claim.uid, tenant, self.expiry()),
            parts: wanted.parts,
            gpus,
            ..Kept::new(&claim.namespace, &claim.name, &claim.uid)
        })
    }

    /// The pods of this node for which the claim is reserved.
    async fn pods(&self, claim: &ResourceClaim, namespace: &str) -> Result<Vec<Pod>, DriverError> {
        let all = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref());
        let mut pods = Vec::new();
        for one in all.unwrap_or_default().iter().filter(|one| one.resource == "pods") {
            let path = format!("/api/v1/namespaces/{namespace}/pods/{}", one.name);
            match self.kube.get::<Pod>(&path).await {
                Ok(pod) => pods.push(pod),
                Err(KubeError::Missing(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let is_here = |pod: &Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            node.is_none_or(|node| node == self.node)
        };
        pods.retain(is_here);
        Ok(pods)
    }

    async fn make(&self, kept: &Kept) -> Result<(), DriverError> {
        for (id, request) in &kept.reservations {
            self.partitad.reserve(id, request).await?;
        }
        Ok(cdi::write(&self.places, kept)?)
    }

    /// Ends a claim's reservations, those too of which the checkpoint knows nothing.
    async fn end(&self, checkpoint: &mut Checkpoint, kept: &Kept) -> Result<(), DriverError> {
        let prefix = reservations_of(&kept.uid);
        let there = self.partitad.reservations().await?;
        for one in there.iter().filter(|one| one.id.starts_with(&prefix)) {
            self.partitad.release(&one.id).await?;
        }
        crate::files::remove(&cdi::file(&self.places, &kept.uid))?;
        Ok(checkpoint.forget(&kept.uid)?)
    }

    async fn end_the_ended(&self, checkpoint: &mut Checkpoint) {
        let ended: Vec<Kept> = checkpoint.all().filter(|kept| kept.is_ended).cloned().collect();
        for kept in ended {
            match self.end(checkpoint, &kept).await {
                Ok(()) => tracing::info!(claim = kept.name, uid = kept.uid, "has ended"),
                Err(error) => tracing::debug!(claim = kept.name, %error, "cannot end yet"),
            }
        }
    }

    fn devices(&self, kept: &Kept) -> Vec<Device> {
        let one = |(number, part): (usize, &crate::claim::Part)| Device {
            request_names: vec![part.request.clone()],
            pool_name: self.node.clone(),
            device_name: part.device.clone(),
            cdi_device_ids: vec![cdi::device_name(&self.places, &kept.uid, number)],
            share_id: part.share.clone(),
        };
        kept.parts.iter().enumerate().map(one).collect()
    }

    fn expiry(&self) -> u64 {
        now() + u64::from(self.days) * DAY
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
