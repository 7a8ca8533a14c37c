//! What the Markov model is told of an SM and of a kernel, and the latency of an access.
//!
//! An access of a warp touches sectors of 32 bytes. The paper knows two kinds: a coalesced access
//! is one request, an uncoalesced access up to 32. Here a coalesced access has up to four sectors
//! and an uncoalesced one 32; the mean number of sectors of a kernel says how many are of which
//! kind.
//!
//! The paper's latency is one line over outstanding requests. A GPU has two queues: one in front of
//! LLC and interconnect, one in front of DRAM. A kernel that hits the LLC does not wait in DRAM's,
//! so there is one line for each, and the longer wait counts.

use crate::models::bandwidth::check_calibration;
use crate::models::{CalibrationError, Character};
use partita_model::Calibration;

/// Units of warps of a kernel, at most.
pub(super) const MOST_UNITS: usize = 16;
/// Bytes of a sector.
const SECTOR_BYTES: f64 = 32.0;
/// Sectors of a coalesced access: 32 lanes with four bytes each.
const COALESCED_SECTORS: f64 = 4.0;
/// Sectors of an uncoalesced access: one for each lane.
const UNCOALESCED_SECTORS: f64 = 32.0;
/// A latency is taken to be at most this, in cycles: no GPU's is longer, and a chain whose warps
/// next to never wake has no accurate solution.
const MOST_LATENCY: f64 = 1e7;
/// Rounds until latencies and waiting accesses agree within a percent, at most.
const AGREEMENT: u32 = 4;
/// Warps and CTAs of an SM, at most: far above every GPU's.
const MOST_RESIDENT: u32 = 1024;
/// The least part of a kernel's instructions that is taken to stall a warp. A kernel without
/// accesses may issue below the full rate, too; its warps then wait for something else.
const LEAST_RATIO: f64 = 1.0 / 256.0;

/// A number that the model cannot use.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ModelError {
    /// Of a kernel or of the model's settings.
    #[error("Markov model: {field} is {value}; it must be {wanted}")]
    Field {
        /// Which number.
        field: &'static str,
        /// What it is.
        value: f64,
        /// What it may be.
        wanted: &'static str,
    },
    /// Of the GPU.
    #[error("Markov model: {0}")]
    Calibration(#[from] CalibrationError),
    /// The time that the kernel takes alone was not measured.
    #[error("Markov model: the kernel's time alone is not known; measure it alone first")]
    NotMeasured,
    /// The chain's equations have no solution in floating point.
    #[error("Markov model: the chain has no stationary distribution; report the kernel's numbers")]
    NotSolved,
}

impl ModelError {
    pub(super) fn field(field: &'static str, value: f64, wanted: &'static str) -> Self {
        ModelError::Field { field, value, wanted }
    }
}

/// One SM and its share of what is outside.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sm {
    /// SMs of the GPU.
    pub sms: u16,
    /// Warp instructions that the SM issues a cycle.
    pub issue_rate: f64,
    /// Cycles in which the SM's port passes a sector.
    pub port_cycles: f64,
    /// Cycles in which LLC and interconnect serve a sector of this SM while all SMs ask.
    pub llc_cycles: f64,
    /// Cycles in which DRAM serves a sector of this SM while all SMs ask.
    pub dram_cycles: f64,
}

impl Sm {
    /// An SM of a GPU. DRAM counts with its peak: what a stream of accesses gets.
    ///
    /// # Errors
    /// The calibration describes no GPU.
    pub fn of(hardware: &Calibration) -> Result<Self, CalibrationError> {
        check_calibration(hardware)?;
        let hertz = f64::from(hardware.sm_clock_khz) * 1e3;
        let cycles = |bandwidth: f64| SECTOR_BYTES * hertz * f64::from(hardware.sms) / bandwidth;
        let noc = hardware.noc_bytes_per_second;
        Ok(Sm {
            sms: hardware.sms,
            issue_rate: hardware.warp_instructions_per_cycle,
            port_cycles: cycles(noc),
            llc_cycles: cycles(noc.min(hardware.llc_bytes_per_second)),
            dram_cycles: cycles(hardware.dram_bytes_per_second),
        })
    }
}

/// What a kernel asks of an SM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    /// The part of the warp instructions after which a warp waits, in \[0, 1\].
    pub memory_ratio: f64,
    /// Warp instructions of a CTA.
    pub warp_instructions: f64,
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs that fit on an SM at a time.
    pub ctas_fit: u32,
    /// CTAs that are on an SM while the kernel runs alone.
    pub ctas_alone: u32,
    /// The part of the accesses that is uncoalesced, in \[0, 1\].
    pub uncoalesced: f64,
    /// Sectors of a coalesced access.
    pub coalesced_sectors: f64,
    /// Sectors of an uncoalesced access.
    pub uncoalesced_sectors: f64,
    /// The part of the sectors that reaches the LLC.
    pub llc: f64,
    /// The part of the sectors that DRAM reads or writes; more than 1 where a line is written back.
    pub dram: f64,
    /// Issue slots that a warp instruction takes: more than 1 where something else than memory
    /// keeps the SM from issuing, such as a slower pipeline.
    pub slots: f64,
    /// Cycles of an access that finds all queues empty, without its sectors' way through the port.
    pub base_cycles: f64,
}

impl Workload {
    /// A counted kernel with a base latency, in cycles, whose instructions take one slot each.
    ///
    /// # Errors
    /// A count describes no kernel.
    pub fn of(character: &Character, sms: u16, base_cycles: f64) -> Result<Self, ModelError> {
        let accesses = character.memory_instructions;
        check("memory_instructions", accesses, 0.0, 1e18, "a number from 0 to 1e18")?;
        check("sectors", character.sectors, 0.0, 1e18, "a number from 0 to 1e18")?;
        let ratio = character.memory_ratio();
        let memory_ratio = ratio.max(LEAST_RATIO);
        // Sectors of an access are those of a stall where some stalls are not accesses.
        let real = ratio / memory_ratio;
        let sectors = if accesses > 0.0 { character.sectors / accesses } else { 0.0 };
        let beyond = (sectors - COALESCED_SECTORS) / (UNCOALESCED_SECTORS - COALESCED_SECTORS);
        let part = |of: f64| if character.sectors > 0.0 { of / character.sectors } else { 0.0 };
        let ctas_fit = whole("ctas_per_sm", character.ctas_per_sm)?;
        let of_launch = (character.ctas_per_launch / f64::from(sms.max(1))).ceil();
        let ctas_alone = if of_launch >= 1.0 { of_launch } else { f64::INFINITY };
        let workload = Workload {
            memory_ratio,
            warp_instructions: character.warp_instructions,
            warps: whole("warps", character.warps)?,
            ctas_fit,
            ctas_alone: whole("ctas_per_launch", ctas_alone.min(f64::from(ctas_fit)))?,
            uncoalesced: beyond.clamp(0.0, 1.0),
            coalesced_sectors: sectors.min(COALESCED_SECTORS) * real,
            uncoalesced_sectors: sectors.max(UNCOALESCED_SECTORS) * real,
            llc: part(character.llc_sectors),
            dram: part(character.dram_sectors),
            slots: 1.0,
            base_cycles,
        };
        workload.check()?;
        Ok(workload)
    }

    /// Whether the model can use the numbers.
    ///
    /// # Errors
    /// Names the first that it cannot use.
    pub fn check(&self) -> Result<(), ModelError> {
        let part = "a number from 0 to 1";
        check("memory_ratio", self.memory_ratio, 0.0, 1.0, part)?;
        check("uncoalesced", self.uncoalesced, 0.0, 1.0, part)?;
        let instructions = self.warp_instructions;
        check("warp_instructions", instructions, 1e-9, 1e18, "a number above 0, at most 1e18")?;
        for (field, sectors) in [
            ("coalesced_sectors", self.coalesced_sectors),
            ("uncoalesced_sectors", self.uncoalesced_sectors),
            ("llc", self.llc),
            ("dram", self.dram),
        ] {
            check(field, sectors, 0.0, 1e6, "a number from 0 to 1e6")?;
        }
        check("slots", self.slots, 1.0, 1e6, "a number from 1 to 1e6")?;
        let base = self.base_cycles;
        check("base_cycles", base, 0.0, MOST_LATENCY, "cycles from 0 to 1e7")?;
        let most = f64::from(MOST_RESIDENT);
        for (field, resident) in
            [("warps", self.warps), ("ctas_fit", self.ctas_fit), ("ctas_alone", self.ctas_alone)]
        {
            check(field, f64::from(resident), 1.0, most, "a number from 1 to 1024")?;
        }
        Ok(())
    }
}

/// A kernel's part of an SM: its warps in units, and what these ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// Units of warps.
    pub(super) units: usize,
    /// Warps of a unit.
    pub(super) unit_warps: f64,
    /// R_m.
    pub(super) memory_ratio: f64,
    /// Issue slots of a warp instruction.
    pub(super) slots: f64,
    /// The part of the accesses that is uncoalesced.
    uncoalesced: f64,
    /// Sectors of a coalesced and of an uncoalesced access.
    sectors: [f64; 2],
    /// Cycles of each where it finds all queues empty.
    unloaded_cycles: [f64; 2],
    /// Work that an outstanding sector of a unit is for LLC and for DRAM, in cycles.
    work_cycles: [f64; 2],
    /// The part of an access's sectors that waits for LLC and for DRAM.
    visits: [f64; 2],
}

impl Side {
    /// So many CTAs of a kernel, in units of a number of warps that is the same for every number
    /// of CTAs.
    pub(super) fn new(sm: &Sm, most_units: u32, workload: &Workload, ctas: u32) -> Self {
        let resident = |ctas: u32| f64::from(workload.warps) * f64::from(ctas.max(1));
        let by_units = resident(workload.ctas_alone) / f64::from(most_units);
        let unit_warps = by_units.max(sm.issue_rate).max(1.0);
        let warps = resident(ctas);
        let units = (1..=MOST_UNITS).rev().find(|units| float(*units) - 0.5 <= warps / unit_warps);
        let units = units.unwrap_or(1);
        let unit_warps = warps / float(units);
        let service = [sm.llc_cycles, sm.dram_cycles];
        let visits = [workload.llc, workload.dram];
        let demand = [visits[0] * service[0], visits[1] * service[1]];
        // Accesses wait in front of the kernel's bottleneck, and elsewhere in proportion.
        let bottleneck = demand[0].max(demand[1]).max(f64::MIN_POSITIVE);
        let sectors = [workload.coalesced_sectors, workload.uncoalesced_sectors];
        Side {
            units,
            unit_warps,
            memory_ratio: workload.memory_ratio,
            slots: workload.slots,
            uncoalesced: workload.uncoalesced,
            sectors,
            unloaded_cycles: sectors.map(|sectors| workload.base_cycles + sectors * sm.port_cycles),
            work_cycles: [0, 1].map(|at| unit_warps * (demand[at] / bottleneck) * service[at]),
            visits,
        }
    }

    /// Latency of a mean access that waits so long for LLC and for DRAM, in cycles from 1 to
    /// [`MOST_LATENCY`], and the mean sectors of an access that waits. More of the waiting accesses
    /// are uncoalesced than of all accesses, because these wait longer (Little's law).
    fn mean(&self, queues: [f64; 2]) -> (f64, f64) {
        let wait = (self.visits[0] * queues[0]).max(self.visits[1] * queues[1]);
        let time = |kind: usize| (self.unloaded_cycles[kind] + wait).clamp(1.0, MOST_LATENCY);
        let coalesced = (1.0 - self.uncoalesced) * time(0);
        let uncoalesced = self.uncoalesced * time(1);
        let latency = coalesced + uncoalesced;
        let sectors = coalesced * self.sectors[0] + uncoalesced * self.sectors[1];
        (latency, sectors / latency)
    }
}

/// The latency of each kernel's mean access, L = a_0 × x + b_0, in cycles, where so many units of
/// each kernel on the SM wait.
///
/// Which accesses wait depends on how long they wait, and the other way round: a few rounds agree.
pub(super) fn latencies<const N: usize>(sides: &[Side; N], idle: [usize; N]) -> [f64; N] {
    let mut means = sides.map(|side| side.mean([0.0; 2]));
    for _ in 0..AGREEMENT {
        let queue = |at: usize| {
            let units = sides.iter().zip(idle).zip(&means);
            units.map(|((side, idle), (_, k))| side.work_cycles[at] * k * float(idle)).sum()
        };
        let queues = [queue(0), queue(1)];
        let agreed = sides.map(|side| side.mean(queues));
        let near =
            |(now, before): (&(f64, f64), &(f64, f64))| (now.0 - before.0).abs() < 0.01 * now.0;
        let same = agreed.iter().zip(&means).all(near);
        means = agreed;
        if same {
            break;
        }
    }
    means.map(|(latency, _)| latency)
}

/// A number of units as a floating-point number.
pub(super) fn float(units: usize) -> f64 {
    f64::from(count(units))
}

/// A number of units in 32 bits.
pub(super) fn count(units: usize) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn check(
    field: &'static str,
    value: f64,
    least: f64,
    most: f64,
    wanted: &'static str,
) -> Result<(), ModelError> {
    // NaN is in no range.
    let inside = (least..=most).contains(&value);
    if inside { Ok(()) } else { Err(ModelError::field(field, value, wanted)) }
}

/// A number of warps or CTAs, rounded: the mean of an application's kernels need not be whole.
fn whole(field: &'static str, value: f64) -> Result<u32, ModelError> {
    let wanted = "a number from 1 to 1024";
    check(field, value, 0.5, f64::from(MOST_RESIDENT), wanted)?;
    let near = |whole: &u32| f64::from(*whole) + 0.5 > value;
    (1..=MOST_RESIDENT).find(near).ok_or(ModelError::field(field, value, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() <= 1e-9 * wanted, "{found}, not {wanted}");
    }

    /// 100 of 1,000 instructions access 18 sectors each; four CTAs fit on each of 10 SMs.
    fn character() -> Character {
        Character {
            warp_instructions: 1000.0,
            memory_instructions: 100.0,
            sectors: 1800.0,
            llc_sectors: 1440.0,
            dram_sectors: 720.0,
            warps: 8.0,
            ctas_per_sm: 4.0,
            ctas_per_launch: 25.0,
            ..Character::default()
        }
    }

    #[test]
    fn a_kernel_is_counted_by_accesses_of_two_kinds() {
        let found = Workload::of(&character(), 10, 100.0).unwrap();
        let expected = Workload {
            memory_ratio: 0.1,
            warp_instructions: 1000.0,
            warps: 8,
            ctas_fit: 4,
            // 25 CTAs on 10 SMs.
            ctas_alone: 3,
            // 18 sectors are half of the way from 4 to 32.
            uncoalesced: 0.5,
            coalesced_sectors: 4.0,
            uncoalesced_sectors: 32.0,
            llc: 0.8,
            dram: 0.4,
            slots: 1.0,
            base_cycles: 100.0,
        };
        assert_eq!(found, expected);
        // Half of the least stalls are accesses: a stall has half of an access's sectors.
        let few = Character { memory_instructions: 1000.0 / 512.0, ..character() };
        let few = Workload::of(&Character { sectors: 6.0, ..few }, 10, 100.0).unwrap();
        near(few.memory_ratio, 1.0 / 256.0);
        // 6 × 512 ÷ 1000 = 3.072 sectors an access.
        near(few.coalesced_sectors, 1.536);
        near(few.uncoalesced_sectors, 16.0);
        // A launch of unknown size fills the SM.
        let unknown = Character { ctas_per_launch: 0.0, ..character() };
        assert_eq!(Workload::of(&unknown, 10, 100.0).unwrap().ctas_alone, 4);
        let many = Character { ctas_per_launch: 900.0, ..character() };
        assert_eq!(Workload::of(&many, 10, 100.0).unwrap().ctas_alone, 4);
    }

    /// Eight units of four warps: an LLC that serves a sector in 3 cycles, DRAM in 10.
    fn side() -> Side {
        let sm =
            Sm { sms: 10, issue_rate: 4.0, port_cycles: 2.0, llc_cycles: 3.0, dram_cycles: 10.0 };
        let workload = Workload {
            ctas_alone: 4,
            uncoalesced: 0.25,
            ..Workload::of(&character(), 10, 100.0).unwrap()
        };
        Side::new(&sm, 8, &workload, 4)
    }

    #[test]
    fn work_waits_in_front_of_the_bottleneck() {
        let side = side();
        assert_eq!(side.units, 8);
        near(side.unit_warps, 4.0);
        // 0.8 × 3 cycles of the LLC by 0.4 × 10 of DRAM.
        near(side.work_cycles[0], 4.0 * 0.6 * 3.0);
        near(side.work_cycles[1], 4.0 * 10.0);
        let Side { unloaded_cycles: [coalesced, uncoalesced], .. } = side;
        near(coalesced, 100.0 + 4.0 * 2.0);
        near(uncoalesced, 100.0 + 32.0 * 2.0);
    }

    #[test]
    fn the_longer_wait_counts() {
        // 0.8 × 100 and 0.4 × 10; then 0.8 × 10 and 0.4 × 200.
        for queues in [[100.0, 10.0], [10.0, 200.0]] {
            let (latency, sectors) = side().mean(queues);
            let [coalesced, uncoalesced] = [0.75 * (108.0 + 80.0), 0.25 * (164.0 + 80.0)];
            near(latency, coalesced + uncoalesced);
            near(sectors, (coalesced * 4.0 + uncoalesced * 32.0) / latency);
        }
    }

    /// Four units wait, each for k sectors: a wait of w = 0.4 × 40 × 4 × k = 64 k cycles at DRAM.
    /// Of accesses of 108 + w and 164 + w cycles the mean that waits has
    /// k = (3 (108 + w) + 8 (164 + w)) ÷ (122 + w) sectors. So w² − 582 w − 104,704 = 0.
    #[test]
    fn latencies_and_waiting_accesses_agree() {
        let wait = f64::midpoint(582.0, (582.0_f64 * 582.0 + 4.0 * 104_704.0).sqrt());
        let [found] = latencies(&[side()], [4]);
        assert!((found / (122.0 + wait) - 1.0).abs() < 0.01, "{found}, not 122 + {wait}");
    }
}
