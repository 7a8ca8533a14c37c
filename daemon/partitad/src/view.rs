//! What a user sees of a status report: its own applications, and those of others in sum.
//!
//! Names of programs and kernels, process ids, profiles and reasons of other users' applications
//! are nobody else's business. Whatever names an application that is not the user's own goes; what
//! concerns the GPU as a whole stays.

use partita_model::{
    ApplicationId, DecisionRecord, Note, OtherUsers, SmSet, StatusReport, TenantId,
};
use std::collections::BTreeSet;

/// Reduces the report of one GPU to what `tenant` may see.
pub fn keep_own(report: &mut StatusReport, tenant: TenantId) {
    let (own, foreign): (Vec<_>, Vec<_>) = std::mem::take(&mut report.applications)
        .into_iter()
        .partition(|application| application.tenant == tenant);
    let mut others = OtherUsers { applications: foreign.len(), ..OtherUsers::default() };
    for application in &foreign {
        others.sessions += application.sessions.len();
        others.memory_used_bytes += application.memory_used_bytes;
        others.launches_completed += application.launches_completed;
        others.ctas_completed += application.ctas_completed;
    }
    let ids: BTreeSet<ApplicationId> = own.iter().map(|application| application.id).collect();
    let (mine, theirs): (Vec<_>, Vec<_>) = std::mem::take(&mut report.partitions)
        .into_iter()
        .partition(|partition| ids.contains(&partition.application));
    let sms = theirs.iter().fold(SmSet::EMPTY, |all, partition| all.union(&partition.sms));
    others.sms = sms.len();
    (report.applications, report.partitions) = (own, mine);
    report.policy.why.retain(|sentence| names_only(sentence, &ids));
    report.policy.decisions.retain_mut(|decision| keep_of_decision(decision, &ids));
    report.other_users = Some(others);
}

/// Whether anything of the decision is left.
fn keep_of_decision(decision: &mut DecisionRecord, own: &BTreeSet<ApplicationId>) -> bool {
    decision.applications.retain(|record| own.contains(&record.application));
    let is_own = |note: &Note| note.application().is_none_or(|id| own.contains(&id));
    decision.notes.retain(is_own);
    !decision.applications.is_empty()
}

/// Whether every application that the sentence names is one of these. Sentences name applications
/// as [`ApplicationId`] prints.
pub fn names_only(sentence: &str, own: &BTreeSet<ApplicationId>) -> bool {
    sentence.split("application ").skip(1).all(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        match rest[..digits].parse() {
            Ok(id) => own.contains(&ApplicationId(id)),
            // The word in another sense, or a number that no application has.
            Err(_) => digits == 0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_about_others_go() {
        let own = BTreeSet::from([ApplicationId(1), ApplicationId(12)]);
        let check = |sentence: &str, stays: bool| {
            assert_eq!(names_only(sentence, &own), stays, "{sentence}");
        };
        check("2 applications get 12 SMs each: that is the policy.", true);
        check("So application 1 has 12 SMs: 0-11.", true);
        check("So application 12 has 12 SMs: 12-23.", true);
        check("So application 2 has 12 SMs: 12-23.", false);
        check("application 2: kernel `application 1` has completed no CTA for 5 ms", false);
        check("an application is stuck", true);
        check("application 99999999999999999999", false);
    }
}
