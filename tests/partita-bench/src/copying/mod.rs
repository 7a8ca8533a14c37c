//! Programs that copy between launches: how much of their transfer time kernels hide.
//!
//! Each stream of a [`Program`] repeats one round: copies to the device, a launch, copies to the
//! host. [`play`] gives the programs to the real engine, policy and emulated GPU in this process,
//! for a span of device time. There is no clock and no thread: the same programs and seed give the
//! same figures, to the bit.
//!
//! **Hidden** transfer time is the time of transfers during which at least one CTA of any kernel is
//! resident on an SM. A transfer's time runs from the moment at which it gets its copy engine to
//! its end. Where both engines work at the same time, both times count. All transfers count from
//! the first request on, also before the first kernel can start.
//!
//! A launch is **ready** when the copies before it in its round have ended. Its time to readiness
//! begins when the program asks for the launch, which is the moment at which it asks for the
//! copies.

mod programs;
mod spans;
mod stage;

pub use programs::{Company, Mix, programs};
pub use stage::play;

use partita_model::Nanos;

/// A program: a session with one loop in each of its streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its user.
    pub user: u32,
    /// What its streams repeat.
    pub rounds: Vec<Round>,
}

/// What a stream repeats.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Round {
    /// Lengths in bytes of its copies to the device.
    pub to_device: Vec<u64>,
    /// CTAs of its launch.
    pub ctas: u32,
    /// The time for which each CTA sleeps.
    pub cta_time: Nanos,
    /// Lengths in bytes of its copies to the host.
    pub to_host: Vec<u64>,
    /// Rounds that the program asks for before it waits for the first of them.
    pub ahead: u32,
}

/// What was seen of programs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen {
    /// Transfer time of both directions.
    pub transfers: Nanos,
    /// The part of it that kernels hid.
    pub hidden: Nanos,
    /// The time during which CTAs were resident.
    pub kernels: Nanos,
    /// From asking for a launch to its readiness, over all launches that became ready.
    pub readiness: Vec<Nanos>,
    /// Rounds that ended, of each program.
    pub rounds: Vec<u64>,
    /// The bytes that each program copied in rounds that ended.
    pub bytes: Vec<u64>,
}

impl Seen {
    /// Hidden transfer time ÷ transfer time; 1 where nothing was copied.
    #[must_use]
    pub fn hidden_part(&self) -> f64 {
        if self.transfers.0 == 0 {
            return 1.0;
        }
        self.hidden.0 as f64 / self.transfers.0 as f64
    }

    /// The mean time to readiness in nanoseconds; 0 where no launch became ready.
    #[must_use]
    pub fn mean_readiness(&self) -> f64 {
        let sum: u64 = self.readiness.iter().map(|time| time.0).sum();
        sum as f64 / self.readiness.len().max(1) as f64
    }
}
