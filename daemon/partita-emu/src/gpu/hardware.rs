//! Habits of hardware: how it places CTAs and their registers, sets shared memory, and numbers SMs.
//! All of them are off unless a caller turns them on ([`super::EmulatedGpu::set_hardware`]), so no
//! timed figure of the emulated GPU depends on them.

use super::EmulatedGpu;
use super::grid::Footprint;
use crate::spec::Spec;
use partita_model::occupancy::REGISTER_UNIT;
use std::cmp::Reverse;
use std::sync::Arc;

/// The most parts of an SM that have registers of their own.
pub(super) const MOST_PARTS: usize = 4;

/// Habits of hardware. The default has none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hardware {
    /// Whether each warp's registers are placed in one of the four parts of an SM, so that CTAs of
    /// several grids may leave rests in which no warp fits. Without, the parts count as one rest
    /// ([`partita_model::occupancy`]).
    pub parted_registers: bool,
    /// Whether a CTA goes to the SM with room for the most CTAs of its grid, not to the SM with the
    /// fewest CTAs (Gilman et al., "Demystifying the Placement Policies of the NVIDIA GPU Thread
    /// Block Scheduler for Concurrent Kernels", 2020).
    pub most_room: bool,
    /// Sizes of shared memory in bytes that an SM can be set to, in ascending order. An SM keeps
    /// its setting until its last CTA has left (CUDA C++ Programming Guide, "Shared Memory",
    /// compute capability 9.0). Empty: CTAs may use all of it at any time.
    pub carve_outs: Vec<u64>,
    /// `%smid` of each SM. Empty: the SM's number.
    pub smids: Vec<u32>,
}

impl Hardware {
    /// `%smid` of an SM.
    #[must_use]
    pub fn smid(&self, sm: u32) -> u32 {
        self.smids.get(sm as usize).copied().unwrap_or(sm)
    }

    /// `%nsmid`: above every `%smid`.
    #[must_use]
    pub fn nsmid(&self, sms: u32) -> u32 {
        self.smids.iter().max().map_or(sms, |most| most + 1)
    }

    /// The setting of an SM that begins with CTAs of this size: the least that does not keep any
    /// from an empty SM.
    #[must_use]
    pub fn carve_out(&self, footprint: &Footprint, spec: &Spec) -> u64 {
        let most = spec.shared_per_sm_bytes;
        let ctas = Footprint { shared: 0, ..*footprint }.per_sm(spec);
        let wanted = (footprint.shared * u64::from(ctas.max(1))).min(most);
        self.carve_outs.iter().copied().find(|bytes| *bytes >= wanted).unwrap_or(most)
    }

    /// The registers of a CTA in each part of an SM, where `used` are taken. `None` where a warp
    /// finds no part.
    #[must_use]
    pub(super) fn part(
        &self,
        footprint: &Footprint,
        used: [u32; MOST_PARTS],
        spec: &Spec,
    ) -> Option<[u32; MOST_PARTS]> {
        let mut taken = [0; MOST_PARTS];
        if !self.parted_registers {
            return Some(taken);
        }
        let warps = (footprint.threads / 32).max(1);
        let each = footprint.registers / warps / REGISTER_UNIT * REGISTER_UNIT;
        let all = spec.registers_per_sm / MOST_PARTS as u32;
        for _ in 0..warps {
            let least = (0..MOST_PARTS).min_by_key(|&part| used[part] + taken[part]).unwrap_or(0);
            if used[least] + taken[least] + each > all {
                return None;
            }
            taken[least] += each;
        }
        Some(taken)
    }
}

impl EmulatedGpu {
    /// Turns habits of hardware on. To be called while the GPU is empty.
    pub fn set_hardware(&mut self, hardware: Hardware) {
        let hardware = Arc::new(hardware);
        for sm in &mut self.sms {
            sm.hardware = Arc::clone(&hardware);
        }
    }

    /// The order in which SMs get a CTA of this size: the least key goes first.
    pub(super) fn rank(&self, sm: usize, footprint: &Footprint) -> (Reverse<u32>, u32) {
        let sm = &self.sms[sm];
        let room = if sm.hardware.most_room { sm.room_for(footprint, &self.spec) } else { 0 };
        (Reverse(room), sm.resident())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cta(threads: u32, registers_per_thread: u32, shared: u64) -> Footprint {
        let warps = threads / 32;
        let each = (registers_per_thread * 32).next_multiple_of(REGISTER_UNIT);
        Footprint { threads, registers: warps * each, shared }
    }

    /// CTAs of a size that an SM takes.
    fn taken(hardware: &Hardware, footprint: &Footprint, spec: &Spec) -> u32 {
        let mut used = [0; MOST_PARTS];
        (0..)
            .take_while(|_| {
                let more = hardware.part(footprint, used, spec);
                for (used, more) in used.iter_mut().zip(more.unwrap_or_default()) {
                    *used += more;
                }
                more.is_some()
            })
            .count() as u32
    }

    #[test]
    fn registers_lie_in_parts() {
        let spec = Spec::named("h200").unwrap();
        let hardware = Hardware { parted_registers: true, ..Hardware::default() };
        // 88 registers are 2,816 a warp: 5 warps in a part of 16,384, so 20 where 23 would fit.
        assert_eq!(taken(&hardware, &cta(32, 88, 0), &spec), 20);
        assert_eq!(cta(32, 88, 0).per_sm(&spec), 23);
        assert_eq!(taken(&hardware, &cta(1024, 64, 0), &spec), 1);
        assert_eq!(taken(&hardware, &cta(96, 168, 0), &spec), 4);
    }

    #[test]
    fn an_sm_is_set_to_what_its_first_ctas_need() {
        let spec = Spec::named("h200").unwrap();
        let carve_outs = [0, 8, 16, 32, 64, 100, 132, 164, 196, 228].map(|kib| kib << 10).to_vec();
        let hardware = Hardware { carve_outs, ..Hardware::default() };
        assert_eq!(hardware.carve_out(&cta(1024, 32, 1 << 10), &spec), 8 << 10, "two CTAs");
        assert_eq!(hardware.carve_out(&cta(1024, 32, 49 << 10), &spec), 100 << 10);
        assert_eq!(hardware.carve_out(&cta(1024, 32, 228 << 10), &spec), 228 << 10);
    }

    #[test]
    fn smids_may_have_gaps() {
        let hardware = Hardware { smids: vec![3, 0, 7], ..Hardware::default() };
        assert_eq!((hardware.smid(2), hardware.nsmid(3)), (7, 8));
        assert_eq!((Hardware::default().smid(2), Hardware::default().nsmid(3)), (2, 3));
    }
}
