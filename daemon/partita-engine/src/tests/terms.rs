//! Terms over running kernels: minima come back, maxima hold, urgent applications do not wait.

use super::requests::share;
use super::world::{ALONE, BRISK, LONG, MEDIUM, SHORT, SLICED, World};
use crate::{
    ArenaRange, CloseReason, EngineConfig, Payload, Request, Rests, SessionIdentity, StreamHandle,
    StreamKind, TermsError,
};
use partita_model::{
    ApplicationId, MemoryAmount, Nanos, Priority, SessionId, SmAmount, TenantId, Terms, TermsRule,
    Weight,
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

/// An application of priority `latency` and one of priority `batch`, on 8 SMs.
fn two(rests: Rests) -> (World, (SessionId, ApplicationId), (SessionId, ApplicationId)) {
    let window = Some(partita_model::Bytes(1 << 26));
    let mut world = World::with_config(8, EngineConfig { rests, window, ..Default::default() });
    let (first, second) = (world.session(), world.session());
    set(&mut world, first.1, priority(Priority::Latency));
    set(&mut world, second.1, priority(Priority::Batch));
    (world, first, second)
}

#[test]
fn an_urgent_application_lends_soon() {
    let (mut world, (urgent, first), (batch, second)) = two(Rests::Never);
    keep_busy(&mut world, batch);
    // Its gaps are of the kind that make others wait for a millisecond.
    for _ in 0..4 {
        world.start(urgent, 0, BRISK, 40);
        assert_eq!(world.synchronize(urgent), 0);
        let lent = until(&mut world, second, 8);
        assert!(lent <= Nanos(80_000), "{lent:?}");
        world.run_for(400);
    }
    set(&mut world, first, Terms::default());
    world.start(urgent, 0, BRISK, 40);
    assert_eq!(world.synchronize(urgent), 0);
    world.run_for(400);
    world.start(urgent, 0, BRISK, 40);
    assert_eq!(world.synchronize(urgent), 0);
    assert!(until(&mut world, second, 8) > Nanos(500_000), "others keep theirs for longer");
    world.close(batch, CloseReason::Died);
    world.finish();
}

/// CTAs of 10 us on 64 places; the launch takes 50 ms.
const LONG_LAUNCH: u32 = 64 * 5_000;

#[test]
fn a_request_waits_for_two_short_slices_at_most() {
    for rests in [Rests::Never, Rests::ByDevice] {
        let (mut world, (urgent, _), (batch, _)) = two(rests);
        world.start(batch, 0, SLICED, LONG_LAUNCH);
        world.run_for(3_000);
        for _ in 0..10 {
            let asked = world.device.now;
            world.start(urgent, 0, MEDIUM, 8);
            assert_eq!(world.synchronize(urgent), 0);
            let took = (world.device.now - asked) / 1_000;
            assert!(took <= 250, "{rests:?}: {took} us");
            world.run_for(777);
        }
        assert_eq!(world.synchronize(batch), 0);
        world.finish();
    }
}

#[test]
fn kernels_that_run_alone_wait_while_an_urgent_application_has_work() {
    let (mut world, (urgent, _), (batch, _)) = two(Rests::ByDevice);
    let runs =
        |world: &World| world.device.launched.iter().filter(|name| &***name == "alone").count();
    // 5 ms of requests, one behind the other.
    world.start(urgent, 0, MEDIUM, 64 * 1_000);
    world.start(batch, 0, ALONE, 64);
    world.run_for(4_000);
    // A request that comes later goes first, too.
    world.start(urgent, 0, MEDIUM, 64 * 200);
    assert_eq!(world.synchronize(urgent), 0);
    assert_eq!(runs(&world), 0, "it waits");
    assert_eq!(world.synchronize(batch), 0);
    assert_eq!(runs(&world), 1);
    // Where requests never end, it has its turn all the same.
    world.start(urgent, 0, MEDIUM, 64 * 200);
    world.start(batch, 0, ALONE, 64);
    for _ in 0..40 {
        world.start(urgent, 0, MEDIUM, 64 * 200);
    }
    world.run_for(9_000);
    assert_eq!(runs(&world), 1);
    assert_eq!(world.synchronize(urgent), 0);
    assert_eq!(runs(&world), 2);
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
fn a_latency_target_is_met_with_the_fewest_sms() {
    let mut world = World::new(24);
    let ((urgent, first), (batch, second)) = (world.session(), world.session());
    set(&mut world, second, priority(Priority::Batch));
    keep_busy(&mut world, batch);
    let requests = |world: &mut World, text: &str, count: u64| {
        set(world, first, target(text));
        let mut longest = 0;
        for _ in 0..count {
            let began = world.device.now;
            world.start(urgent, 0, BRISK, 1_000);
            assert_eq!(world.synchronize(urgent), 0);
            longest = longest.max(world.device.now - began);
            world.run_for(200);
        }
        let report = &world.engine.application_reports()[0];
        (report.target.unwrap(), longest)
    };
    let (report, all) = requests(&mut world, "60s", 1);
    assert_eq!((report.seen, report.missed, report.sms), (1, 0, None));
    // A target of twice what it takes with all SMs needs about half of them.
    let text = format!("{}ns", 2 * all);
    let (report, longest) = requests(&mut world, &text, 61);
    assert_eq!((report.seen, report.missed), (61, 0), "{longest} ns, {text}");
    assert!(longest <= 2 * all);
    let sms = report.sms.unwrap();
    assert!((8..=16).contains(&sms), "{sms}");
    let why = world.engine.policy_report().why.join("\n");
    assert!(why.contains(&format!("in 61 of 61 requests; {sms} SMs are enough")), "{why}");
    world.start(urgent, 0, BRISK, 1_000);
    assert!(until(&mut world, first, sms) <= ONE_RESIZE);
    assert_eq!(world.partition(second).len(), 24 - sms, "the rest stays with others");
    // A target that nothing meets gives it all that it can use.
    let (report, _) = requests(&mut world, &format!("{}ns", all / 2), 5);
    assert_eq!((report.missed, report.sms), (report.seen, None));
    world.close(urgent, CloseReason::Died);
    world.close(batch, CloseReason::Died);
    world.finish();
}

/// What became of the latency target of the first application.
fn target_of(world: &World) -> (u64, u64) {
    let report = world.engine.application_reports()[0].target.unwrap();
    (report.seen, report.missed)
}

fn target(text: &str) -> Terms {
    Terms { target: text.parse().ok(), ..priority(Priority::Latency) }
}

#[test]
fn kernels_that_run_alone_are_part_of_a_request() {
    for (kernel, ctas) in [(ALONE, 64 * 20), (SLICED, 64 * 100)] {
        let mut world = World::new(8);
        let (session, application) = world.session();
        // CTAs of 10 us on 64 places: 200 us, and 1 ms in slices.
        set(&mut world, application, target("150us"));
        for _ in 0..3 {
            world.start(session, 0, BRISK, 8);
            world.start(session, 0, kernel, ctas);
            assert_eq!(world.synchronize(session), 0);
            world.run_for(500);
        }
        world.start(session, 0, BRISK, 8);
        assert_eq!(world.synchronize(session), 0);
        assert_eq!(target_of(&world), (4, 3), "kernel {kernel}");
        world.finish();
    }
}

#[test]
fn waits_of_the_host_tell_requests_apart() {
    let mut world = World::new(8);
    let (session, application) = world.session();
    set(&mut world, application, target("300us"));
    let request = |world: &mut World, pause| {
        for _ in 0..2 {
            world.start(session, 0, MEDIUM, 64 * 20);
            assert_eq!(world.synchronize(session), 0);
        }
        world.run_for(pause);
    };
    request(&mut world, 500);
    request(&mut world, 500);
    let (seen, missed) = target_of(&world);
    // The first pause tells that a request has two waits.
    assert_eq!((seen, missed), (3, 0));
    // They follow each other without a pause, for 2 ms.
    (0..10).for_each(|_| request(&mut world, 5));
    assert_eq!(target_of(&world), (13, 0));
    world.finish();
}

#[test]
fn results_read_back_tell_requests_apart() {
    let mut world = World::new(8);
    let (session, application) = world.session();
    share(&mut world, session, &[0; 64]);
    let from = world.alloc(session, 64);
    set(&mut world, application, target("300us"));
    // Blocking copies are the only waits, and there is no pause in 2 ms.
    for _ in 0..20 {
        world.start(session, 0, MEDIUM, 64 * 20);
        let to = ArenaRange { offset: 0, bytes: 64 };
        let copy = Request::CopyToHost { stream: StreamHandle::LEGACY, to, from };
        assert_eq!(world.code(session, copy), 0);
    }
    assert_eq!(target_of(&world), (20, 0));
    world.finish();
}

#[test]
fn a_stream_of_higher_priority_goes_first_inside_its_application() {
    let mut world = World::new(4);
    let ((other, _), (session, _)) = (world.session(), world.session());
    let streams = [(1, 0, SHORT), (2, 0, MEDIUM), (3, -1, LONG), (4, -9, BRISK)];
    for (number, priority, _) in streams {
        let (stream, kind) = (StreamHandle(number), StreamKind::NonBlocking);
        assert_eq!(world.code(session, Request::StreamCreate { stream, kind, priority }), 0);
    }
    // While this kernel runs alone, all others wait.
    world.start(other, 0, ALONE, 8);
    for (number, _, kernel) in streams {
        world.start(session, number, kernel, 40);
    }
    assert_eq!(world.engine.queued_streams(session), streams.len());
    let before = world.device.launched.len();
    assert_eq!(world.synchronize(session), 0);
    let order: Vec<&str> = world.device.launched[before..].iter().map(|name| &**name).collect();
    let place = |name| order.iter().position(|other| other.starts_with(name)).unwrap();
    let places = ["brisk", "long", "short", "medium"].map(place);
    assert!(places.is_sorted(), "{order:?}");
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
    let refused = world.engine.set_terms(&mut world.device, second, range(5, 24), None);
    let error = refused.unwrap_err();
    assert!(matches!(error, TermsError::TooMany { asked: 5, left: 4, .. }), "{error:?}");
    let expected = "a minimum of 5 SMs does not fit: 4 of 24 are left; application 1 has 20";
    assert_eq!(error.to_string(), expected);
    let impossible = [
        (range(25, 25), "a minimum of 25 SMs: the GPU has 24"),
        (range(8, 4), "a minimum of 8 SMs with a maximum of 4"),
        (range(0, 0), "a maximum of 0 SMs: give at least 1"),
    ];
    for (terms, expected) in impossible {
        let refused = world.engine.set_terms(&mut world.device, second, terms, None);
        assert_eq!(refused.unwrap_err().to_string(), expected);
        let (tenant, program) = (TenantId(7), "program".to_owned());
        let session = SessionId(99);
        let identity =
            SessionIdentity { session, tenant, pid: 1, program, tag: None, asked: terms };
        let refused = world.engine.open_session(&mut world.device, identity);
        assert_eq!(refused.unwrap_err().to_string(), expected);
    }
    let unknown = world.engine.set_terms(&mut world.device, ApplicationId(9), range(1, 2), None);
    assert_eq!(unknown, Err(TermsError::Unknown(ApplicationId(9))));
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

/// A program that asks for nothing is not refused because rules or reservations promise too much.
#[test]
fn minima_by_rules_and_reservations_refuse_nobody() {
    let mut world = World::new(24);
    let rule = |tag: Option<&str>, min| TermsRule {
        tenant: None,
        tag: tag.map(str::to_owned),
        terms: Terms { min: Some(SmAmount::Sms(min)), ..Terms::default() },
    };
    world.engine.set_terms_rules(&mut world.device, &[rule(None, 10)], [None]);
    let mut all: Vec<_> = (0..4).map(|_| world.session()).collect();
    let (_, first) = all[0];
    world.engine.set_reserved(&mut world.device, &[rule(Some("job"), 12)]);
    all.push(world.session_of(Some("job")));
    let entitlements = world.engine.application_reports();
    assert_eq!(entitlements[4].entitlement.unwrap().min, 12);
    // A user may take a smaller wish back.
    let tenant = entitlements[0].tenant;
    let mut ask = |terms| world.engine.set_terms(&mut world.device, first, terms, Some(tenant));
    assert_eq!(ask(range(2, 24)), Ok(()));
    assert_eq!(ask(Terms::default()), Ok(()));
    assert!(matches!(ask(range(11, 24)), Err(TermsError::TooMany { asked: 11, left: 0, .. })));
    // A reservation hides no minimum from the check: it ends.
    world.engine.set_terms_rules(&mut world.device, &[], [None]);
    for (session, _) in &all[1..4] {
        world.close(*session, CloseReason::Died);
    }
    world.engine.set_reserved(&mut world.device, &[rule(Some("job"), 1)]);
    set(&mut world, first, range(20, 24));
    let (_, job) = all[4];
    let refused = world.engine.set_terms(&mut world.device, job, range(24, 24), Some(tenant));
    assert!(matches!(refused, Err(TermsError::TooMany { asked: 24, .. })), "{refused:?}");
    for (session, _) in [all[0], all[4]] {
        world.close(session, CloseReason::Died);
    }
    world.finish();
}

/// A minimum that a maximum cuts does not come back unchecked when the maximum goes.
#[test]
fn minima_of_all_layers_count() {
    let mut world = World::new(24);
    let ((a, first), (b, second)) = (world.session(), world.session());
    let tenant = world.engine.application_reports()[0].tenant;
    world.engine.set_terms_rules(&mut world.device, &[], [Some(tenant)]);
    let mut ask = |id, terms| world.engine.set_terms(&mut world.device, id, terms, Some(tenant));
    let most = |most| Terms { max: Some(SmAmount::Sms(most)), ..Terms::default() };
    assert_eq!(ask(first, range(20, 24)), Ok(()));
    set(&mut world, first, most(10));
    let mut ask = |id, terms| world.engine.set_terms(&mut world.device, id, terms, Some(tenant));
    assert_eq!(ask(second, range(14, 24)), Ok(()), "10 of the 20 count");
    let refused = world.engine.set_terms(&mut world.device, first, most(24), None);
    assert!(matches!(refused, Err(TermsError::TooMany { asked: 20, left: 10, .. })), "{refused:?}");
    // Beside a maximum of its own a minimum asks for no more than the maximum.
    set(&mut world, first, most(8));
    let mut ask = |id, terms| world.engine.set_terms(&mut world.device, id, terms, Some(tenant));
    assert_eq!(ask(first, range(24, 24)), Ok(()));
    world.close(a, CloseReason::Died);
    world.close(b, CloseReason::Died);
    world.finish();
}

#[test]
fn minima_may_take_all_sms_and_others_still_run() {
    let mut world = World::new(24);
    let all: Vec<_> = (0..4).map(|_| world.session()).collect();
    for &(session, application) in &all[..3] {
        set(&mut world, application, range(8, 24));
        keep_busy(&mut world, session);
    }
    world.run_for(500);
    assert!(all[..3].iter().all(|(_, application)| world.partition(*application).len() == 8));
    // An application without a minimum has an SM of the minimum that came last.
    let (session, newcomer) = all[3];
    world.start(session, 0, BRISK, 2_000);
    assert!(until(&mut world, newcomer, 1) <= ONE_RESIZE);
    let held: Vec<u16> = all.iter().map(|(_, id)| world.partition(*id).len()).collect();
    assert_eq!(held, [8, 8, 7, 1]);
    let why = world.engine.explanation().join("\n");
    assert!(why.contains("less than its minimum") || why.contains("minimum of 8"), "{why}");
    for (session, _) in all {
        world.close(session, CloseReason::Died);
    }
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

#[test]
fn a_job_is_accounted_beyond_its_applications() {
    let mut world = World::new(4);
    let rule = |tag: &str| TermsRule {
        tenant: Some(TenantId(1000)),
        tag: Some(tag.to_owned()),
        terms: range(1, 4),
    };
    let used = |world: &World| -> Vec<(String, u64)> {
        let jobs = world.engine.accounts(&world.device).jobs;
        jobs.into_iter().map(|job| (job.tag, job.used.sm_ns)).collect()
    };
    assert_eq!(used(&world), [], "no job has a reservation");
    world.engine.set_reserved(&mut world.device, &[rule("job"), rule("other"), rule("job")]);
    let mut before = 0;
    for _ in 0..2 {
        let (session, _) = world.session_of(Some("job"));
        world.start(session, 0, BRISK, 400);
        world.run_for(100);
        let now = used(&world)[0].1;
        assert!(now > before, "{now} {before}");
        world.close(session, CloseReason::Died);
        world.run_for(100);
        before = used(&world)[0].1;
        assert!(before >= now, "what an application had stays when it has left");
    }
    // Another scheduler's job with the same name begins anew.
    world.engine.set_reserved(&mut world.device, &[rule("other")]);
    world.engine.set_reserved(&mut world.device, &[rule("job"), rule("other")]);
    assert_eq!(used(&world), [("job".to_owned(), 0), ("other".to_owned(), 0)]);
    world.finish();
}

#[test]
fn terms_and_reservations_bound_memory() {
    let mut world = World::new(4);
    let ((a, first), (b, second)) = (world.session(), world.session());
    let left = |world: &mut World, session| match world.ask(session, Request::MemInfo).1 {
        Payload::Memory { free, total } => (free, total),
        other => panic!("{other:?}"),
    };
    let (_, device) = left(&mut world, a);
    let memory = |bytes| Terms { memory: MemoryAmount::of(bytes), ..Terms::default() };
    world.engine.set_terms(&mut world.device, first, memory(1 << 20), None).unwrap();
    let most = world.alloc(a, 1 << 20);
    assert_eq!(left(&mut world, a), (0, 1 << 20));
    assert_eq!(world.code(a, Request::MemAlloc { bytes: 1 }), 2);
    assert_eq!(left(&mut world, b), (device - (1 << 20), device), "it has no limit");
    // What a job has reserved is kept from all others, and is the most that it has.
    let rule = |tag: &str| TermsRule {
        tenant: None,
        tag: Some(tag.to_owned()),
        terms: Terms { min: Some(SmAmount::Sms(1)), ..memory(3 << 20) },
    };
    world.engine.set_reserved(&mut world.device, &[rule("elsewhere")]);
    assert_eq!(left(&mut world, b), (device - (4 << 20), device));
    assert_eq!(left(&mut world, a).0, 0);
    let own = TermsRule { tag: None, ..rule("") };
    world.engine.set_reserved(&mut world.device, &[own]);
    assert_eq!(left(&mut world, a), (2 << 20, 3 << 20));
    assert_eq!(left(&mut world, b), (3 << 20, 3 << 20));
    world.engine.set_reserved(&mut world.device, &[]);
    let tenant = world.engine.application_reports()[1].tenant;
    let mut ask =
        |bytes| world.engine.set_terms(&mut world.device, second, memory(bytes), Some(tenant));
    assert_eq!(ask(2 << 20), Ok(()), "less is asked for without any right");
    assert_eq!(left(&mut world, b), (2 << 20, 2 << 20));
    assert_eq!(world.code(a, Request::MemFree { address: most }), 0);
    world.finish();
}
