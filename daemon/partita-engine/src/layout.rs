//! How many workers a launch gets, and where.
//!
//! As many as the ledger has room for on the application's SMs, but no more than there are tasks.
//! The hardware places CTAs wherever there is room, so a grid also needs one CTA for every place on
//! foreign SMs that it may *burn*: a worker there leaves at once. What is missing nonetheless is
//! made up by helper grids ([`crate::upkeep`]).

use crate::Engine;
use crate::ledger::Usage;
use partita_model::{SmId, SmSet, StreamId};

/// How a worker launch is laid out over the SMs.
pub(crate) struct Layout {
    /// Workers per SM that the ledger is to hold.
    pub(crate) workers: Vec<u16>,
    /// CTAs of the grid, those included that may burn.
    pub(crate) ctas: u32,
}

impl Engine {
    /// The SMs of a set that have room for CTAs of a launch in `stream`, and for how many.
    pub(crate) fn rooms(&self, sms: &SmSet, stream: StreamId, cta: Usage) -> Vec<(SmId, u16)> {
        sms.iter()
            .map(|sm| (sm, self.ledger.room(sm, stream, cta)))
            .filter(|(_, room)| *room > 0)
            .collect()
    }

    /// Spreads `tasks` over places, one after the other over the SMs as the hardware does.
    pub(crate) fn lay_out(
        &self,
        rooms: &[(SmId, u16)],
        stream: StreamId,
        cta: Usage,
        own: &SmSet,
        tasks: u64,
    ) -> Layout {
        let rounds = rounds_for(rooms, tasks);
        let mut workers = vec![0; self.facts.sm_count.into()];
        let mut wanted = 0;
        for (sm, room) in rooms {
            let count = (*room).min(rounds);
            workers[usize::from(sm.0)] = count;
            wanted += u64::from(count);
        }
        let ctas = wanted.min(tasks) + self.burn(own, stream, cta, rounds);
        Layout { workers, ctas: u32::try_from(ctas).unwrap_or(u32::MAX) }
    }

    /// CTAs that may start on foreign SMs while every SM is given up to `rounds` of them.
    pub(crate) fn burn(&self, own: &SmSet, stream: StreamId, cta: Usage, rounds: u16) -> u64 {
        let foreign = SmSet::range(0, self.facts.sm_count).difference(own);
        foreign.iter().map(|sm| u64::from(self.ledger.room(sm, stream, cta).min(rounds))).sum()
    }
}

/// The smallest number of rounds over the SMs in which `wanted` CTAs find a place, or all rounds
/// there are.
pub(crate) fn rounds_for(rooms: &[(SmId, u16)], wanted: u64) -> u16 {
    let most = rooms.iter().map(|(_, room)| *room).max().unwrap_or(0);
    let placed =
        |rounds: u16| -> u64 { rooms.iter().map(|(_, room)| u64::from((*room).min(rounds))).sum() };
    (1..most).find(|&rounds| placed(rounds) >= wanted).unwrap_or(most)
}
