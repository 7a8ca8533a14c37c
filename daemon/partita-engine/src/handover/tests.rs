//! SMs that change hands, one step after the other.

use super::*;
use crate::tests::fake_device::facts;

const A: ApplicationId = ApplicationId(1);
const B: ApplicationId = ApplicationId(2);

fn targets(of: &[(ApplicationId, &str)]) -> Targets {
    let sms = of.iter().map(|(id, sms)| (*id, sms.parse().unwrap())).collect();
    Targets { sms, parts: BTreeMap::new() }
}

/// Applications A and B share these SMs; A has `eighths` of each.
fn shared(sms: &str, eighths: u16) -> Targets {
    let part = |ctas| SmPart::new(ctas, 8).unwrap();
    let parts = BTreeMap::from([(A, part(eighths)), (B, part(8 - eighths))]);
    Targets { parts, ..targets(&[(A, sms), (B, sms)]) }
}

fn aim(handover: &mut Handover, targets: &Targets) -> Vec<Granted> {
    handover.aim(targets, Nanos(7))
}

/// A step in which no worker lingers.
fn advance(handover: &mut Handover, is_on: impl Fn(ApplicationId, SmId) -> bool) -> Vec<Granted> {
    handover.advance(|id, sm, _| match is_on(id, sm) {
        true => Presence::Leaving,
        false => Presence::Gone,
    })
}

fn granted(handover: &Handover) -> [String; 2] {
    [A, B].map(|id| handover.granted(id).to_string())
}

#[test]
fn an_sm_changes_hands_when_its_holder_has_left() {
    let mut handover = Handover::new(&facts(4));
    assert_eq!(aim(&mut handover, &targets(&[(A, "0-3")])), []);
    assert_eq!(advance(&mut handover, |_, _| true).len(), 1, "nobody has to leave a free SM");
    let losses = aim(&mut handover, &targets(&[(A, "0-1"), (B, "2-3")]));
    assert_eq!(losses.len(), 1);
    assert_eq!(granted(&handover), ["0-1", "none"]);
    assert_eq!(handover.given_away(A).collect::<Vec<_>>(), [2, 3].map(|sm| (SmId(sm), Nanos(7))));
    advance(&mut handover, |id, sm| id == A && sm == SmId(3));
    assert!(handover.is_pending());
    assert_eq!(granted(&handover), ["0-1", "2"]);
    // The next decision takes back what has not changed hands.
    assert!(handover.differs(&targets(&[(A, "0-1,3"), (B, "2")])));
    aim(&mut handover, &targets(&[(A, "0-1,3"), (B, "2")]));
    advance(&mut handover, |_, _| true);
    assert_eq!(granted(&handover), ["0-1,3", "2"]);
    assert!(!handover.is_pending() && !handover.differs(&targets(&[(A, "0-1,3"), (B, "2")])));
}

#[test]
fn an_sm_that_two_share_drains_of_whoever_had_all_of_it() {
    let mut handover = Handover::new(&facts(2));
    aim(&mut handover, &targets(&[(A, "0-1")]));
    advance(&mut handover, |_, _| false);
    assert!(handover.differs(&shared("0-1", 3)));
    let losses = aim(&mut handover, &shared("0-1", 3));
    assert_eq!(losses.len(), 1);
    assert_eq!(handover.target(A), handover.target(B));
    assert_eq!(handover.given_away(A).count(), 2, "B waits for them");
    advance(&mut handover, |id, sm| id == A && sm == SmId(1));
    assert_eq!(granted(&handover), ["0", "0"], "A had all of SM 1");
    advance(&mut handover, |_, _| false);
    assert_eq!(granted(&handover), ["0-1", "0-1"]);
    assert_eq!([A, B].map(|id| handover.part(id)), [SmPart::new(3, 8), SmPart::new(5, 8)]);
    assert!(!handover.differs(&shared("0-1", 3)) && handover.differs(&shared("0-1", 4)));
    // Other parts begin when both have left.
    aim(&mut handover, &shared("0-1", 4));
    assert_eq!(
        (granted(&handover), handover.losers()),
        (["none", "none"].map(str::to_owned), vec![A, B])
    );
    advance(&mut handover, |id, _| id == B);
    assert!(handover.is_pending());
    advance(&mut handover, |_, _| false);
    assert_eq!(handover.part(A), SmPart::new(4, 8));
    // One of them gets all.
    aim(&mut handover, &targets(&[(B, "0-1")]));
    advance(&mut handover, |_, _| false);
    assert_eq!((granted(&handover), handover.part(B)), (["none", "0-1"].map(str::to_owned), None));
}

#[test]
fn an_sm_that_nobody_gets_drains_too() {
    let mut handover = Handover::new(&facts(2));
    aim(&mut handover, &targets(&[(A, "0-1")]));
    advance(&mut handover, |_, _| false);
    aim(&mut handover, &targets(&[(A, "0")]));
    advance(&mut handover, |_, _| true);
    aim(&mut handover, &targets(&[(A, "0"), (B, "1")]));
    advance(&mut handover, |id, _| id == A);
    assert_eq!(granted(&handover), ["0", "none"], "workers of the first are there");
    advance(&mut handover, |_, _| false);
    assert_eq!(granted(&handover), ["0", "1"]);
}

#[test]
fn an_sm_goes_on_while_workers_linger() {
    let mut handover = Handover::new(&facts(4));
    aim(&mut handover, &targets(&[(A, "0-3")]));
    advance(&mut handover, |_, _| false);
    assert!(handover.has_all(A));
    aim(&mut handover, &targets(&[(A, "0-1"), (B, "2-3")]));
    // The workers on SM 3 complete nothing; those on SM 2 will leave.
    let seen = |id, SmId(sm), since| {
        assert_eq!(since, Nanos(7), "when A lost them");
        match (id, sm) {
            (A, 2) => Presence::Leaving,
            (A, 3) => Presence::Lingering,
            _ => Presence::Gone,
        }
    };
    handover.advance(seen);
    assert_eq!(
        (granted(&handover), handover.is_pending()),
        (["0-1", "3"].map(str::to_owned), true)
    );
    assert_eq!((handover.lingering.of(A), handover.losers()), (SmSet::range(3, 1), vec![A]));
    assert_eq!(handover.given_away(A).collect::<Vec<_>>(), [2, 3].map(|sm| (SmId(sm), Nanos(7))));
    handover.advance(|_, _, _| Presence::Gone);
    assert!(!handover.is_pending(), "B has its SMs");
    // B may have all SMs, and not for itself.
    aim(&mut handover, &targets(&[(B, "0-3")]));
    advance(&mut handover, |_, _| false);
    assert_eq!(
        (granted(&handover), handover.has_all(B)),
        (["none", "0-3"].map(str::to_owned), false)
    );
    handover.lingering.see_off(|id, _| id == A);
    assert_eq!(handover.lingering.sms(), SmSet::range(3, 1));
    // A gets its SM back when B has left.
    aim(&mut handover, &targets(&[(A, "3"), (B, "0-2")]));
    advance(&mut handover, |id, _| id == B);
    assert_eq!(granted(&handover), ["none", "0-2"]);
    assert_eq!(handover.given_away(A).count(), 0, "it is in its own way at most");
    advance(&mut handover, |_, _| false);
    assert_eq!(
        (granted(&handover), handover.lingering.sms()),
        (["3", "0-2"].map(str::to_owned), SmSet::EMPTY)
    );
    assert_eq!(handover.given_away(A).count(), 0);
}

#[test]
fn lingering_workers_that_have_gone_are_forgotten() {
    let mut handover = Handover::new(&facts(2));
    aim(&mut handover, &targets(&[(A, "0-1")]));
    advance(&mut handover, |_, _| false);
    aim(&mut handover, &targets(&[(B, "0-1")]));
    handover.advance(|_, _, _| Presence::Lingering);
    handover.lingering.see_off(|_, sm| sm == SmId(1));
    assert_eq!((handover.lingering.sms(), handover.has_all(B)), (SmSet::range(1, 1), false));
    assert!(!handover.is_at_rest());
    handover.lingering.see_off(|_, _| false);
    assert!(handover.has_all(B) && handover.is_at_rest() && handover.losers().is_empty());
}

#[test]
fn two_share_an_sm_where_nobody_lingers() {
    let mut handover = Handover::new(&facts(1));
    aim(&mut handover, &targets(&[(A, "0")]));
    advance(&mut handover, |_, _| false);
    aim(&mut handover, &shared("0", 3));
    handover.advance(|_, _, _| Presence::Lingering);
    assert!(handover.is_pending() && handover.lingering.is_empty());
    advance(&mut handover, |_, _| false);
    assert_eq!(granted(&handover), ["0", "0"]);
    // Nor where they linger beside another.
    aim(&mut handover, &targets(&[(A, "0")]));
    advance(&mut handover, |_, _| false);
    aim(&mut handover, &targets(&[(B, "0")]));
    handover.advance(|_, _, _| Presence::Lingering);
    aim(&mut handover, &shared("0", 3));
    advance(&mut handover, |_, _| false);
    assert_eq!(granted(&handover), ["none", "none"]);
    assert_eq!(handover.given_away(A).collect::<Vec<_>>(), [(SmId(0), Nanos(7))]);
    handover.lingering.see_off(|_, _| false);
    advance(&mut handover, |_, _| false);
    assert_eq!(granted(&handover), ["0", "0"]);
    // Nor does an SM that nobody gets go anywhere.
    aim(&mut handover, &targets(&[]));
    handover.advance(|_, _, _| Presence::Lingering);
    assert!(handover.is_pending() && handover.lingering.is_empty());
    handover.aim(&targets(&[(B, "0")]), Nanos(50));
    let lost = [(SmId(0), Nanos(50))];
    assert_eq!(handover.given_away(A).collect::<Vec<_>>(), lost, "nobody waited before");
    handover.aim(&targets(&[(B, "0")]), Nanos(60));
    assert_eq!(handover.given_away(A).collect::<Vec<_>>(), lost);
}
