//! Hit rates of applications that run alone.

use super::world::{LONG, SHORT, World};
use partita_model::{ApplicationId, Nanos};

fn rate(world: &World, application: ApplicationId) -> Option<f64> {
    world.engine.machines.observer.hit_rate(application)
}

#[test]
fn only_windows_alone_count() {
    let mut world = World::new(8);
    world.engine.common.config.traffic_window = Nanos(200_000);
    world.device.hit_rate = Some(0.25);
    let (a, of_a) = world.session();
    let (b, of_b) = world.session();
    world.start(a, 0, LONG, 20_000);
    world.run_for(150);
    assert_eq!(rate(&world, of_a), None, "not long enough");
    world.run_for(200);
    assert_eq!(rate(&world, of_a), Some(0.25));
    // Beside another, nothing is measured; and what was under way is not believed when it comes.
    world.device.hit_rate = None;
    world.run_for(250);
    assert!(!world.device.traffic.1.is_empty(), "a window has ended and is not told yet");
    world.start(b, 0, LONG, 1_000);
    world.run_for(100);
    world.device.hit_rate = Some(0.75);
    world.run_for(300);
    assert_eq!((rate(&world, of_a), rate(&world, of_b)), (Some(0.25), None));
    assert_eq!((world.synchronize(a), world.synchronize(b)), (0, 0));
    // Many short launches, with gaps between them, are as good as one that is long.
    for _ in 0..20 {
        world.start(b, 0, SHORT, 100);
        assert_eq!(world.synchronize(b), 0);
        world.run_for(20);
    }
    assert_eq!((rate(&world, of_a), rate(&world, of_b)), (Some(0.25), Some(0.75)));
    world.finish();
}
