//! Hit rates of the LLC, on the stand-in for NVML.

mod fake;

use fake::{Fake, World};
use partita_cuda_device::Options;
use partita_cuda_device::driver::GPM_INTERVAL;
use partita_device::TrafficSampling;
use std::time::{Duration, Instant};

fn world(fake: &Fake) -> World<'_> {
    fake.world_with(&Options { nvml: Some(fake.path()), ..fake.options() })
}

/// Calls of a function of NVML so far.
fn calls(world: &World<'_>, function: &str) -> usize {
    world.fake.logged(function).len()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// A window that NVML finds long enough. The device measures a window from the moment when its
/// thread has the first sample, which may be later than the sample's line in the log: a window that
/// turns out too short is repeated, twice as long.
fn window(world: &mut World<'_>, number: u64) {
    let rates_asked = calls(world, "nvmlGpmMetricsGet");
    let mut length = GPM_INTERVAL;
    loop {
        let samples = calls(world, "nvmlGpmSampleGet");
        world.device.begin_traffic(number);
        wait_for("a sample", || calls(world, "nvmlGpmSampleGet") > samples);
        std::thread::sleep(length);
        world.device.end_traffic(number);
        // A window that has ended keeps no sample.
        wait_for("the window's end", || {
            let made = calls(world, "nvmlGpmSampleAlloc");
            calls(world, "nvmlGpmSampleFree") == made
        });
        if calls(world, "nvmlGpmMetricsGet") > rates_asked {
            return;
        }
        length *= 2;
    }
}

fn rates(world: &mut World<'_>) -> Vec<(u64, f64)> {
    let mut rates = Vec::new();
    wait_for("a rate", || {
        rates = world.device.hit_rates();
        !rates.is_empty()
    });
    rates
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
