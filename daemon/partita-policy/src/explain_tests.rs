//! The sentences, word for word: what `partita why` says of records and notes.

use super::*;
use partita_model::{Nanos, Progress, SmPart, SmSet};

const ONE: ApplicationId = ApplicationId(1);
const TWO: ApplicationId = ApplicationId(2);

fn record(notes: Vec<Note>, applications: Vec<ApplicationRecord>) -> DecisionRecord {
    DecisionRecord {
        sequence: 7,
        time: Nanos(12_034_567),
        partitioner: "even".to_owned(),
        cause: Cause::Terms,
        interval: None,
        sms: SmSet::range(0, 8),
        pinned: SmSet::EMPTY,
        applications,
        gated: SmSet::EMPTY,
        stage: "terms".to_owned(),
        notes,
    }
}

/// What is said of one note.
fn said(note: Note) -> String {
    explain(&record(vec![note], Vec::new())).remove(1)
}

#[test]
fn a_record_begins_with_its_cause_and_ends_with_who_has_what() {
    let gets = ApplicationRecord {
        application: ONE,
        had: SmSet::EMPTY,
        had_stalled: SmSet::EMPTY,
        progress: Progress::default(),
        gets: SmSet::range(0, 4),
        stalled: SmSet::EMPTY,
        part: None,
    };
    let waits = ApplicationRecord { stalled: SmSet::range(2, 2), ..gets.clone() };
    let shares = ApplicationRecord { part: SmPart::new(3, 8), ..gets.clone() };
    assert_eq!(
        explain(&record(Vec::new(), vec![gets, waits, shares])),
        [
            "Decision 7 of even (terms) at 12.034 ms, because what an application may have has \
             changed.",
            "So application 1 has 4 SMs: 0-3.",
            "So application 1 has 4 SMs: 0-3; its workers wait on 2-3.",
            "So application 1 has 3/8 of each of 4 SMs: 0-3.",
        ]
    );
    let since = Nanos(5_000_000);
    assert_eq!(
        notice(&Notice::NotSettled { since }),
        "workers have not followed the decision of 5.000 ms: a CTA may be very long, or spin"
    );
}

#[test]
fn whoever_is_alone_may_be_so_beside_pinned_applications_only() {
    let alone = record(vec![Note::Alone { application: ONE }], Vec::new());
    assert_eq!(explain(&alone)[1], "Nobody but application 1 has work.");
    let beside = DecisionRecord { pinned: SmSet::range(8, 4), ..alone };
    assert_eq!(
        explain(&beside)[1],
        "Of the applications that no administrator has pinned, only application 1 has work."
    );
    assert_eq!(
        explain_pinned(TWO, &beside.pinned),
        "An administrator has pinned application 2 to SMs 8-11."
    );
}

#[test]
fn a_target_is_kept_or_not() {
    let target: partita_model::LatencyTarget = "250us".parse().unwrap();
    let of = |seen, missed, sms| explain_target(ONE, &TargetReport { target, seen, missed, sms });
    assert_eq!(of(0, 0, None), "application 1 has a latency target of 250us, and no request yet.");
    let kept = "application 1 kept its latency target of 250us in 7 of 10 requests; ";
    assert_eq!(of(10, 3, Some(1)), format!("{kept}1 SM is enough for that."));
    assert_eq!(of(10, 3, Some(5)), format!("{kept}5 SMs are enough for that."));
    assert_eq!(of(10, 3, None), format!("{kept}it gets all the SMs that it can use."));
}

#[test]
fn terms_are_told_with_what_they_bring() {
    let of = |gets, least, need, yields, takes: &[SmsOf], leaves: &[SmsOf]| {
        said(Note::Entitled {
            application: ONE,
            entitlement: Entitlement { min: 4, ..Entitlement::default() },
            gets,
            least,
            need,
            yields,
            takes: takes.to_vec(),
            leaves: leaves.to_vec(),
        })
    };
    let has = "application 1 has a minimum of 4 SMs, and gets ";
    let minima = ": minima of applications that came before it leave no more";
    let leaves = ": it leaves the rest to applications of priority `latency`";
    let launches = ": its launches of late have CTAs for ";
    for (gets, least, need, yields, expected) in [
        (3, 4, None, false, format!("3 SMs{minima}")),
        (4, 4, None, false, "4 SMs".to_owned()),
        (5, 4, Some(5), false, format!("5 SMs{launches}5 SMs")),
        (5, 4, Some(6), false, "5 SMs".to_owned()),
        (4, 4, Some(1), false, format!("4 SMs{launches}1 SM")),
        (4, 4, None, true, format!("4 SMs{leaves}")),
        (5, 4, None, true, "5 SMs".to_owned()),
    ] {
        assert_eq!(of(gets, least, need, yields, &[], &[]), format!("{has}{expected}."));
    }
    let others = [(2, 3), (5, 1)].map(|(id, sms)| SmsOf { application: ApplicationId(id), sms });
    let list = "application 2 (3), application 5 (1)";
    assert_eq!(
        of(8, 4, None, false, &others, &[]),
        format!("{has}8 SMs. Beyond an equal split it has SMs of {list}.")
    );
    assert_eq!(
        of(4, 4, None, false, &[], &others),
        format!("{has}4 SMs. SMs of its equal split are with {list}.")
    );
}

#[test]
fn even_shares_are_one_number_or_two() {
    let of = |least, most| {
        let reason = EvenReason::Policy;
        said(Note::Even { applications: 3, least, most, reason })
    };
    assert_eq!(of(8, 8), "3 applications get 8 SMs each: that is the policy.");
    assert_eq!(of(7, 8), "3 applications get 7 or 8 SMs each: that is the policy.");
}

#[test]
fn what_runs_together_is_told_with_its_class_and_verdict() {
    let levels = |compute, memory| {
        let (compute_part, memory_part) = (0.5, 0.125);
        said(Note::Levels { application: ONE, compute, memory, compute_part, memory_part })
    };
    let uses = |compute, memory| {
        format!(
            "application 1 alone uses 50.0 % of the issue slots, which is {compute}, and 12.5 % of \
             the memory bandwidth, which is {memory}."
        )
    };
    assert_eq!(levels(Level::Low, Level::Medium), uses("low", "medium"));
    assert_eq!(levels(Level::High, Level::Low), uses("high", "low"));
    for (verdict, throughput, words) in [
        (Verdict::Corun, None, "run together: they use different parts of the GPU."),
        (Verdict::Solo, None, "take turns: they want the same part of the GPU."),
        (
            Verdict::Disputed,
            None,
            "run together for now, to see what they do: the table says both.",
        ),
        (
            Verdict::Gained,
            Some(1.25),
            "run together: they did more together (together 125.0 % of one after the other).",
        ),
        (
            Verdict::Lost,
            Some(0.9),
            "take turns: they did less together (together 90.0 % of one after the other).",
        ),
        (Verdict::Unknown, None, "take turns: too little is known of one of them."),
    ] {
        let found = said(Note::Pair { first: ONE, second: TWO, verdict, throughput });
        assert_eq!(found, format!("application 1 and application 2 {words}"));
    }
    for (class, words) in [
        (ContentionClass::Memory, "M (memory)"),
        (ContentionClass::MemoryCache, "MC (memory and cache)"),
        (ContentionClass::Cache, "C (cache)"),
        (ContentionClass::Compute, "A (compute)"),
    ] {
        let (dram_part, llc_part, issue_part) = (0.6, 0.3, 0.1);
        assert_eq!(
            said(Note::Contends { application: ONE, class, dram_part, llc_part, issue_part }),
            format!(
                "application 1 is of class {words}: alone it takes 60.0 % of DRAM's bandwidth, \
                 30.0 % of the LLC's, and 10.0 % of the issue slots."
            )
        );
    }
    for (measured, source) in [(true, "measured"), (false, "estimated")] {
        assert_eq!(
            said(Note::Matched { members: vec![ONE, TWO], throughput: 1.5, measured }),
            format!(
                "application 1, application 2 run together: by the {source} slowdowns of their \
                 classes they do 150.0 % of what they do one after the other."
            )
        );
    }
}

#[test]
fn scores_and_moves_are_told() {
    let (issue_part, dram_part) = (0.25, 0.5);
    assert_eq!(
        said(Note::Scored { application: ONE, score: 2, issue_part, dram_part }),
        "application 1 has the score 2: it issues in 25.0 % of the slots of its SMs and takes \
         50.0 % of DRAM's bandwidth."
    );
    assert_eq!(
        said(Note::Moves { from: ONE, to: TWO, sms: 3 }),
        "3 SMs go from application 1, which has the highest score, to application 2, which has \
         the lowest."
    );
    // Moves that change nothing stay.
    for (relative, part, verdict) in
        [(0.95, "95.0", "go back"), (1.0, "100.0", "stay"), (1.05, "105.0", "stay")]
    {
        assert_eq!(
            said(Note::Judged { from: ONE, to: TWO, sms: 3, relative }),
            format!(
                "With 3 SMs of application 1 at application 2 throughput was {part} % of what it \
                 was before: they {verdict}."
            )
        );
    }
}

#[test]
fn a_class_is_told_with_its_evidence() {
    let of =
        |class, evidence| said(Note::Classified { application: ONE, class, evidence, quick: true });
    let by_bandwidth = |demand, apki_bounds, hit_rate_bounds, certain| {
        let (supply, apki, hit_rate) = (100e9, 20.0, 0.5);
        let evidence = Evidence::Bandwidth {
            demand,
            supply,
            apki,
            hit_rate,
            apki_bounds,
            hit_rate_bounds,
            certain,
        };
        of(Class::Unknown, evidence)
    };
    let told = |demand, relation, open: &str| {
        format!(
            "application 1 is of unknown class: all SMs would ask for {demand} GB/s (20.0 LLC \
             accesses per kilo warp instruction), {relation} the 100.0 GB/s that can be delivered \
             at a hit rate of 50.0 %{open}."
        )
    };
    let exact = ((20.0, 20.0), (0.5, 0.5));
    let exactly = |demand| by_bandwidth(demand, exact.0, exact.1, true);
    assert_eq!(exactly(101e9), told("101.0", "more than", ""));
    // What is asked for can be delivered.
    assert_eq!(exactly(100e9), told("100.0", "within", ""));
    // Bounds that differ by no digit that is shown are not open.
    assert_eq!(by_bandwidth(9e9, (20.0, 20.04), (0.5, 0.5004), true), told("9.0", "within", ""));
    let between = |low, high, least, most| {
        format!("{low} and {high} accesses and hit rates of {least} % and {most} %")
    };
    let (sure, open) = (
        "; so it is wherever the truth lies between ",
        "; it may be otherwise, for \
        the truth lies between ",
    );
    let bounds = format!("{sure}{}", between("18.0", "22.0", "50.0", "50.0"));
    assert_eq!(by_bandwidth(9e9, (18.0, 22.0), (0.5, 0.5), true), told("9.0", "within", &bounds));
    let bounds = format!("{open}{}", between("20.0", "20.0", "40.0", "60.0"));
    assert_eq!(by_bandwidth(9e9, (20.0, 20.0), (0.4, 0.6), false), told("9.0", "within", &bounds));

    let scaling =
        |gain| of(Class::Compute, Evidence::Scaling { fewer: 12, more: 24, gain, limit: 1.5 });
    for (gain, relation) in [(1.4, "less than"), (1.5, "at least"), (1.6, "at least")] {
        assert_eq!(
            scaling(gain),
            format!(
                "application 1 is compute-intensive: 24 SMs make it {gain:.2} times as fast as 12, \
                 {relation} 1.50 times."
            )
        );
    }
}
