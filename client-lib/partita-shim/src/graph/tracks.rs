//! The assignment of a graph's steps to streams (tracks), and the waits between tracks.
//!
//! Track 0 is the stream in which the graph is launched. A step continues the track of a step that
//! it comes after, if that step is the track's last; otherwise the step opens a track. Steps are
//! laid out in an order that respects the edges, so every wait points back. No step can wait for
//! itself, whatever shares a track.

/// Tracks of one graph: the device keeps no more kernels apart than a few, and each costs a stream.
pub const MAX_TRACKS: usize = 16;

/// The place of a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Its track.
    pub track: usize,
    /// Steps of other tracks that it waits for.
    pub waits: Vec<usize>,
    /// Whether the step waits for the launch's start, because no earlier step of its track does.
    pub waits_for_start: bool,
    /// Whether a step of another track waits for this step.
    pub is_waited_for: bool,
}

/// The places of all steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// By step.
    pub places: Vec<Place>,
    /// The number of tracks, including the first.
    pub tracks: usize,
    /// Steps of other tracks than the first that the launch's end waits for.
    pub ends: Vec<usize>,
}

/// Lays steps out. `dependencies` has for each step those, before it, that it comes after.
pub fn lay_out(dependencies: &[Vec<usize>]) -> Layout {
    let mut places: Vec<Place> = Vec::with_capacity(dependencies.len());
    let mut last_of: Vec<Option<usize>> = vec![None];
    let mut has_dependents = vec![false; dependencies.len()];
    for (step, before) in dependencies.iter().enumerate() {
        let goes_on = before
            .iter()
            .map(|other| places[*other].track)
            .find(|track| last_of[*track].is_some_and(|last| before.contains(&last)));
        let track = match goes_on {
            Some(track) => track,
            None if last_of[0].is_none() && before.is_empty() => 0,
            None if last_of.len() < MAX_TRACKS => {
                last_of.push(None);
                last_of.len() - 1
            }
            None => step % MAX_TRACKS,
        };
        last_of[track] = Some(step);
        let waits: Vec<usize> =
            before.iter().copied().filter(|other| places[*other].track != track).collect();
        for other in before {
            has_dependents[*other] = true;
        }
        for other in &waits {
            places[*other].is_waited_for = true;
        }
        let waits_for_start = before.is_empty() && track != 0;
        places.push(Place { track, waits, waits_for_start, is_waited_for: false });
    }
    let ends: Vec<usize> = (0..places.len())
        .filter(|step| !has_dependents[*step] && places[*step].track != 0)
        .collect();
    for step in &ends {
        places[*step].is_waited_for = true;
    }
    Layout { places, tracks: last_of.len(), ends }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// For each step, all steps that have ended when it begins.
    fn before_each(layout: &Layout) -> Vec<BTreeSet<usize>> {
        let mut before: Vec<BTreeSet<usize>> = Vec::new();
        for (step, place) in layout.places.iter().enumerate() {
            let earlier = (0..step).rev().find(|other| layout.places[*other].track == place.track);
            let mut all = BTreeSet::new();
            for other in place.waits.iter().copied().chain(earlier) {
                all.insert(other);
                all.extend(before[other].iter().copied());
            }
            before.push(all);
        }
        before
    }

    #[test]
    fn a_chain_is_one_track_and_a_fork_is_two() {
        let chain = lay_out(&[vec![], vec![0], vec![1]]);
        assert_eq!((chain.tracks, chain.ends.len()), (1, 0));
        let diamond = lay_out(&[vec![], vec![0], vec![0], vec![1, 2]]);
        assert_eq!(diamond.tracks, 2);
        let tracks: Vec<usize> = diamond.places.iter().map(|place| place.track).collect();
        assert_eq!(tracks, [0, 0, 1, 0]);
        assert_eq!(diamond.places[2].waits, [0]);
        assert_eq!(diamond.places[3].waits, [2]);
        assert!(diamond.ends.is_empty());
    }

    #[test]
    fn separate_roots_run_beside_each_other_and_both_are_waited_for() {
        let layout = lay_out(&[vec![], vec![], vec![0]]);
        assert!(layout.places[1].waits_for_start);
        assert_eq!(layout.ends, [1]);
    }

    #[test]
    fn what_a_step_comes_after_is_over_when_it_begins() {
        let mut state = 12345_u64;
        let mut below = |bound: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % bound
        };
        for _ in 0..50 {
            let steps: Vec<Vec<usize>> = (0..60)
                .map(|step| {
                    let wanted = if step == 0 { 0 } else { below(4) };
                    let chosen: BTreeSet<usize> = (0..wanted).map(|_| below(step)).collect();
                    chosen.into_iter().collect()
                })
                .collect();
            let layout = lay_out(&steps);
            assert!(layout.tracks <= MAX_TRACKS);
            for (step, over) in before_each(&layout).iter().enumerate() {
                assert!(
                    steps[step].iter().all(|other| over.contains(other)),
                    "{step} of {steps:?}"
                );
            }
        }
    }
}
