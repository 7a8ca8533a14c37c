//! Kernels that keep to their window by their own code: what they are given, and what needs a
//! right.

use super::world::{FENCED, LOOSE, RISKY, World};
use crate::{Payload, Request};
use partita_model::request::Launch;
use partita_model::texture::{ChannelType, Sampler, TexelFormat, TexelSource, TextureSpec};
use partita_model::{CudaResult, TenantId};

/// A kernel that keeps to its window by itself is told where that is, before it is told of anything
/// else.
#[test]
fn fenced_kernels_get_their_cell() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    // The first allocation lies where the window begins.
    let window = world.alloc(session, 8).0;
    world.start(session, 0, FENCED, 1_000);
    world.run_for(5);
    let params = world.device.params_of("fenced");
    // It has words of guards.
    assert_eq!(world.device.dynamic_shared_of("fenced"), 672);
    assert_eq!(world.synchronize(session), 0);
    // 12 bytes of its own, the cell, the control block.
    assert_eq!(params.len(), 32);
    assert_eq!(params[16..24], (window >> 24 << 24).to_le_bytes());
    world.finish();
}

/// One context has the objects of all programs, and kernels name them by numbers.
#[test]
fn handles_of_fenced_kernels_are_objects_of_their_program() {
    let mut world = World::new(4);
    let [(session, _), (other, _)] = [0, 1].map(|_| world.session());
    let mut object = |session| {
        let address = world.alloc(session, 64);
        let format = TexelFormat::new(ChannelType::U8, 4).unwrap();
        let source = TexelSource::Linear { address, format, width: 4 };
        let spec = TextureSpec { source, sampler: Some(Sampler::default()) };
        match world.ask(session, Request::TextureCreate { spec }) {
            (CudaResult::SUCCESS, Payload::Texture(handle)) => handle,
            answer => panic!("{answer:?}"),
        }
    };
    let (own, foreign) = (object(session), object(other));
    assert_ne!(own, foreign);
    let launch = |world: &mut World, handle: u64| {
        let mut params = handle.to_le_bytes().to_vec();
        params.resize(12, 0);
        world.ask(session, Request::Launch(Launch { params, ..World::launch(0, FENCED, 10) }))
    };
    // A kernel may not use an object that it is not given.
    for handle in [own, 0] {
        assert_eq!(launch(&mut world, handle).0, CudaResult::SUCCESS);
    }
    let (code, payload) = launch(&mut world, foreign);
    assert_eq!(code, CudaResult::ERROR_INVALID_HANDLE);
    let Payload::Explanation(text) = payload else { panic!("{payload:?}") };
    let why = format!("the handle at byte 0 of its parameters, {foreign:#x}, is no texture");
    assert!(text.contains(&why), "{text}");
    assert_eq!(world.synchronize(session), 0);
    assert_eq!(world.code(session, Request::TextureDestroy { texture: own }), 0);
    assert_eq!(launch(&mut world, own).0, CudaResult::ERROR_INVALID_HANDLE);
    world.engine.set_unfenced([Some(TenantId(1000))]);
    assert_eq!(launch(&mut world, foreign).0, CudaResult::SUCCESS);
    assert_eq!(world.synchronize(session), 0);
    world.finish();
}

/// What a program has to leave of shared memory for guards is in the text.
#[test]
fn too_much_shared_memory_is_told_with_that_of_guards() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let mut text = |kernel, dynamic_shared| {
        let launch = Launch { dynamic_shared, ..World::launch(0, kernel, 10) };
        match world.ask(session, Request::Launch(launch)) {
            (CudaResult(1), Payload::Explanation(text)) => text,
            answer => panic!("{answer:?}"),
        }
    };
    let most = 99 << 10;
    let guarded = text(FENCED, most - 600);
    assert!(guarded.contains("672 B of them for the kernel's guards"), "{guarded}");
    let plain = text(LOOSE, most + 8);
    assert!(plain.contains("of shared memory per CTA are more than"), "{plain}");
    world.finish();
}

#[test]
fn kernels_without_a_fence_need_a_right() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let launch =
        |world: &mut World| world.ask(session, Request::Launch(World::launch(0, LOOSE, 10)));
    let (code, payload) = launch(&mut world);
    assert_eq!(code.0, 800);
    let Payload::Explanation(text) = payload else { panic!("{payload:?}") };
    assert!(text.contains("line 3: a call") && text.contains("[[policy.unfenced]]"), "{text}");
    world.engine.set_unfenced([Some(TenantId(999))]);
    assert_eq!(launch(&mut world).0.0, 800);
    world.engine.set_unfenced([Some(TenantId(1000))]);
    assert_eq!(launch(&mut world).0.0, 0);
    assert_eq!(world.synchronize(session), 0);
    world.finish();
}

/// Its code has the same parameters as that of a kernel whose faults reach nobody.
#[test]
fn kernels_whose_faults_reach_others_need_a_right_and_get_their_cell() {
    let mut world = World::new(4);
    let (session, _) = world.session();
    let window = world.alloc(session, 8).0;
    let (code, payload) = world.ask(session, Request::Launch(World::launch(0, RISKY, 10)));
    let Payload::Explanation(text) = payload else { panic!("{payload:?}") };
    assert!(code.0 == 800 && text.contains("everybody's work"), "{text}");
    world.engine.set_unfenced([Some(TenantId(1000))]);
    world.start(session, 0, RISKY, 1_000);
    world.run_for(5);
    let params = world.device.params_of("risky");
    assert_eq!(params[16..24], (window >> 24 << 24).to_le_bytes());
    assert_eq!(world.synchronize(session), 0);
    world.finish();
}
