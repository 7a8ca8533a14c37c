//! Barriers as objects in shared memory (PTX ISA, "Parallel Synchronization and Communication
//! Instructions: mbarrier"), and the arrival that follows asynchronous copies.
//!
//! The eight opaque bytes hold, from bit 0 on:
//!
//! - 20 bits: arrivals that this phase still awaits;
//! - 20 bits: arrivals of the next phase;
//! - 21 bits: transactions under way;
//! - 1 bit: the parity of the phase;
//! - 1 bit: the mark of an initialised object.
//!
//! An operation on bytes without the mark is a fault. A GPU leaves that undefined. `try_wait` never
//! blocks here: the ISA lets it return early, and programs loop around it.

use super::access::{is_shared, read_bytes, write_bytes};
use super::inst::{Source, Space, Target};
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use partita_device::FaultKind;

/// The most arrivals that an object counts (PTX ISA, "mbarrier.init").
const MAX_COUNT: u64 = (1 << 20) - 1;

/// An operation on the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MbarrierKind {
    /// `init`: `count` arrivals make a phase.
    Init,
    /// `inval`
    Inval,
    /// `arrive` and `arrive_drop`; the result is the previous state.
    Arrive {
        /// Later phases do not await these arrivals.
        drop: bool,
        /// `.expect_tx`: `count` is a number of transactions, and one thread arrives.
        expect: bool,
    },
    /// `expect_tx`
    ExpectTx,
    /// `complete_tx`
    CompleteTx,
    /// `test_wait` and `try_wait`: whether the phase of a state is over.
    TestState,
    /// `test_wait` and `try_wait` by the parity of a phase.
    TestParity,
    /// `cp.async.mbarrier.arrive` arrives at once, because each copy completes at once.
    ArriveAfterCopies {
        /// `.noinc`: the arrival is among those already awaited.
        counted: bool,
    },
}

/// Side table of [`super::inst::Op::Async`].
#[derive(Clone, Copy, Debug)]
pub struct MbarrierOp {
    /// The operation.
    pub kind: MbarrierKind,
    /// Shared or generic.
    pub space: Space,
    /// Where the object is.
    pub address: Source,
    /// A number of arrivals or bytes, a state or a parity; [`Source::None`] for one arrival.
    pub value: Source,
    /// A state, or whether a phase is over.
    pub target: Target,
}

/// The object, unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    awaited: u64,
    next: u64,
    transactions: i64,
    odd: bool,
}

impl State {
    fn unpack(word: u64) -> Option<Self> {
        (word >> 63 == 1).then_some(State {
            awaited: word & MAX_COUNT,
            next: word >> 20 & MAX_COUNT,
            // Bits 40 to 60 hold the transactions; the highest bit is the sign.
            transactions: ((word << 3) as i64) >> 43,
            odd: word >> 62 & 1 == 1,
        })
    }

    fn pack(self) -> u64 {
        let transactions = (self.transactions as u64) & 0x1f_ffff;
        1 << 63 | u64::from(self.odd) << 62 | transactions << 40 | self.next << 20 | self.awaited
    }

    /// Ends the phase when no arrival and no transaction is awaited.
    fn settle(&mut self) {
        if self.awaited == 0 && self.transactions == 0 {
            self.odd = !self.odd;
            self.awaited = self.next;
        }
    }

    fn arrive(&mut self, count: u64, drop: bool) -> Result<(), String> {
        if count == 0 || count > self.awaited {
            return Err(format!(
                "{count} arrivals at an mbarrier that awaits {} more",
                self.awaited
            ));
        }
        if drop {
            self.next -= count.min(self.next);
        }
        self.awaited -= count;
        Ok(())
    }

    fn expect(&mut self, bytes: i64) -> Result<(), String> {
        self.transactions += bytes;
        // PTX ISA, "mbarrier": the count lies between -(2^20 - 1) and 2^20 - 1.
        if self.transactions.unsigned_abs() > MAX_COUNT {
            return Err(format!(
                "{} transactions of an mbarrier exceed 2^20 - 1",
                self.transactions
            ));
        }
        Ok(())
    }
}

/// `mbarrier.pending_count`, as a lane function.
pub fn pending_count(x: [u64; 3], _how: u32) -> u64 {
    x[0] & MAX_COUNT
}

/// Bytes have come by a bulk copy: `complete_tx`.
pub fn complete(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
    bytes: u64,
) -> Result<(), Box<Trouble>> {
    change(env, site, MbarrierKind::CompleteTx, address, bytes).map(|_| ())
}

/// Earlier work of the tensor cores is done: one arrival.
pub fn arrive(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
) -> Result<(), Box<Trouble>> {
    let kind = MbarrierKind::Arrive { drop: false, expect: false };
    change(env, site, kind, address, 1).map(|_| ())
}

/// Carries an instruction out for the threads of a warp, one after the other.
pub fn execute(
    core: &mut Core<'_>,
    op: &MbarrierOp,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Result<(), Box<Trouble>> {
    let mut results = [0_u64; 32];
    for lane in lanes(mask) {
        let site = (w + core.first_warp, lane, pc);
        let address = op.space.generic(core.get(op.address, w, lane));
        let value = if op.value == Source::None { 1 } else { core.get(op.value, w, lane) };
        results[lane] = change(env, site, op.kind, address, value)?;
    }
    core.put_all(op.target, w, mask, &results);
    env.trace.counts.shared_accesses += 1;
    Ok(())
}

fn change(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    kind: MbarrierKind,
    address: u64,
    value: u64,
) -> Result<u64, Box<Trouble>> {
    use MbarrierKind as K;
    let trouble = |kind, detail: String| {
        let (warp, lane, pc) = site;
        Box::new(Trouble { kind, warp, lane, pc, address: Some(address), detail })
    };
    if !is_shared(address) {
        let detail = "an mbarrier outside shared memory".to_owned();
        return Err(trouble(FaultKind::InvalidAddressSpace, detail));
    }
    let mut word = [0; 8];
    read_bytes(env, site, address, &mut word)?;
    let before = u64::from_le_bytes(word);
    let state = match (kind, State::unpack(before)) {
        (K::Init, _) => {
            let count = value & 0xffff_ffff;
            if count == 0 || count > MAX_COUNT {
                let detail =
                    format!("an mbarrier for {count} arrivals; 1 to {MAX_COUNT} are allowed");
                return Err(trouble(FaultKind::IllegalInstruction, detail));
            }
            State { awaited: count, next: count, transactions: 0, odd: false }
        }
        (_, None) => {
            let detail = "no mbarrier is initialised here".to_owned();
            return Err(trouble(FaultKind::IllegalInstruction, detail));
        }
        (_, Some(state)) => state,
    };
    let mut after = state;
    let count = value & 0xffff_ffff;
    let changed = match kind {
        K::Init => Ok(()),
        K::Inval => {
            write_bytes(env, site, address, &[0; 8])?;
            return Ok(0);
        }
        K::TestState => return Ok(u64::from((value >> 62 & 1 == 1) != state.odd)),
        K::TestParity => return Ok(u64::from((value & 1 == 1) != state.odd)),
        K::Arrive { drop, expect: true } => {
            after.expect(count as i64).and_then(|()| after.arrive(1, drop))
        }
        K::Arrive { drop, expect: false } => after.arrive(count, drop),
        K::ExpectTx => after.expect(count as i64),
        K::CompleteTx => after.expect(-(count as i64)),
        K::ArriveAfterCopies { counted: true } => after.arrive(1, false),
        K::ArriveAfterCopies { counted: false } => Ok(()),
    };
    if let Err(detail) = changed {
        return Err(trouble(FaultKind::IllegalInstruction, detail));
    }
    after.settle();
    write_bytes(env, site, address, &after.pack().to_le_bytes())?;
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_packing() {
        for transactions in [0, 1, -1, 1 << 19, MAX_COUNT as i64, -(MAX_COUNT as i64)] {
            for (awaited, next, odd) in [(1, 1, false), (MAX_COUNT, 3, true), (0, MAX_COUNT, false)]
            {
                let state = State { awaited, next, transactions, odd };
                assert_eq!(State::unpack(state.pack()), Some(state));
            }
        }
        assert_eq!(State::unpack(0), None);
    }

    #[test]
    fn a_phase_ends_when_arrivals_and_transactions_have() {
        let mut state = State { awaited: 2, next: 2, transactions: 0, odd: false };
        let mut step = |change: &dyn Fn(&mut State) -> Result<(), String>| {
            change(&mut state).map(|()| {
                state.settle();
                state.odd
            })
        };
        assert_eq!(step(&|s| s.expect(-64)), Ok(false), "bytes may come before they are expected");
        assert_eq!(step(&|s| s.arrive(1, false)), Ok(false));
        assert_eq!(step(&|s| s.expect(64).and_then(|()| s.arrive(1, true))), Ok(true));
        assert_eq!(step(&|s| s.arrive(1, false)), Ok(false), "one thread has left for good");
        assert!(step(&|s| s.arrive(2, false)).is_err());
        assert!(step(&|s| s.expect(1 << 20)).is_err());
    }
}
