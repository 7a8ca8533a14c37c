//! Terms over running kernels: minima come back, maxima hold, urgent applications do not wait.

use super::world::{BRISK, World};
use crate::{CloseReason, TermsError};
use partita_model::{
    ApplicationId, Nanos, Priority, SessionId, SmAmount, Terms, TermsRule, Weight,
};

/// The time of a task, and of the engine's looks at what runs, until the last SM has changed hands.
const ONE_RESIZE: Nanos = Nanos(40_000);

fn keep_busy(world: &mut World, session: SessionId) {
    for _ in 0..400 {
        world.start(session, 0, BRISK, 10_000);
    }
}

fn set(world: &mut World, application: ApplicationId, terms: Terms) {
    world.engine.set_terms(&mut world.device, application, terms, None).unwrap();
}

fn priority(priority: Priority) -> Terms {
    Terms { priority: Some(priority), ..Terms::default() }
}

fn range(min: u16, max: u16) -> Terms {
    let (min, max) = (Some(SmAmount::Sms(min)), Some(SmAmount::Sms(max)));
    Terms { min, max, ..Terms::default() }
}

/// How long it takes until an application has so many SMs.
fn until(world: &mut World, application: ApplicationId, sms: u16) -> Nanos {
    let began = world.device.now;
    for _ in 0..2_000 {
        if world.partition(application).len() == sms {
            return Nanos(world.device.now - began);
        }
        world.run_for(1);
    }
    panic!("it has {} SMs of {sms}", world.partition(application));
}

#[test]
fn batch_leaves_its_sms_within_a_task_and_has_them_back() {
    let mut world = World::new(24);
    let ((urgent, first), (batch, second)) = (world.session(), world.session());
    set(&mut world, first, priority(Priority::Latency));
    set(&mut world, second, priority(Priority::Batch));
    keep_busy(&mut world, batch);
    world.run_for(500);
    for _ in 0..4 {
        assert_eq!(world.partition(second).len(), 24, "nobody waits for an idle application");
        world.start(urgent, 0, BRISK, 400);
        let waited = until(&mut world, first, 23);
        assert!(waited <= ONE_RESIZE, "{waited:?}");
        assert_eq!(world.synchronize(urgent), 0);
        until(&mut world, second, 24);
        world.run_for(100);
    }
    world.close(batch, CloseReason::Died);
    world.finish();
}

#[test]
fn an_urgent_application_takes_what_its_launches_can_use() {
    let mut world = World::new(24);
    let ((urgent, first), (batch, second)) = (world.session(), world.session());
    set(&mut world, first, priority(Priority::Latency));
    set(&mut world, second, priority(Priority::Batch));
    keep_busy(&mut world, batch);
    world.run_for(100);
    world.start(urgent, 0, BRISK, 4);
    assert!(until(&mut world, first, 4) <= ONE_RESIZE);
    assert_eq!(world.partition(second).len(), 20);
    // A larger launch behind it, while the application has its few SMs.
    world.start(urgent, 0, BRISK, 300);
    assert!(until(&mut world, first, 23) <= ONE_RESIZE);
    let why = world.engine.explanation().join("\n");
    assert!(why.contains("priority `latency`") && why.contains("it leaves the rest"), "{why}");
    world.close(urgent, CloseReason::Died);
    world.close(batch, CloseReason::Died);
    world.finish();
}

#[test]
fn terms_reach_running_kernels() {
    let mut world = World::new(24);
    let ((a, first), (b, second)) = (world.session(), world.session());
    keep_busy(&mut world, a);
    keep_busy(&mut world, b);
    world.run_for(200);
    for (min, max, expected) in [(18, 18, 18), (0, 3, 3), (10, 24, 12), (14, 24, 14)] {
        set(&mut world, first, range(min, max));
        assert!(until(&mut world, first, expected) <= ONE_RESIZE, "{min}..{max}");
        assert!(until(&mut world, second, 24 - expected) <= ONE_RESIZE, "{min}..{max}");
    }
    set(&mut world, first, Terms { weight: Some(3.try_into().unwrap()), ..Terms::default() });
    assert!(until(&mut world, first, 18) <= ONE_RESIZE);
    // A minimum is lent while its application has nothing to do, and comes back.
    set(&mut world, first, range(20, 24));
    world.close(b, CloseReason::Died);
    assert_eq!(world.synchronize(a), 0);
    let (c, third) = world.session();
    keep_busy(&mut world, c);
    until(&mut world, third, 24);
    world.start(a, 0, BRISK, 4_000);
    assert!(until(&mut world, first, 20) <= ONE_RESIZE);
    world.close(a, CloseReason::Died);
    world.close(c, CloseReason::Died);
    world.finish();
}

#[test]
fn what_does_not_fit_is_refused_with_who_has_what() {
    let mut world = World::new(24);
    let ((a, first), (b, second)) = (world.session(), world.session());
    set(&mut world, first, range(20, 24));
    let refused = world.engine.set_terms(&mut world.device, second, range(4, 24), None);
    let error = refused.unwrap_err();
    assert!(matches!(error, TermsError::TooMany { asked: 4, left: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("application 1 has 20"), "{error}");
    let unknown = world.engine.set_terms(&mut world.device, ApplicationId(9), range(1, 2), None);
    assert_eq!(unknown, Err(TermsError::Unknown(ApplicationId(9))));
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn users_ask_for_less_than_rules_grant_and_reservations_go_first() {
    let mut world = World::new(24);
    let (a, first) = world.session();
    let tenant = world.engine.application_reports()[0].tenant;
    let rule = |terms| TermsRule { tenant: Some(tenant), tag: None, terms };
    let grant = Terms { weight: Some(Weight::try_from(2).unwrap()), ..range(6, 12) };
    world.engine.set_terms_rules(&mut world.device, &[rule(grant)], []);
    let entitlement = |world: &World| world.engine.application_reports()[0].entitlement.unwrap();
    assert_eq!((entitlement(&world).min, entitlement(&world).max), (6, 12));
    let mut ask = |terms| world.engine.set_terms(&mut world.device, first, terms, Some(tenant));
    for more in [range(7, 12), range(6, 13), priority(Priority::Latency)] {
        assert!(matches!(ask(more), Err(TermsError::NotGranted { .. })), "{more:?}");
    }
    assert_eq!(ask(range(2, 4)), Ok(()));
    assert_eq!((entitlement(&world).min, entitlement(&world).max), (2, 4));
    world.engine.set_reserved(&mut world.device, &[rule(range(9, 24))]);
    let found = entitlement(&world);
    assert_eq!((found.min, found.max, found.weight.get(), found.reserved), (9, 24, 2, true));
    world.engine.set_terms_rules(&mut world.device, &[], [None]);
    let mut ask = |terms| world.engine.set_terms(&mut world.device, first, terms, Some(tenant));
    assert_eq!(ask(priority(Priority::Latency)), Ok(()), "whoever has the right");
    // An administrator's word stands, whoever may ask for more.
    assert_eq!(ask(range(5, 9)), Ok(()));
    world.engine.set_reserved(&mut world.device, &[]);
    set(&mut world, first, range(2, 3));
    assert_eq!((entitlement(&world).min, entitlement(&world).max), (2, 3));
    set(&mut world, first, Terms::default());
    assert_eq!((entitlement(&world).min, entitlement(&world).max), (5, 9));
    world.close(a, CloseReason::Died);
    world.finish();
}
