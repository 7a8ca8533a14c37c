//! SMRA on the fluid GPU: what its moves are worth, and that they do no harm.

use crate::simulator::{Program, Random, Simulator, check_orders, gpu, speeds, stp};
use partita_policy::{Everyone, Policy, PolicySettings, Smra, SmraSettings};

/// Runs a mix until SMRA watches; answers the SMs of each program.
fn settled(sms: u16, programs: &[Program], seed: u64) -> Vec<(Program, u16)> {
    let gpu = gpu(sms);
    let smra = Smra::new(SmraSettings::default(), gpu);
    let settings = PolicySettings::new(gpu.sm_clock_khz);
    let policy = Policy::new(settings, Box::new(Everyone::default()), Box::new(smra));
    let mut simulator = Simulator::new(gpu, policy, seed);
    let ids: Vec<u32> = programs.iter().map(|&program| simulator.arrive(program)).collect();
    simulator.converge();
    check_orders(simulator.policy.orders(), simulator.sms(), &ids);
    programs.iter().zip(&ids).map(|(&program, &id)| (program, simulator.active(id))).collect()
}

/// Instructions a cycle of a mix: the paper's throughput (Eq. 1.1).
fn instructions(sms: u16, mix: &[(Program, u16)]) -> f64 {
    speeds(&gpu(sms), mix).iter().sum()
}

#[test]
fn its_moves_gain_and_never_lose_much() {
    let (mut gains, mut printed) = (Vec::new(), Vec::new());
    for seed in 0..120 {
        let mut random = Random(seed);
        let programs = [Program::memory(&mut random), Program::compute(&mut random)];
        let mix = settled(60, &programs, seed);
        let even = programs.map(|program| (program, 30));
        let over = |found: f64, even: f64| found / even - 1.0;
        gains.push(over(stp(&gpu(60), &mix), stp(&gpu(60), &even)));
        printed.push(over(instructions(60, &mix), instructions(60, &even)));
    }
    let count = f64::from(u32::try_from(gains.len()).unwrap());
    let mean = gains.iter().sum::<f64>() / count;
    let worst = gains.iter().copied().fold(f64::INFINITY, f64::min);
    let instructions = printed.iter().sum::<f64>() / count;
    println!("STP over even: mean {mean:.3}, worst {worst:.3}; instructions {instructions:.3}");
    assert!(mean > 0.02, "{mean}");
    assert!(worst > -0.02, "{worst}");
}
