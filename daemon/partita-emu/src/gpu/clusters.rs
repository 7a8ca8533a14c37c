//! Clusters of CTAs: what a launch may ask for, and the SMs on which a cluster begins.
//!
//! All CTAs of a cluster begin together, on SMs of one graphics processing cluster (GPC; CUDA C++
//! Programming Guide, "Thread Block Clusters"). Clusters begin between turns only, and a grid
//! whose clusters find no room waits like any other.

use super::EmulatedGpu;
use super::grid::{Footprint, Grid};
use super::sm::Sm;
use crate::exec::cluster::{Cluster, RANK_SHIFT};
use crate::exec::cta::Cta;
use crate::exec::program::{ClusterRules, OF_CTA};
use crate::spec::Spec;
use partita_device::{Fault, FaultKind};
use partita_model::cluster::{MOST_CTAS, fills};
use partita_model::{Dim3, SmId, SmSet};

/// The first compute capability with clusters.
const FIRST_CAPABILITY: u8 = 9;

/// The extent of a launch's clusters, or why it cannot have them. `asked` is one CTA where the
/// launch names none.
pub(super) fn extent(
    rules: &ClusterRules,
    (asked, grid): (Dim3, Dim3),
    spec: &Spec,
) -> Result<Dim3, String> {
    let named = (asked.count() > 1).then_some(asked);
    let cluster = match (named, rules.required) {
        (Some(named), Some(required)) if named != required => {
            return Err(format!("clusters of {named}; the kernel requires {required}"));
        }
        (None, None) if rules.explicit => {
            return Err("the kernel must be launched with clusters of a named extent".to_owned());
        }
        (named, required) => named.or(required).unwrap_or(Dim3::linear(1)),
    };
    let ctas = cluster.count();
    if ctas == 1 {
        return Ok(cluster);
    }
    if spec.compute_capability[0] < FIRST_CAPABILITY {
        return Err(format!(
            "clusters of {cluster}; a GPU of compute capability {}.{} has none",
            spec.compute_capability[0], spec.compute_capability[1]
        ));
    }
    let most = rules.most.map_or(MOST_CTAS, |most| most.min(MOST_CTAS));
    if ctas > u128::from(most) {
        return Err(format!("clusters of {ctas} CTAs; at most {most} are allowed"));
    }
    if !fills(cluster, grid) {
        return Err(format!("clusters of {cluster} do not fill a grid of {grid}"));
    }
    Ok(cluster)
}

/// Whether one GPC holds a cluster of CTAs of this size on these SMs, where nothing else runs.
pub(super) fn can_hold(spec: &Spec, sms: &SmSet, footprint: &Footprint, ctas: u32) -> bool {
    let each = footprint.per_sm(spec);
    let holds = |gpc: &SmSet| u32::from(gpc.intersection(sms).len()) * each >= ctas;
    spec.gpcs().iter().any(holds)
}

impl Grid {
    /// CTAs of a cluster.
    pub fn cluster_ctas(&self) -> u32 {
        self.cluster.count() as u32
    }

    /// Whether its CTAs have clusters, be it each one of its own.
    pub fn has_clusters(&self) -> bool {
        self.cluster_ctas() > 1 || self.program.uses_cluster
    }

    /// The linear index and the rank of the CTA that begins as number `number`: cluster after
    /// cluster, and rank after rank.
    pub fn in_order(&self, number: u64) -> (u64, u32) {
        let ctas = u64::from(self.cluster_ctas());
        if ctas == 1 {
            return (number, 0);
        }
        let (id, local) = self.place_of(number / ctas, number % ctas);
        let wide = |x: u32| u64::from(x);
        let (x, y, z) = (
            wide(id.x) * wide(self.cluster.x) + wide(local.x),
            wide(id.y) * wide(self.cluster.y) + wide(local.y),
            wide(id.z) * wide(self.cluster.z) + wide(local.z),
        );
        let linear = (z * wide(self.grid.y) + y) * wide(self.grid.x) + x;
        (linear, (number % ctas) as u32)
    }

    /// `%clusterid` and `%cluster_ctaid`.
    fn place_of(&self, cluster: u64, rank: u64) -> (Dim3, Dim3) {
        let within = |index: u64, of: [u64; 2]| {
            Dim3::new(
                (index % of[0]) as u32,
                (index / of[0] % of[1]) as u32,
                (index / of[0] / of[1]) as u32,
            )
        };
        let count = |grid: u32, cluster: u32| u64::from(grid / cluster.max(1));
        let clusters = [count(self.grid.x, self.cluster.x), count(self.grid.y, self.cluster.y)];
        let ctas = [u64::from(self.cluster.x), u64::from(self.cluster.y)];
        (within(cluster, clusters), within(rank, ctas))
    }

    /// A CTA's own values, by [`crate::exec::program::OfCta`].
    pub fn own_values(&self, index: Dim3, (cluster, rank): (u64, u32)) -> [u32; OF_CTA] {
        let (id, local) = if self.cluster_ctas() == 1 {
            (index, Dim3::new(0, 0, 0))
        } else {
            self.place_of(cluster, u64::from(rank))
        };
        let Dim3 { x, y, z } = index;
        [x, y, z, id.x, id.y, id.z, local.x, local.y, local.z, rank, rank << RANK_SHIFT]
    }

    /// A CTA begins: with the first of a cluster the cluster does.
    pub(super) fn join_cluster(&mut self, cta: &Cta) {
        if !self.has_clusters() || cta.rank != 0 {
            return;
        }
        let bytes = (self.program.static_shared + self.dynamic_shared) as usize;
        let ctas = self.cluster_ctas();
        let spare = &mut self.spare_shared;
        let memory = || spare.pop().unwrap_or_else(|| vec![0; bytes]);
        self.clusters.insert(cta.cluster, Cluster::new(ctas, &cta.alive, memory));
    }

    /// A CTA leaves: with the last of a cluster the cluster does.
    pub(super) fn leave_cluster(&mut self, cta: &Cta) {
        let Some(cluster) = self.clusters.get_mut(&cta.cluster) else { return };
        if let Some(memory) = cluster.leave(cta.rank as usize) {
            self.spare_shared.extend(memory);
            self.clusters.remove(&cta.cluster);
        }
    }

    /// The fault of a grid whose clusters fit nowhere on the SMs that it may use.
    pub(super) fn no_room_for_clusters(&self) -> Fault {
        Fault {
            kind: FaultKind::LaunchFailed,
            kernel: self.program.name.clone(),
            position: None,
            line: None,
            address: None,
            detail: format!(
                "no GPC's SMs that the launch may use hold a cluster of {} CTAs",
                self.cluster_ctas()
            ),
            assertion: None,
            values: Vec::new(),
        }
    }
}

impl EmulatedGpu {
    /// The SMs for the CTAs of a cluster, by rank: all of one GPC, the SM with the fewest CTAs
    /// first.
    pub(super) fn sms_for_cluster(
        &self,
        open: &SmSet,
        footprint: &Footprint,
        ctas: u32,
    ) -> Option<Vec<usize>> {
        let gpcs = self.spec.gpcs();
        let first = self.turns as usize % gpcs.len().max(1);
        let in_turn = gpcs[first..].iter().chain(&gpcs[..first]);
        in_turn.map(|gpc| gpc.intersection(open)).find_map(|sms| {
            let mut rooms: Vec<(usize, u32, u32)> = sms
                .iter()
                .map(|SmId(sm)| {
                    let sm = usize::from(sm);
                    let room = self.sms[sm].room_for_all(footprint, ctas, &self.spec);
                    (sm, room, self.sms[sm].resident())
                })
                .filter(|(_, room, _)| *room > 0)
                .collect();
            let all: u32 = rooms.iter().map(|(_, room, _)| room).sum();
            (all >= ctas).then(|| {
                let next = |_| {
                    let free = rooms.iter_mut().filter(|(_, room, _)| *room > 0);
                    let (sm, room, resident) = free.min_by_key(|(_, _, resident)| *resident)?;
                    (*room, *resident) = (*room - 1, *resident + 1);
                    Some(*sm)
                };
                (0..ctas).filter_map(next).collect()
            })
        })
    }
}

impl Sm {
    /// How many more CTAs of this size find room, up to `most`.
    fn room_for_all(&self, footprint: &Footprint, most: u32, spec: &Spec) -> u32 {
        if !self.has_room(footprint, spec) {
            return 0;
        }
        let room = self.room_for(footprint, spec).min(most);
        self.room_in_parts(footprint, room, spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_and_directives_agree_on_an_extent() {
        let spec = Spec::named("h200").unwrap();
        let grid = Dim3::new(8, 4, 1);
        let none = ClusterRules::default();
        let two = Dim3::new(2, 1, 1);
        let required = ClusterRules { required: Some(two), ..none };
        let one = Dim3::linear(1);
        assert_eq!(extent(&none, (one, grid), &spec), Ok(one));
        assert_eq!(extent(&none, (two, grid), &spec), Ok(two));
        assert_eq!(extent(&required, (one, grid), &spec), Ok(two));
        assert!(extent(&required, (Dim3::new(4, 1, 1), grid), &spec).is_err());
        assert!(extent(&none, (Dim3::new(3, 1, 1), grid), &spec).is_err());
        assert!(extent(&none, (Dim3::new(8, 4, 1), grid), &spec).is_err());
        assert!(extent(&ClusterRules { explicit: true, ..none }, (one, grid), &spec).is_err());
        let few = ClusterRules { most: Some(1), ..none };
        assert!(extent(&few, (two, grid), &spec).is_err());
        let old = Spec { compute_capability: [8, 0], ..spec };
        assert!(extent(&none, (two, grid), &old).unwrap_err().contains("8.0"));
    }
}
