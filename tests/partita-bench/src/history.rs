//! What the policy says in the course of a run.

use partita_engine::Engine;
use partita_model::{ApplicationId, Cause, Class, Evidence, Nanos, Note};
use partita_policy::explain;
use std::collections::BTreeMap;

/// What the policy has said so far.
#[derive(Default)]
pub(crate) struct History {
    sequence: u64,
    pub(crate) classes: BTreeMap<ApplicationId, Classes>,
    pub(crate) searched: Option<u64>,
    pub(crate) again: u32,
    pub(crate) stage: String,
    pub(crate) decisions: Vec<String>,
}

pub(crate) struct Classes {
    pub(crate) first: Class,
    pub(crate) evidence: Evidence,
    pub(crate) last: Class,
}

impl History {
    /// Takes in the decisions since the last time.
    pub(crate) fn read(&mut self, engine: &Engine, begin: Nanos) {
        for record in engine.decisions().filter(|record| record.sequence > self.sequence) {
            for note in &record.notes {
                if let Note::Classified { application, class, evidence, .. } = note {
                    let new = Classes { first: *class, evidence: *evidence, last: *class };
                    self.classes.entry(*application).or_insert(new).last = *class;
                }
            }
            if ["watch", "found"].contains(&&*record.stage) && self.searched.is_none() {
                self.searched = Some(record.time.saturating_sub(begin).0);
            }
            if record.stage == "profile" && record.cause == Cause::Interval && self.stage == "watch"
            {
                self.again += 1;
            }
            self.stage.clone_from(&record.stage);
            self.decisions.push(explain(record).join(" "));
        }
        self.sequence = engine.decisions().last().map_or(self.sequence, |record| record.sequence);
    }
}
