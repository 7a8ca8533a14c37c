//! Machine code: whole groups of SMs, and the border that waits for its end.

use super::world::{
    ALONE, LONG, MACHINE, MACHINE_IMAGE, MEDIUM, MODULE, QUICK_MACHINE, SPIN, SPIN_MACHINE, World,
};
use crate::{CloseReason, Payload, Request};
use partita_model::{ApplicationId, CudaResult, Limits, SessionId, SmSet};

/// A device of eight SMs in groups of two, on which everybody may run machine code.
fn world() -> World {
    let mut world = World::new(8);
    world.device.groups = ["0-1", "2,4", "3,5", "6-7"].map(|sms| sms.parse().unwrap()).to_vec();
    world.engine.set_unfenced([None]);
    world
}

fn set(text: &str) -> SmSet {
    text.parse().unwrap()
}

/// A session with the module of machine code.
fn machine(world: &mut World) -> (SessionId, ApplicationId) {
    let (session, application) = world.open(None);
    let load = Request::ModuleLoad { module: MODULE, image: MACHINE_IMAGE };
    assert_eq!(world.ask(session, load).0, CudaResult::SUCCESS);
    (session, application)
}

#[test]
fn it_runs_on_whole_groups_beside_workers_of_others() {
    let mut world = world();
    let (a, of_a) = world.session();
    let (b, of_b) = machine(&mut world);
    world.start(a, 0, LONG, 100_000);
    world.run_for(100);
    world.start(b, 0, MACHINE, 64);
    world.run_for(100);
    // Of an even share of four SMs, 4 to 7, one is a whole group, and of two others it has as much
    // of each.
    assert_eq!(world.device.kept_to, [set("2,4,6-7")]);
    assert_eq!((world.partition(of_a), world.partition(of_b)), (set("0-1,3,5"), set("2,4,6-7")));
    let reports = world.engine.application_reports();
    let kernels = &reports.iter().find(|report| report.id == of_b).unwrap().kernels;
    assert_eq!((kernels[0].form.as_str(), kernels[0].launches), ("machine code, green context", 1));
    assert!(kernels[0].unfenced.is_some());
    assert_eq!(world.synchronize(b), 0);
    let done = |world: &World| world.engine.application_reports()[1].ctas_completed;
    assert_eq!(done(&world), 64, "its CTAs count when it has ended");
    for session in [a, b] {
        world.close(session, CloseReason::Died);
    }
    world.finish();
}

#[test]
fn it_runs_on_no_sm_where_workers_of_others_linger() {
    let mut world = world();
    world.engine.set_limits(&Limits { no_progress_ms: 1, ..Limits::default() });
    let (a, _) = world.session();
    world.start(a, 0, SPIN, 32);
    world.run_for(100);
    let (b, of_b) = machine(&mut world);
    world.start(b, 0, MACHINE, 64);
    world.run_for(400);
    assert_eq!(world.partition(of_b), set("2,4,6-7"));
    assert_eq!(world.device.kept_to, [], "workers of the first are there");
    assert_eq!(world.synchronize(b), 0);
    assert_eq!(world.synchronize(a), 702);
    world.finish();
}

#[test]
fn an_original_of_many_ctas_runs_on_whole_groups_beside_workers_of_others() {
    let mut world = world();
    let (a, of_a) = world.session();
    let (b, of_b) = world.session();
    world.start(a, 0, LONG, 100_000);
    world.run_for(100);
    world.start(b, 0, ALONE, 20_000);
    world.run_for(100);
    assert_eq!(world.device.kept_to, [set("2,4,6-7")]);
    assert_eq!((world.partition(of_a), world.partition(of_b)), (set("0-1,3,5"), set("2,4,6-7")));
    let kernel = world.engine.application_reports()[1].kernels[0].clone();
    assert_eq!((kernel.form.as_str(), kernel.launches), ("original, green context", 1));
    assert_eq!(world.synchronize(b), 0);
    assert!(world.device.launched.iter().any(|name| &**name == "alone"));
    // The device holds 64 CTAs at once. A kernel of 64 CTAs may count on all being there.
    for (ctas, kept) in [(65, 2), (64, 2)] {
        world.start(b, 0, ALONE, ctas);
        assert_eq!(world.synchronize(b), 0);
        assert_eq!(world.device.kept_to.len(), kept, "{ctas} CTAs");
    }
    let kernel = world.engine.application_reports()[1].kernels[1].clone();
    assert_eq!((kernel.form.as_str(), kernel.launches), ("original", 1));
    for session in [a, b] {
        world.close(session, CloseReason::Died);
    }
    world.finish();
}

#[test]
fn an_original_without_a_whole_group_runs_alone() {
    let mut world = world();
    let (a, of_a) = world.session();
    let (b, of_b) = world.session();
    world.set_plan(&[(of_a, "0-1,3-5"), (of_b, "2,7")]).unwrap();
    world.start(a, 0, MEDIUM, 50);
    world.start(b, 0, ALONE, 65);
    world.start(a, 0, MEDIUM, 50);
    assert_eq!((world.synchronize(b), world.synchronize(a)), (0, 0));
    assert_eq!(world.device.kept_to, []);
    world.finish();
}

#[test]
fn a_resize_takes_effect_at_the_next_launch() {
    let mut world = world();
    let (a, of_a) = world.session();
    let (b, of_b) = machine(&mut world);
    world.set_plan(&[(of_a, "0-1"), (of_b, "2-7")]).unwrap();
    world.start(a, 0, LONG, 100_000);
    world.start(b, 0, MACHINE, 4_000);
    world.start(b, 0, QUICK_MACHINE, 8);
    world.run_for(300);
    assert_eq!(world.device.kept_to, [set("2-7")]);
    world.set_plan(&[(of_a, "0-1,3-5"), (of_b, "2,6-7")]).unwrap();
    world.run_for(100);
    // What runs stays where it is, and nobody else comes there before it ends.
    assert_eq!((world.partition(of_a), world.partition(of_b)), (set("0-1"), set("2,6-7")));
    world.start(b, 0, QUICK_MACHINE, 8);
    world.run_for(100);
    assert_eq!(world.partition(of_a), set("0-1"));
    assert_eq!(world.synchronize(b), 0);
    world.run_for(100);
    assert_eq!(world.partition(of_a), set("0-1,3-5"));
    assert_eq!(
        world.device.kept_to,
        [set("2-7"), set("2-7"), set("6-7")],
        "only one group is whole"
    );
    for session in [a, b] {
        world.close(session, CloseReason::Died);
    }
    world.finish();
}

#[test]
fn without_a_whole_group_or_a_context_it_runs_alone() {
    for refused in [false, true] {
        let mut world = world();
        let (a, of_a) = world.session();
        let (b, of_b) = machine(&mut world);
        world.device.confines_none = refused.then(|| "CUDA_ERROR_OUT_OF_MEMORY".to_owned());
        let plan = if refused {
            [(of_a, "0-1"), (of_b, "2-7")]
        } else {
            [(of_a, "0-1,3-5"), (of_b, "2,7")]
        };
        world.set_plan(&plan).unwrap();
        world.start(a, 0, MEDIUM, 50);
        world.start(b, 0, MACHINE, 64);
        world.start(a, 0, MEDIUM, 50);
        assert_eq!(world.synchronize(b), 0);
        assert_eq!(world.synchronize(a), 0);
        assert_eq!(world.device.kept_to, []);
        assert_eq!(world.device.launched.iter().filter(|name| &***name == "machine").count(), 1);
        world.finish();
    }
}

#[test]
fn nobody_waits_while_a_context_is_made() {
    let mut world = world();
    let (a, of_a) = world.session();
    let (b, of_b) = machine(&mut world);
    world.device.loading_waits = true;
    world.set_plan(&[(of_a, "0-5"), (of_b, "6-7")]).unwrap();
    world.start(a, 0, MEDIUM, 2_000);
    world.run_for(100);
    world.engine.set_stalled(&mut world.device, SmSet::range(0, 6));
    world.run_for(100);
    // It is made when nothing runs, so all of `a` must have run by then.
    world.start(b, 0, MACHINE, 4);
    assert_eq!(world.synchronize(b), 0);
    assert_eq!(world.engine.application_reports()[0].ctas_completed, 2_000);
    world.engine.set_stalled(&mut world.device, SmSet::EMPTY);
    world.finish();
}

#[test]
fn it_needs_a_right_where_tenants_are_parted() {
    let mut world = world();
    world.engine.set_unfenced([]);
    let (session, _) = world.open(None);
    let load = || Request::ModuleLoad { module: MODULE, image: MACHINE_IMAGE };
    let (code, payload) = world.ask(session, load());
    assert_eq!(code, CudaResult::ERROR_NOT_PERMITTED);
    let Payload::Explanation(text) = payload else { panic!("{payload:?}") };
    assert!(text.contains("machine code") && text.contains("[[policy.unfenced]]"), "{text}");
    world.engine.set_unfenced([None]);
    assert_eq!(world.ask(session, load()).0, CudaResult::SUCCESS);
    // All CTAs of a cooperative launch must be resident at once: it runs alone.
    let launch =
        partita_model::request::Launch { cooperative: true, ..World::launch(0, MACHINE, 4) };
    world.send(session, Request::Launch(launch));
    assert_eq!(world.synchronize(session), 0);
    let report = &world.engine.application_reports()[0].kernels[0];
    assert_eq!((report.form.as_str(), report.launches), ("original", 1));
    assert!(report.reason.as_ref().is_some_and(|why| why.contains("cooperatively")), "{report:?}");
    // A right that is taken away again ends what was loaded with it.
    world.engine.set_unfenced([]);
    let (code, _) = world.ask(session, Request::Launch(World::launch(0, MACHINE, 4)));
    assert_eq!(code, CudaResult::ERROR_NOT_PERMITTED);
    world.finish();
}

#[test]
fn what_never_ends_is_ended_where_others_were_given_its_sms() {
    let mut world = world();
    let (a, of_a) = world.session();
    let (b, of_b) = machine(&mut world);
    world.set_plan(&[(of_a, "0-1"), (of_b, "2-7")]).unwrap();
    world.start(b, 0, SPIN_MACHINE, 4);
    world.start(a, 0, LONG, 100_000);
    world.engine.set_limits(&Limits { alone_ms: 2, ..Limits::default() });
    world.run_for(4_000);
    assert!(
        world.replies.values().all(|(code, _)| *code == CudaResult::SUCCESS),
        "nobody waits for it"
    );
    world.set_plan(&[(of_a, "0-5"), (of_b, "6-7")]).unwrap();
    world.run_for(4_000);
    assert_eq!(world.synchronize(b), CudaResult::ERROR_LAUNCH_TIMEOUT.0);
    assert_eq!(world.partition(of_a), set("0-5"));
    world.close(a, CloseReason::Died);
    world.finish();
}
