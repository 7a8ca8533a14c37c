//! Two applications share each SM.

use super::world::{LONG, MEDIUM, SHORT, World};
use crate::{CloseReason, Request};
use partita_model::{ApplicationId, Dim3, Note, SessionId, SmPart, SmSet};
use partita_policy::{Sample, Selected, Selector};

/// Lets two applications share all SMs, the first with so many eighths of each, until a CTA of one
/// does not fit. Others wait.
struct Couple(u16);

impl Selector for Couple {
    fn name(&self) -> &'static str {
        "couple"
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        let parts = [SmPart::new(self.0, 8), SmPart::new(8 - self.0, 8)];
        let ids = sample.applications.iter().map(|a| a.application);
        let cramped: Vec<ApplicationId> =
            sample.applications.iter().filter(|a| a.cramped).map(|a| a.application).collect();
        let parts = match ids.len() {
            2 if cramped.is_empty() => ids.clone().zip(parts.map(Option::unwrap)).collect(),
            _ => Default::default(),
        };
        let notes = cramped.into_iter().map(|application| Note::Cramped { application }).collect();
        Selected { together: ids.take(2).collect(), parts, notes }
    }
}

const SMS: u16 = 4;

/// Two applications with kernels in a row, of so many CTAs in all. Eight CTAs fill an SM.
fn couple(eighths: u16) -> (World, [(SessionId, ApplicationId); 2]) {
    let mut world = World::new(SMS);
    world.device.is_shared = true;
    world.select_by(Couple(eighths));
    let both = [world.session(), world.session()];
    (world, both)
}

fn workers(world: &World, both: &[(SessionId, ApplicationId); 2]) -> Vec<[u32; 2]> {
    (0..SMS).map(|sm| both.map(|(_, id)| world.device.workers_of(sm, id))).collect()
}

fn finish(mut world: World, left: &[(SessionId, ApplicationId)]) {
    for (session, _) in left {
        assert_eq!(world.synchronize(*session), 0);
        world.close(*session, CloseReason::Goodbye);
    }
    world.finish();
}

#[test]
fn each_has_its_part_of_every_sm() {
    let (mut world, both) = couple(3);
    world.start(both[0].0, 0, MEDIUM, 20_000);
    world.run_for(50);
    assert_eq!(workers(&world, &both), [[8, 0]; 4], "the first is alone");
    world.start(both[1].0, 0, LONG, 5_000);
    world.run_for(300);
    assert_eq!(workers(&world, &both), [[3, 5]; 4]);
    let reports = world.engine.partition_reports();
    let parts: Vec<String> =
        reports.iter().map(|report| format!("{} {}", report.sms, report.part.unwrap())).collect();
    assert_eq!(parts, ["0-3 3/8", "0-3 5/8"]);
    let text = world.engine.explanation().join("\n");
    assert!(text.contains("application 1 has 3/8 of each of 4 SMs: 0-3"), "{text}");
    // Further launches keep to the part, in other streams too.
    let stream = crate::StreamHandle(1);
    let create =
        Request::StreamCreate { stream, kind: crate::StreamKind::NonBlocking, priority: 0 };
    world.send(both[0].0, create);
    world.start(both[0].0, 1, SHORT, 3_000);
    world.start(both[1].0, 0, MEDIUM, 3_000);
    for _ in 0..40 {
        world.run_for(100);
        let most = workers(&world, &both);
        assert!(most.iter().all(|[first, second]| *first <= 3 && *second <= 5), "{most:?}");
    }
    finish(world, &both);
}

#[test]
fn other_parts_take_effect_while_kernels_run() {
    let (mut world, both) = couple(3);
    for (session, _) in both {
        world.start(session, 0, MEDIUM, 40_000);
    }
    world.run_for(300);
    assert_eq!(workers(&world, &both), [[3, 5]; 4]);
    world.select_by(Couple(6));
    world.run_for(300);
    assert_eq!(workers(&world, &both), [[6, 2]; 4]);
    // One goes, and the other has everything.
    world.close(both[0].0, CloseReason::Died);
    world.run_for(300);
    assert_eq!(workers(&world, &both), [[0, 8]; 4]);
    finish(world, &both[1..]);
}

/// A launch of CTAs of 1,024 threads, of which two fill an SM.
fn start_wide(world: &mut World, session: SessionId, kernel: u32, ctas: u32) {
    let launch = partita_model::request::Launch {
        block: Dim3::linear(1024),
        ..World::launch(0, kernel, ctas)
    };
    world.send(session, Request::Launch(launch));
}

fn assert_apart(world: &World, both: &[(SessionId, ApplicationId); 2]) {
    let reports = world.engine.partition_reports();
    assert!(reports.iter().all(|report| report.part.is_none()), "{reports:?}");
    let [first, second] = both.map(|(_, id)| world.partition(id));
    assert!(first.is_disjoint(&second) && first.union(&second) == SmSet::range(0, SMS));
    let text = world.engine.explanation().join("\n");
    assert!(text.contains("application 1 shares no SM"), "{text}");
}

#[test]
fn a_launch_whose_cta_does_not_fit_into_the_part_ends_the_sharing() {
    let (mut world, both) = couple(3);
    for (session, _) in both {
        world.start(session, 0, MEDIUM, 20_000);
    }
    world.run_for(300);
    assert_eq!(workers(&world, &both), [[3, 5]; 4]);
    start_wide(&mut world, both[0].0, SHORT, 100);
    world.run_for(6_000);
    assert_apart(&world, &both);
    finish(world, &both);
}

#[test]
fn a_running_launch_whose_ctas_do_not_fit_into_the_part_ends_the_sharing() {
    let (mut world, both) = couple(3);
    start_wide(&mut world, both[0].0, MEDIUM, 10_000);
    world.run_for(100);
    assert_eq!(workers(&world, &both), [[2, 0]; 4]);
    world.start(both[1].0, 0, MEDIUM, 20_000);
    world.run_for(500);
    assert_apart(&world, &both);
    finish(world, &both);
}
