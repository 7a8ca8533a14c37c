//! Applications under advisers: kernels are profiled at their first launches and remembered over a
//! restart, and nobody waits for ever.

use super::{DEVICE, Daemon};
use partita_model::{KernelProfile, Note, StatusReport};
use std::path::Path;

const POLICY: [&str; 2] = ["--policy", "slate"];

/// Three programs that launch the same kernel several times, all at once.
fn compute(daemon: &Daemon) -> StatusReport {
    let clients: Vec<_> = (0..3).map(|_| daemon.connect()).collect();
    let spinning: Vec<_> =
        clients.iter().map(|client| [(); 4].map(|()| client.spin(200, 60))).collect();
    for (client, launches) in clients.iter().zip(&spinning) {
        launches.iter().for_each(|spinning| client.check(spinning));
    }
    daemon.status()
}

fn notes(status: &StatusReport) -> Vec<Note> {
    status.policy.decisions.iter().flat_map(|decision| decision.notes.clone()).collect()
}

fn profiles(status: &StatusReport) -> Vec<KernelProfile> {
    let kernels = status.applications.iter().flat_map(|application| &application.kernels);
    kernels.filter_map(|kernel| kernel.profile).collect()
}

#[test]
fn kernels_are_known_after_their_first_launches_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let variables: [(&str, &Path); 1] = [("PARTITA_STATE_DIR", &state)];
    let daemon = Daemon::serving(DEVICE, &variables, &POLICY);
    let status = compute(&daemon);
    assert_eq!((&*status.policy.selector, &*status.policy.partitioner), ("slate", "demand"));
    let known = profiles(&status);
    assert!(known.iter().any(|profile| profile.alone.is_some()), "{known:?}");
    drop(daemon);

    let daemon = Daemon::serving(DEVICE, &variables, &POLICY);
    let told = notes(&compute(&daemon));
    assert!(!told.iter().any(|note| matches!(note, Note::Met { .. })), "{told:?}");
    assert!(told.iter().any(|note| matches!(note, Note::Levels { .. })), "{told:?}");
}

/// Kernels that are alike share no SM: they take turns.
#[test]
fn kernelet_serves_programs_that_want_the_same() {
    let daemon = Daemon::serving(DEVICE, &[], &["--policy", "kernelet"]);
    let status = compute(&daemon);
    assert_eq!((&*status.policy.selector, &*status.policy.partitioner), ("kernelet", "even"));
    let told = notes(&status);
    assert!(!told.iter().any(|note| matches!(note, Note::Shared { .. })), "{told:?}");
    assert!(told.iter().any(|note| matches!(note, Note::Waits { .. })), "{told:?}");
}

/// Kernels that are alike are of one class; the matching says which.
#[test]
fn matching_serves_programs_and_names_their_classes() {
    let daemon = Daemon::serving(DEVICE, &[], &["--policy", "matching"]);
    let status = compute(&daemon);
    assert_eq!((&*status.policy.selector, &*status.policy.partitioner), ("matching", "smra"));
    let told = notes(&status);
    assert!(told.iter().any(|note| matches!(note, Note::Contends { .. })), "{told:?}");
}
