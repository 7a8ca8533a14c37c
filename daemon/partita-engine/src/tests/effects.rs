//! One call of the engine runs to completion before the next thing begins.

use super::world::{GOOD_IMAGE, MACHINE, MACHINE_IMAGE, MODULE, TICKET, World};
use crate::{Action, ModuleHandle, Request, StreamHandle, StreamKind};
use partita_model::CudaResult;
use partita_model::control::FAULT_ASSERT;
use partita_model::request::Launch;

const TICKETS: ModuleHandle = ModuleHandle(2);

/// The first launch of machine code makes the policy look again. That look finds the fault of a
/// ticket, which fails the session whose launch is being taken. Nothing of the failed session may
/// reach the device after its failure.
#[test]
fn a_session_that_fails_while_it_launches_launches_nothing() {
    let mut world = World::new(8);
    world.device.groups = ["0-1", "2-3", "4-5", "6-7"].map(|sms| sms.parse().unwrap()).to_vec();
    world.engine.set_unfenced([None]);
    let (session, _) = world.open(None);
    for (module, image) in [(MODULE, MACHINE_IMAGE), (TICKETS, GOOD_IMAGE)] {
        assert_eq!(world.code(session, Request::ModuleLoad { module, image }), 0);
    }
    let stream = StreamHandle(1);
    world.code(
        session,
        Request::StreamCreate { stream, kind: StreamKind::NonBlocking, priority: 0 },
    );
    let tickets = Launch { module: TICKETS, ..World::launch(0, TICKET, 5_000) };
    world.send(session, Request::Launch(tickets));
    world.run_for(50);
    assert!(world.device.is_running("ticket"));
    world.device.give_up("ticket", FAULT_ASSERT.into());

    world.send(session, Request::Launch(World::launch(stream.0, MACHINE, 4)));
    let sticky = |action: &Action| matches!(action, Action::Sticky { .. });
    assert_eq!(world.actions.iter().filter(|action| sticky(action)).count(), 1);
    assert!(!world.device.is_running("machine"), "a failed session has a grid on the device");
    assert_eq!(world.synchronize(session), CudaResult::ERROR_ASSERT.0);
    world.run();
    assert_eq!(world.engine.operations(session), 0);
    assert!(!world.device.launched.iter().any(|name| &**name == "machine"));
    assert!(world.device.confined.is_empty(), "SMs were made ready for a failed session");
    world.finish();
}
