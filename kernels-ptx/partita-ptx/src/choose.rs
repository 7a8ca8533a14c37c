//! The choice between the forms: `worker` where control flow permits it, else `ticket`, else the
//! original.
//!
//! A worker claims many CTAs and pays once for its start, so it comes first. The report keeps the
//! worker's obstacles ([`KernelReport::passed_over`]); the ticket's obstacles are its refusals.

use std::collections::BTreeMap;

use crate::ir::Module;
use crate::report::{KernelReport, Outcome, Refusal};
use crate::worker::{Rewritten, WorkerOptions};
use crate::{ticket, worker};

/// Brings every kernel into the best form that it can take.
#[must_use]
pub fn choose(module: &Module, options: &WorkerOptions) -> Rewritten {
    let checked = worker::check_all(module, options);
    let fallback: BTreeMap<_, Vec<Refusal>> = checked
        .iter()
        .filter_map(|(kernel, result)| Some((kernel.func, result.as_ref().err()?.clone())))
        .collect();
    let tickets = ticket::rewrite(module, options, &|func| fallback.contains_key(&func));
    let Rewritten { module, reports } = tickets;
    let mut result = worker::rewrite(module, checked, options, &|func| {
        reports.iter().any(|report| report.func == func && report.rewritten().is_some())
    });
    let mut by_ticket: BTreeMap<_, KernelReport> =
        reports.into_iter().map(|report| (report.func, report)).collect();
    for report in &mut result.reports {
        let Some(refusals) = fallback.get(&report.func) else { continue };
        let ticket = by_ticket.remove(&report.func).map(|report| report.outcome);
        if let Some(outcome @ Outcome::Rewritten(_)) = ticket {
            report.outcome = outcome;
            report.passed_over.clone_from(refusals);
        }
    }
    result
}
