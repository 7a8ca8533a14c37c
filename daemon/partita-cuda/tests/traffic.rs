//! Hit rates of the LLC, on the stand-in for NVML.

mod fake;

use fake::{Fake, World};
use partita_cuda_device::Options;
use partita_cuda_device::driver::GPM_INTERVAL;
use partita_device::Device;
use std::time::{Duration, Instant};

fn world(fake: &Fake) -> World<'_> {
    fake.world_with(&Options { nvml: Some(fake.path()), ..fake.options() })
}

/// A window as long as NVML wants it.
fn window(world: &mut World<'_>, number: u64) {
    let samples = world.fake.logged("nvmlGpmSampleGet").len();
    world.device.begin_traffic(number);
    let end = Instant::now() + Duration::from_secs(60);
    while world.fake.logged("nvmlGpmSampleGet").len() == samples {
        assert!(Instant::now() < end, "no sample is taken");
        std::thread::yield_now();
    }
    let begun = Instant::now();
    while begun.elapsed() <= GPM_INTERVAL {
        std::thread::yield_now();
    }
    world.device.end_traffic(number);
}

fn rates(world: &mut World<'_>) -> Vec<(u64, f64)> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let rates = world.device.hit_rates();
        if !rates.is_empty() {
            return rates;
        }
        assert!(Instant::now() < end, "no rate comes");
        std::thread::yield_now();
    }
}

#[test]
fn windows_have_a_hit_rate() {
    let fake = Fake::new();
    let mut world = world(&fake);
    window(&mut world, 1);
    assert_eq!(rates(&mut world), [(1, 0.75)]);
    fake.tell("set llc-hits 100");
    // One that another has replaced has no result.
    world.device.begin_traffic(2);
    world.device.begin_traffic(3);
    world.device.end_traffic(2);
    window(&mut world, 4);
    assert_eq!(rates(&mut world), [(4, 0.5)]);
    fake.tell("set llc-hits 0");
    fake.tell("set llc-misses 0");
    window(&mut world, 5);
    let end = Instant::now() + Duration::from_secs(60);
    while fake.logged("nvmlGpmMetricsGet").len() < 3 {
        assert!(Instant::now() < end, "the window does not end");
        std::thread::yield_now();
    }
    fake.tell("set llc-misses 100");
    window(&mut world, 6);
    assert_eq!(rates(&mut world), [(6, 0.0)], "nothing was touched in the one before");
}

#[test]
fn gpus_that_do_not_count_have_none() {
    let fake = Fake::new();
    fake.tell("set gpm 0");
    let mut world = world(&fake);
    world.device.begin_traffic(1);
    world.device.end_traffic(1);
    assert!(world.device.hit_rates().is_empty() && fake.logged("nvmlGpmSampleGet").is_empty());
}
