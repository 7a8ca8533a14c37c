//! Kernels with tensor memory in the forms in which they run beside others.

use super::{Case, compare};
use partita_emu::Timing;
use partita_emu::direct::Form;

/// Rows of a warp shift; each form must leave the same words.
fn case(ctas: usize) -> Case {
    let body = format!("tcgen05.shift.cta_group::{ctas}.down [%r5+4194316];\n");
    Case::new(ctas, body)
}

#[test]
fn tickets_and_fences_change_no_value() {
    for ctas in [1, 2] {
        let case = case(ctas);
        let wanted = case.run();
        for form in [Form::Ticket, Form::Fenced] {
            for timing in [Timing::Off, Timing::On] {
                let compared = compare(&form, &case.run_as(form, timing), &wanted);
                assert!(compared >= 2_000);
            }
        }
    }
}

/// A worker would keep the columns and the permit of one CTA for the next.
#[test]
fn a_worker_is_refused_by_name() {
    let error = case(1).error_as(Form::Worker { task: 4 });
    assert!(error.contains("tcgen05.alloc"), "{error}");
}
