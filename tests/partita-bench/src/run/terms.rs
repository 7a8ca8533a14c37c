//! Terms of applications in a run: at its start, and where they change in its course.

use super::Stage;
use crate::handover::{Change, Handover, Partitions, handovers};
use partita_device::Device as _;
use partita_model::{ApplicationId, Terms};

impl Stage<'_> {
    /// Sets the terms of each player; without `old` there were none. Those whose minimum falls most
    /// go first, so that what one no longer asks for is there for the next.
    pub(super) fn set_terms(&mut self, old: &[Terms], new: &[Terms]) -> Result<(), String> {
        let sms = self.device.spec().sms;
        let min = |terms: &Terms| terms.min.map_or(0, |min| i32::from(min.on(sms)));
        let old = old.iter().map(min).chain(std::iter::repeat(0));
        let mut each: Vec<(i32, ApplicationId, Terms)> = { self.players.iter().zip(new).zip(old) }
            .map(|((player, terms), old)| (min(terms) - old, player.id, *terms))
            .collect();
        each.sort_by_key(|(rise, ..)| *rise);
        each.into_iter().try_for_each(|(_, id, terms)| {
            let set = self.engine.set_terms(&mut self.device, id, terms, None);
            set.map_err(|error| error.to_string())
        })
    }

    /// Notes what became of latency targets. Applications that have left keep what was noted last.
    pub(super) fn look_at_targets(&mut self) {
        for report in self.engine.application_reports() {
            let player = self.players.iter_mut().find(|player| player.id == report.id);
            if let Some(player) = player.filter(|_| report.target.is_some()) {
                player.target = report.target;
            }
        }
    }

    fn partitions(&self) -> Partitions {
        let reports = self.engine.partition_reports().into_iter();
        reports.map(|report| (report.application, report.sms)).collect()
    }

    /// Changes terms in the course of a run.
    pub(super) fn change_terms(&mut self, old: &[Terms], new: &[Terms]) -> Result<(), String> {
        self.end_change();
        let (at, before) = (self.device.now(), self.partitions());
        let change = Change { at, until: at, before, after: Partitions::new() };
        self.changes.push(change);
        self.set_terms(old, new)?;
        self.carry_out();
        Ok(())
    }

    /// Notes what the last change of terms has come to.
    fn end_change(&mut self) {
        let (until, after) = (self.device.now(), self.partitions());
        if let Some(last) = self.changes.last_mut() {
            (last.until, last.after) = (until, after);
        }
    }

    /// SMs that changed hands because terms changed.
    pub(super) fn handovers(&mut self) -> Result<Vec<Handover>, String> {
        if self.changes.is_empty() {
            return Ok(Vec::new());
        }
        self.end_change();
        let trace = self.engine.trace_report(None);
        if trace.dropped > 0 {
            return Err(format!("the trace lost {} entries", trace.dropped));
        }
        Ok(handovers(&trace.entries, &self.changes))
    }
}
