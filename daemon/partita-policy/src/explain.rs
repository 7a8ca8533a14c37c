//! From records to sentences, for `partita why`.

use partita_model::{
    ApplicationId, ApplicationRecord, Cause, Class, ContentionClass, DecisionRecord, Entitlement,
    EvenReason, Evidence, Level, Note, Notice, Priority, SmSet, SmsOf, TargetReport, Verdict,
    Weight,
};

/// Why the partitions are as they are, in sentences with numbers.
#[must_use]
pub fn explain(record: &DecisionRecord) -> Vec<String> {
    let mut sentences = vec![opening(record)];
    sentences.extend(record.notes.iter().map(|note| sentence(note, record)));
    sentences.extend(record.applications.iter().map(outcome));
    sentences
}

fn opening(record: &DecisionRecord) -> String {
    let DecisionRecord { sequence, time, partitioner, stage, .. } = record;
    let cause = match (record.cause, &record.interval) {
        (Cause::Interval, Some(interval)) => {
            format!("after an interval of {} cycles", interval.cycles)
        }
        (Cause::Interval, None) => "after an interval".to_owned(),
        (Cause::Configuration, _) => "because an administrator chose this policy".to_owned(),
        (Cause::Terms, _) => "because what an application may have has changed".to_owned(),
        (Cause::Membership, _) => {
            "because applications came, went, began or ceased to work".to_owned()
        }
    };
    format!("Decision {sequence} of {partitioner} ({stage}) at {} ms, {cause}.", millis(time.0))
}

fn outcome(record: &ApplicationRecord) -> String {
    let ApplicationRecord { application, gets, stalled, part, .. } = record;
    if let Some(part) = part {
        return format!("So {application} has {part} of each of {} SMs: {gets}.", gets.len());
    }
    if stalled.is_empty() {
        return format!("So {application} has {} SMs: {gets}.", gets.len());
    }
    format!("So {application} has {} SMs: {gets}; its workers wait on {stalled}.", gets.len())
}

/// What an application was promised, and what it has of it.
fn entitled(
    application: ApplicationId,
    entitlement: &Entitlement,
    gets: u16,
    (least, need, yields): (u16, Option<u16>, bool),
) -> String {
    let Entitlement { min, weight, priority, .. } = *entitlement;
    let sms = |count: u16| if count == 1 { "1 SM".to_owned() } else { format!("{count} SMs") };
    let mut terms = Vec::new();
    if min > 0 {
        terms.push(format!("a minimum of {}", sms(min)));
    }
    if let Some(max) = entitlement.limit() {
        terms.push(format!("a maximum of {}", sms(max)));
    }
    if weight != Weight::default() {
        terms.push(format!("weight {}", weight.get()));
    }
    if priority != Priority::Normal {
        terms.push(format!("priority `{}`", priority.name()));
    }
    let mut said = format!("{application} has {}, and gets {}", terms.join(", "), sms(gets));
    if gets < min {
        said += ": minima of applications that came before it leave no more";
    } else if let Some(need) = need.filter(|need| gets >= *need) {
        said += &format!(": its launches of late have CTAs for {}", sms(need));
    } else if yields && gets <= least.max(1) {
        said += ": it leaves the rest to applications of priority `latency`";
    }
    said + "."
}

/// SMs by application.
fn parts(of: &[SmsOf]) -> String {
    let parts = of.iter().map(|SmsOf { application, sms }| format!("{application} ({sms})"));
    parts.collect::<Vec<_>>().join(", ")
}

/// What became of an application's latency target.
#[must_use]
pub fn explain_target(application: ApplicationId, report: &TargetReport) -> String {
    let TargetReport { target, seen, missed, sms } = *report;
    let kept = seen.saturating_sub(missed);
    match (seen, sms) {
        (0, _) => format!("{application} has a latency target of {target}, and no request yet."),
        (_, Some(sms)) => format!(
            "{application} kept its latency target of {target} in {kept} of {seen} requests; {} \
             enough for that.",
            if sms == 1 { "1 SM is".to_owned() } else { format!("{sms} SMs are") }
        ),
        (_, None) => format!(
            "{application} kept its latency target of {target} in {kept} of {seen} requests; it \
             gets all the SMs that it can use."
        ),
    }
}

/// An administrator's part in what an application has.
#[must_use]
pub fn explain_pinned(application: ApplicationId, sms: &SmSet) -> String {
    format!("An administrator has pinned {application} to SMs {sms}.")
}

fn sentence(note: &Note, record: &DecisionRecord) -> String {
    match note {
        Note::Alone { application } if record.pinned.is_empty() => {
            format!("Nobody but {application} has work.")
        }
        // The policy does not see whether applications that are pinned have work.
        Note::Alone { application } => format!(
            "Of the applications that no administrator has pinned, only {application} has work."
        ),
        Note::Even { applications, least, most, reason } => {
            let shares = if least == most {
                format!("{least} SMs")
            } else {
                format!("{least} or {most} SMs")
            };
            let reason = match reason {
                EvenReason::Policy => "that is the policy",
                EvenReason::Profiling => "they are being measured under equal conditions",
                EvenReason::NoneMemoryIntensive => {
                    "none of them is known to be memory-intensive, so that what one would gain \
                     another would lose"
                }
            };
            format!("{applications} applications get {shares} each: {reason}.")
        }
        Note::Share { application, rule, share, gets } => format!(
            "The configuration gives {share} SMs to {rule}, which {application} matches; with \
             what is free it gets {gets}."
        ),
        Note::NoShare { application, gets } => {
            format!(
                "No share of the configuration matches {application}: it gets {gets} SMs of what \
                 is left."
            )
        }
        Note::Entitled { application, entitlement, gets, least, need, yields, takes, leaves } => {
            let mut said = entitled(*application, entitlement, *gets, (*least, *need, *yields));
            if !takes.is_empty() {
                said += &format!(" Beyond an equal split it has SMs of {}.", parts(takes));
            }
            if !leaves.is_empty() {
                said += &format!(" SMs of its equal split are with {}.", parts(leaves));
            }
            said
        }
        Note::NoRoom { application } => {
            format!("{application} waits: there are more applications than SMs.")
        }
        Note::Waits { application } => {
            format!("{application} waits for its turn: it does not run beside those that run now.")
        }
        Note::Met { application } => {
            format!("{application} runs alone until it is known what its kernels ask of the GPU.")
        }
        Note::Levels { application, compute, memory, compute_part, memory_part } => format!(
            "{application} alone uses {} of the issue slots, which is {}, and {} of the memory \
             bandwidth, which is {}.",
            percent(*compute_part),
            level(*compute),
            percent(*memory_part),
            level(*memory)
        ),
        Note::Pair { first, second, verdict, throughput } => {
            let together = match throughput {
                Some(found) => format!(" (together {} of one after the other)", percent(*found)),
                None => String::new(),
            };
            format!("{first} and {second} {}{together}.", pairing(*verdict))
        }
        Note::Shared { first, second, parts, throughput } => format!(
            "{first} and {second} share each SM, {} and {} of it: the model expects {} of what \
             they do one after the other.",
            parts.0,
            parts.1,
            percent(*throughput)
        ),
        Note::Cramped { application } => format!(
            "{application} shares no SM: a CTA of one of its kernels does not fit into a part of \
             one."
        ),
        Note::Contends { .. } | Note::Matched { .. } => matched(note),
        Note::Scored { .. } | Note::Moves { .. } | Note::Judged { .. } => moved(note),
        Note::Demand { application, useful, gets } => format!(
            "{application} would get no faster with more than {useful} SMs by its profile; it gets \
             {gets}."
        ),
        Note::Classified { application, class, evidence, quick } => {
            let slow = if *quick {
                ""
            } else {
                " Its CTAs are long: SMs that it loses may take a while to drain."
            };
            format!("{application} is {}: {}.{slow}", class_name(*class), reason(evidence))
        }
        Note::Measured { application, active, of, relative, limit, ctas } => format!(
            "With {active} SMs at work ({of} by the even split) {application} had {} of its speed \
             ({ctas} CTAs); {} are demanded.",
            percent(*relative),
            percent(*limit)
        ),
        Note::Tries { application, active, of } => {
            format!(
                "{application} is measured next with {active} SMs at work ({of} by the even split)."
            )
        }
        Note::Needs { application, sms, of, relative: Some(relative) } => format!(
            "{application} needs {sms} SMs: they keep {} of the speed that it had with {of}.",
            percent(*relative)
        ),
        Note::Needs { application, sms, of, relative: None } => {
            format!(
                "{application} needs {sms} of its {of} SMs: fewer were too slow or could not be \
                 measured."
            )
        }
        Note::Receives { application, from, to } => {
            format!("{application} goes from {from} to {to} SMs: it gets what others do not need.")
        }
        Note::Gates { sms } => {
            format!("{} SMs stay empty to save power: {sms}.", sms.len())
        }
        Note::Misfit { application, class, relative, least, most } => {
            let demanded = match most {
                Some(most) => format!("between {} and {}", percent(*least), percent(*most)),
                None => format!("at least {}", percent(*least)),
            };
            format!(
                "{application} was taken for {}, but its speed is {} of what it was compared with \
                 instead of {demanded}: \
                 it is classified again.",
                class_name(*class),
                percent(*relative)
            )
        }
        Note::ClassChanged { application, from, to } => format!(
            "{application} was {} and is {} now by its counters: it is classified again.",
            class_name(*from),
            class_name(*to)
        ),
    }
}

/// Punyala's classes and groups.
fn matched(note: &Note) -> String {
    match note {
        Note::Contends { application, class, dram_part, llc_part, issue_part } => format!(
            "{application} is of class {class} ({}): alone it takes {} of DRAM's bandwidth, {} of \
             the LLC's, and {} of the issue slots.",
            contention(*class),
            percent(*dram_part),
            percent(*llc_part),
            percent(*issue_part)
        ),
        Note::Matched { members, throughput, measured } => {
            let names: Vec<String> = members.iter().map(ToString::to_string).collect();
            let source = if *measured { "measured" } else { "estimated" };
            format!(
                "{} run together: by the {source} slowdowns of their classes they do {} of what \
                 they do one after the other.",
                names.join(", "),
                percent(*throughput)
            )
        }
        _ => String::new(),
    }
}

/// SMRA's scores and moves.
fn moved(note: &Note) -> String {
    match note {
        Note::Scored { application, score, issue_part, dram_part } => format!(
            "{application} has the score {score}: it issues in {} of the slots of its SMs and \
             takes {} of DRAM's bandwidth.",
            percent(*issue_part),
            percent(*dram_part)
        ),
        Note::Moves { from, to, sms } => format!(
            "{sms} SMs go from {from}, which has the highest score, to {to}, which has the lowest."
        ),
        Note::Judged { from, to, sms, relative } => {
            let verdict = if *relative < 1.0 { "go back" } else { "stay" };
            format!(
                "With {sms} SMs of {from} at {to} throughput was {} of what it was before: they \
                 {verdict}.",
                percent(*relative)
            )
        }
        _ => String::new(),
    }
}

/// A notice as a sentence.
#[must_use]
pub fn notice(notice: &Notice) -> String {
    match notice {
        Notice::NotSettled { since } => format!(
            "workers have not followed the decision of {} ms: a CTA may be very long, or spin",
            millis(since.0)
        ),
    }
}

fn level(level: Level) -> &'static str {
    match level {
        Level::Low => "low",
        Level::Medium => "medium",
        Level::High => "high",
    }
}

fn contention(class: ContentionClass) -> &'static str {
    match class {
        ContentionClass::Memory => "memory",
        ContentionClass::MemoryCache => "memory and cache",
        ContentionClass::Cache => "cache",
        ContentionClass::Compute => "compute",
    }
}

fn pairing(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Corun => "run together: they use different parts of the GPU",
        Verdict::Solo => "take turns: they want the same part of the GPU",
        Verdict::Disputed => "run together for now, to see what they do: the table says both",
        Verdict::Gained => "run together: they did more together",
        Verdict::Lost => "take turns: they did less together",
        Verdict::Unknown => "take turns: too little is known of one of them",
    }
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Compute => "compute-intensive",
        Class::Memory => "memory-intensive",
        Class::Unknown => "of unknown class",
    }
}

fn reason(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Bandwidth {
            demand,
            supply,
            apki,
            hit_rate,
            apki_bounds,
            hit_rate_bounds,
            certain,
        } => {
            let relation = if demand > supply { "more than" } else { "within" };
            let sure = match (certain, bounds(*apki_bounds, *hit_rate_bounds)) {
                (_, None) => String::new(),
                (true, Some(bounds)) => {
                    format!("; so it is wherever the truth lies between {bounds}")
                }
                (false, Some(bounds)) => {
                    format!("; it may be otherwise, for the truth lies between {bounds}")
                }
            };
            format!(
                "all SMs would ask for {:.1} GB/s ({apki:.1} LLC accesses per kilo warp \
                 instruction), {relation} the {:.1} GB/s \
                 that can be delivered at a hit rate of {}{sure}",
                demand / 1e9,
                supply / 1e9,
                percent(*hit_rate)
            )
        }
        Evidence::Scaling { more: 1, .. } => "it has a single SM".to_owned(),
        Evidence::Scaling { fewer, more, gain, limit } => {
            let relation = if gain < limit { "less than" } else { "at least" };
            format!(
                "{more} SMs make it {gain:.2} times as fast as {fewer}, {relation} {limit:.2} times"
            )
        }
        Evidence::NoProgress { cycles } => format!("it completed no CTA in {cycles} cycles"),
    }
}

/// What a profile leaves open, where it leaves anything open.
fn bounds(apki: (f64, f64), hit_rate: (f64, f64)) -> Option<String> {
    let open = apki.1 - apki.0 > 0.05 || hit_rate.1 - hit_rate.0 > 0.0005;
    open.then(|| {
        format!(
            "{:.1} and {:.1} accesses and hit rates of {} and {}",
            apki.0,
            apki.1,
            percent(hit_rate.0),
            percent(hit_rate.1)
        )
    })
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn millis(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1_000_000, nanos / 1_000 % 1_000)
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
