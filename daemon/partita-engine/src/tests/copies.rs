//! Copies between host and device of several users.

use super::requests::{Buffer, share};
use super::world::World;
use crate::{CloseReason, Request, StreamHandle};
use partita_model::request::ArenaRange;
use partita_model::{DeviceAddress, SessionId, TenantId};
use std::sync::Arc;

const LEGACY: StreamHandle = StreamHandle::LEGACY;
const SHORT: u64 = 64;
const LONG: u64 = 1 << 20;
/// The longest piece of a copy while another user copies.
const PIECE: u64 = 128 << 10;
const GREEDY: TenantId = TenantId(2000);
const SESSIONS: usize = 3;

/// A session that copies a range of its own.
struct Copier {
    session: SessionId,
    device: DeviceAddress,
    arena: Arc<Buffer>,
    bytes: u64,
}

impl Copier {
    fn new(world: &mut World, tenant: TenantId, bytes: u64) -> Copier {
        let (session, _) = world.open_as(tenant, None);
        let device = world.alloc(session, bytes);
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        Copier { session, device, arena: share(world, session, &content), bytes }
    }

    fn to_device(&self, world: &mut World) -> u64 {
        let from = ArenaRange { offset: 0, bytes: self.bytes };
        let (stream, to) = (LEGACY, self.device);
        world.send(self.session, Request::CopyToDevice { stream, to, from })
    }

    fn to_host(&self, world: &mut World) -> u64 {
        let to = ArenaRange { offset: 0, bytes: self.bytes };
        let (stream, from) = (LEGACY, self.device);
        world.send(self.session, Request::CopyToHost { stream, to, from })
    }

    /// Copies to the device and back, and looks whether the bytes are the same.
    fn check(&self, world: &mut World) {
        self.to_device(world);
        assert_eq!(world.synchronize(self.session), 0);
        let content = std::mem::take(&mut *self.arena.0.lock().unwrap());
        *self.arena.0.lock().unwrap() = vec![0; content.len()];
        self.to_host(world);
        assert_eq!(world.synchronize(self.session), 0);
        assert!(*self.arena.0.lock().unwrap() == content, "the copy has changed bytes");
    }
}

fn greedy(world: &mut World) -> Vec<Copier> {
    (0..SESSIONS).map(|_| Copier::new(world, GREEDY, LONG)).collect()
}

/// However many sessions a user has, another user's copy waits for one piece of them.
#[test]
fn users_take_turns() {
    let mut world = World::new(4);
    let small = Copier::new(&mut world, TenantId(1000), SHORT);
    let greedy = greedy(&mut world);
    small.check(&mut world);
    world.device.copied.clear();
    for copier in &greedy {
        copier.to_device(&mut world);
    }
    let sequence = small.to_device(&mut world);
    world.await_reply(small.session, sequence);
    let others = world.device.copied.iter().filter(|(address, _)| *address != small.device.0);
    let before: u64 = others.map(|(_, bytes)| bytes).sum();
    assert!(before <= PIECE, "{before} bytes of another user came before");
    for copier in &greedy {
        assert_eq!(world.synchronize(copier.session), 0);
    }
    let copied = std::mem::take(&mut world.device.copied);
    let longest = copied.iter().map(|(_, bytes)| bytes).max();
    assert_eq!(longest, Some(&PIECE));
    // The sessions of one user take turns too: all have begun among the first pieces.
    for copier in &greedy {
        let begun = copied.iter().position(|(address, _)| *address == copier.device.0);
        assert!(begun.is_some_and(|at| at <= SESSIONS + 1), "{copied:?}");
    }
    for copier in &greedy {
        copier.check(&mut world);
    }
    world.finish();
}

#[test]
fn a_user_alone_copies_in_one_piece() {
    let mut world = World::new(4);
    let copiers = greedy(&mut world);
    for copier in &copiers {
        copier.to_device(&mut world);
    }
    for copier in &copiers {
        assert_eq!(world.synchronize(copier.session), 0);
    }
    assert_eq!(world.device.copied.len(), SESSIONS);
    world.finish();
}

/// What waits of a session that ends keeps nobody waiting.
#[test]
fn the_turn_of_a_session_that_ends_goes_to_the_next() {
    let mut world = World::new(4);
    let small = Copier::new(&mut world, TenantId(1000), SHORT);
    let greedy = greedy(&mut world);
    small.check(&mut world);
    for copier in &greedy {
        copier.to_device(&mut world);
    }
    for copier in &greedy[..2] {
        world.close(copier.session, CloseReason::Died);
    }
    let last = &greedy[2];
    assert_eq!(world.synchronize(last.session), 0);
    last.check(&mut world);
    world.finish();
}
