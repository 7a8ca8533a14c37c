//! Tickets that claim whole clusters: where they start, and the SMs that are left to them.

use super::world::{CLUSTER_TICKET, LONG, World};
use crate::{Action, CloseReason, Request};
use partita_model::{CudaResult, Dim3, SessionId, SmSet};

/// A device of eight SMs in groups of two; a group holds 16 CTAs.
fn world() -> World {
    let mut world = World::new(8);
    world.device.groups = ["0-1", "2,4", "3,5", "6-7"].map(|sms| sms.parse().unwrap()).to_vec();
    world
}

/// Launches `ctas` CTAs in clusters of `cluster`.
fn start(world: &mut World, session: SessionId, ctas: u32, cluster: u32) {
    let mut launch = World::launch(0, CLUSTER_TICKET, ctas);
    launch.cluster = Dim3::linear(cluster);
    let sequence = world.send(session, Request::Launch(launch));
    assert_eq!(world.replies[&(session, sequence)].0, CudaResult::SUCCESS);
}

fn form(world: &World, application: usize) -> (String, Option<String>) {
    let kernel = &world.engine.application_reports()[application].kernels[0];
    (kernel.form.clone(), kernel.reason.clone())
}

#[test]
fn waves_have_whole_clusters_and_are_kept_to_groups() {
    for loading_waits in [false, true] {
        play(loading_waits);
    }
}

/// Two applications, one of them with clusters. `loading_waits`: SMs are made ready for waves when
/// nothing runs.
fn play(loading_waits: bool) {
    let mut world = world();
    let ((a, _), (b, of_b)) = (world.session(), world.session());
    world.device.loading_waits = loading_waits;
    world.start(a, 0, LONG, if loading_waits { 500 } else { 100_000 });
    world.run_for(100);
    start(&mut world, b, 6_000, 3);
    world.run_for(300);
    assert_eq!(form(&world, 1).0, "ticket");
    if !loading_waits {
        let own = world.partition(of_b);
        assert_eq!(own.len(), 4);
        assert!(world.device.kept_to.contains(&own), "{:?}", world.device.kept_to);
    }
    assert_eq!(world.synchronize(b), 0);
    assert_eq!(world.engine.application_reports()[1].ctas_completed, 6_000);
    let clusters = &world.device.clusters;
    // Two groups hold five clusters of three each. Alone, waves are larger.
    let most = if loading_waits { u128::MAX } else { 30 };
    let is_whole = |&(ctas, cluster): &(u128, u128)| cluster == 3 && ctas % 3 == 0 && ctas <= most;
    assert!(clusters.len() > 3 && clusters.iter().all(is_whole), "{clusters:?}");
    assert_eq!(world.synchronize(a), 0);
    world.finish();
}

#[test]
fn where_no_sms_hold_a_cluster_the_launch_runs_alone() {
    for (cluster, plan, why) in [
        // A CTA more than a group holds.
        (17, "2-7", "hold no cluster of 17 CTAs"),
        // The device cannot keep waves to these.
        (8, "1,3,5,7", "are no whole groups"),
    ] {
        let mut world = world();
        let ((a, of_a), (b, of_b)) = (world.session(), world.session());
        let rest = SmSet::range(0, 8).difference(&plan.parse().unwrap()).to_string();
        world.set_plan(&[(of_a, &rest), (of_b, plan)]).unwrap();
        world.start(a, 0, LONG, 100);
        start(&mut world, b, 170 / cluster * cluster, cluster);
        world.start(a, 0, LONG, 100);
        assert_eq!((world.synchronize(b), world.synchronize(a)), (0, 0));
        let (form, reason) = form(&world, 1);
        assert_eq!(form, "ticket", "as it was queued; {reason:?}");
        let originals = world.device.launched.iter().filter(|name| name.ends_with("-original"));
        assert_eq!(originals.count(), 1, "{why}");
        let said =
            |action: &Action| matches!(action, Action::Log { text, .. } if text.contains(why));
        assert!(world.actions.iter().any(said), "{why}");
        world.finish();
    }
}

#[test]
fn a_running_launch_keeps_the_sms_for_one_cluster() {
    let mut world = world();
    let (a, of_a) = world.session();
    start(&mut world, a, 60_000, 12);
    world.run_for(200);
    let others: Vec<_> = (0..7).map(|_| world.session().0).collect();
    for other in &others {
        world.start(*other, 0, LONG, 10_000);
    }
    // An even share would be one SM, which holds eight CTAs.
    world.run_for(3_000);
    let own = world.partition(of_a);
    let group = |sms: &str| sms.parse::<SmSet>().unwrap().difference(&own).is_empty();
    assert!(["0-1", "2,4", "3,5", "6-7"].into_iter().any(group), "{own}");
    assert_eq!(world.synchronize(a), 0);
    for other in others {
        assert_eq!(world.synchronize(other), 0);
    }
    world.finish();
}

#[test]
fn what_an_administrator_gives_others_is_not_kept() {
    let mut world = world();
    let ((a, _), (b, of_b)) = (world.session(), world.session());
    start(&mut world, a, 60_000, 12);
    world.run_for(200);
    world.start(b, 0, LONG, 10_000);
    // One SM is left, which holds eight CTAs.
    world.set_plan(&[(of_b, "0-6")]).unwrap();
    world.run_for(3_000);
    assert_eq!(world.partition(of_b), SmSet::range(0, 7));
    assert_eq!(world.synchronize(b), 0);
    world.close(b, CloseReason::Goodbye);
    assert_eq!(world.synchronize(a), 0);
    world.finish();
}
