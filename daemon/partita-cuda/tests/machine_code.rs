//! Machine code on green contexts, on the stand-in for the driver.

mod fake;

use fake::{CUBIN, Fake, module_of};
use partita_cuda_device::Options;
use partita_device::{Confinement, Confining, Device, DeviceError, GridSpec, Outcome, Phase, Work};
use partita_model::{Dim3, SmSet};

fn options(fake: &Fake) -> Options {
    Options { library: Some(fake.path()), ..Options::default() }
}

/// How the stand-in logs a kernel on these SMs.
fn runs(kernel: &str, sms: &SmSet) -> String {
    let numbers: Vec<String> = sms.iter().map(|sm| sm.0.to_string()).collect();
    format!("runs: {kernel} on [{}]", numbers.join(", "))
}

#[test]
fn groups_are_where_their_ctas_were_seen() {
    let fake = Fake::new();
    let world = fake.world();
    let groups = world.device.sm_groups();
    assert_eq!((groups.len(), groups[0]), (16, "0-1,32-33,64-65,96-97".parse().unwrap()));
    let all = groups.iter().fold(SmSet::EMPTY, |all, group| all.union(group));
    assert_eq!(all, SmSet::range(0, 128), "four of 132 SMs are in none");
    assert_eq!(fake.calls("cuGreenCtxDestroy"), 16);
}

#[test]
fn what_contradicts_the_driver_is_not_believed() {
    for obstacle in
        ["set lie 3", "fail cuDevSmResourceSplitByCount 801", "fail cuLibraryLoadData 801 2"]
    {
        let fake = Fake::new();
        fake.tell(obstacle);
        let mut world = fake.world();
        assert_eq!(world.device.sm_groups(), [], "{obstacle}");
        let refused = world.device.confine(SmSet::range(0, 8));
        assert!(matches!(refused, Err(DeviceError::Unsupported(_))), "{refused:?}");
        // It runs all the same.
        world.load_code(1, CUBIN).unwrap();
        let plain = world.launch(0, "plain", [0; 2]);
        world.finish(&[plain]);
        assert_eq!(*world.outcome(plain), Outcome::Complete);
    }
}

#[test]
fn grids_run_in_the_context_of_their_sms() {
    let fake = Fake::new();
    let mut world = fake.world();
    let facts = world.load_code(1, CUBIN).unwrap();
    let names: Vec<&str> = facts.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names.len(), 5);
    assert!(
        names.contains(&"await_it") && facts.kernels.iter().all(|kernel| kernel.registers == 32)
    );
    let groups = world.device.sm_groups().to_vec();
    let (two, three) =
        (groups[0].union(&groups[3]), groups[1].union(&groups[2]).union(&groups[15]));
    let not_ready = world.device.enqueue(
        partita_model::StreamId(0),
        partita_model::OperationId(9_999),
        Work::LaunchOn { launch: fake::launch("plain", [0; 2]), sms: two },
    );
    assert!(matches!(not_ready, Err(DeviceError::BadLaunch(_))), "{not_ready:?}");
    world.confine(two).unwrap();
    world.confine(three).unwrap();
    assert_eq!(world.device.confine(two), Ok(Confinement::Ready));
    assert!(world.confine(SmSet::range(0, 8)).unwrap_err().contains("no whole groups"));

    // In order of the stream, whatever context each is in.
    let word = world.allocate(0, 8);
    fake.tell("clear");
    let first = world.launch_on(0, "await_it", [word.0, 1], two);
    let filled = world.enqueue(0, Work::Fill { to: word, value: 7, width: 4, count: 1 });
    world.until_logged(&runs("await_it", &two));
    let second = world.launch_on(0, "store_it", [word.0, 9], three);
    let third = world.launch(0, "plain", [0; 2]);
    assert_eq!(world.peek(word), 0, "what comes after waits");
    world.device.poke(word, &1_u64.to_le_bytes()).unwrap();
    world.finish(&[first, filled, second, third]);
    assert_eq!(world.peek(word), 9);
    let order: Vec<String> =
        fake.log().into_iter().filter(|line| line.starts_with("runs: ")).collect();
    assert_eq!(order, [runs("await_it", &two), runs("store_it", &three), "runs: plain".to_owned()]);
}

#[test]
fn a_context_is_made_when_the_workers_have_gone_and_nobody_waits_for_it() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["spin", "kernel"])).unwrap();
    let running = world.launch(0, "spin", [0; 2]);
    world.until_logged("runs: spin");
    let group = world.device.sm_groups()[2];
    assert_eq!(world.device.confine(group), Ok(Confinement::Pending));
    assert_eq!(world.device.confine(group), Ok(Confinement::Pending), "asked for once");
    world.until(|world| world.device.phase() == Phase::Draining);
    let other = world.launch(1, "kernel", [0; 2]);
    world.finish(&[other]);
    assert!(!world.is_done(running));
    fake.tell("release spin");
    world.until(|world| !world.confined.is_empty());
    assert_eq!(world.confined, [(group, Ok(()))]);
    assert_eq!(fake.logged("blocked"), Vec::<String>::new());
}

#[test]
fn what_the_driver_refuses_is_told() {
    let fake = Fake::new();
    let mut world = fake.world();
    let group = world.device.sm_groups()[0];
    for function in ["cuGreenCtxCreate", "cuGreenCtxStreamCreate", "cuEventRecord"] {
        fake.tell(&format!("fail {function} 2"));
        let reason = world.confine(group).unwrap_err();
        assert!(reason.contains(function), "{reason}");
    }
    world.confine(group).unwrap();
    fake.tell("fail cuLibraryLoadData 209");
    assert!(world.load_code(1, CUBIN).unwrap_err().contains("cuLibraryLoadData"));
    let cut = &CUBIN[..CUBIN.len() - 8];
    assert!(world.load_code(2, cut).unwrap_err().contains("outside of an image"));
    world.load_code(1, CUBIN).unwrap();
    fake.tell("fail cuLaunchKernel 701");
    let refused = world.launch_on(0, "plain", [0; 2], group);
    world.finish(&[refused]);
    assert!(matches!(world.outcome(refused), Outcome::Fault(_)), "{:?}", world.outcome(refused));
}

#[test]
fn the_context_that_was_not_used_for_longest_makes_room() {
    let fake = Fake::new();
    let mut world = fake.world_with(&options(&fake));
    world.load_code(1, CUBIN).unwrap();
    let groups = world.device.sm_groups().to_vec();
    for group in &groups {
        world.confine(*group).unwrap();
    }
    // The first is in use, so the second goes.
    let running = world.launch_on(0, "spin", [0; 2], groups[0]);
    world.until_logged("runs: spin");
    let pair = groups[0].union(&groups[1]);
    assert_eq!(world.device.confine(pair), Ok(Confinement::Pending));
    fake.tell("release spin");
    world.finish(&[running]);
    world.until(|world| !world.confined.is_empty());
    assert_eq!(world.confined, [(pair, Ok(()))]);
    assert_eq!(world.device.confine(groups[0]), Ok(Confinement::Ready));
    assert_eq!(world.device.confine(groups[1]), Ok(Confinement::Pending));
}

#[test]
fn a_fault_of_machine_code_names_its_program() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load_code(1, CUBIN).unwrap();
    let group = world.device.sm_groups()[0];
    world.confine(group).unwrap();
    let guilty = world.launch_on(0, "fault_it", [0; 2], group);
    world.until(|world| world.lost.is_some());
    let Outcome::Fault(fault) = world.outcome(guilty) else {
        panic!("{:?}", world.outcome(guilty))
    };
    assert_eq!(fault.kernel, "fault_it");
}

/// A kernel `one` with variables.
const WITH_VARIABLES: &[u8] = include_bytes!("../../../kernels-ptx/partita-cubin/tests/one.cubin");

/// Variables are where the driver has put them, for copies by name.
#[test]
fn variables_are_reached_by_name() {
    let fake = Fake::new();
    let mut world = fake.world();
    let facts = world.load_code(1, WITH_VARIABLES).unwrap();
    assert!(!facts.variables.is_empty());
    for variable in &facts.variables {
        assert_eq!(variable.address.0, fake.variable(&variable.name), "{}", variable.name);
        let fill = Work::Fill { to: variable.address, value: 7, width: 1, count: variable.size.0 };
        let filled = world.enqueue(0, fill);
        world.finish(&[filled]);
        let bytes = usize::try_from(variable.size.0).unwrap();
        assert_eq!(fake.memory(variable.address.0, bytes), vec![7; bytes]);
        let beyond =
            Work::Fill { to: variable.address, value: 7, width: 1, count: variable.size.0 + 1 };
        let id = partita_model::OperationId(9_999);
        let refused = world.device.enqueue(partita_model::StreamId(0), id, beyond);
        assert!(matches!(refused, Err(DeviceError::BadRange { .. })), "{refused:?}");
    }
    let first = facts.variables[0].address;
    world.device.unload_module(partita_model::ModuleId(1)).unwrap();
    assert!(world.device.peek(first, &mut [0; 1]).is_err());
}

#[test]
fn cooperative_launches_say_so() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load_code(1, CUBIN).unwrap();
    fake.tell("clear");
    let launch = GridSpec { cooperative: true, ..fake::launch("plain", [1, 2]) };
    let launched = world.enqueue(0, Work::Launch(launch));
    world.finish(&[launched]);
    assert_eq!(*world.outcome(launched), Outcome::Complete);
    let logged = fake.logged("cuLaunchKernelEx");
    assert!(
        logged.len() == 1
            && logged[0].contains("plain, grid 3 2 1")
            && logged[0].contains("cooperative")
    );
    fake.tell("fail cuLaunchKernelEx 720");
    let launch = GridSpec { cooperative: true, ..fake::launch("plain", [1, 2]) };
    let too_large = world.enqueue(0, Work::Launch(launch));
    world.finish(&[too_large]);
    assert!(matches!(world.outcome(too_large), Outcome::Fault(_)));
}

#[test]
fn clusters_reach_the_driver() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load_code(1, CUBIN).unwrap();
    fake.tell("clear");
    // The second is larger than what every GPU takes.
    for cluster in [Dim3::new(1, 2, 1), Dim3::new(3, 2, 2)] {
        let launch = GridSpec { cluster, ..fake::launch("plain", [1, 2]) };
        let launched = world.enqueue(0, Work::Launch(launch));
        world.finish(&[launched]);
        assert_eq!(*world.outcome(launched), Outcome::Complete);
    }
    let logged = fake.logged("cuLaunchKernelEx");
    assert!(logged.len() == 2 && logged[0].contains("clusters 1 2 1"), "{logged:?}");
    assert_eq!(fake.calls("cuKernelSetAttribute"), 1);
}

/// A driver without libraries loads machine code as modules.
#[test]
fn machine_code_needs_no_libraries() {
    let fake = Fake::new();
    fake.tell("fail cuLibraryLoadData 801 3");
    let mut world = fake.world();
    let facts = world.load_code(1, CUBIN).unwrap();
    // Two loads were at opening.
    assert_eq!((facts.kernels.len(), fake.calls("cuModuleLoadDataEx")), (5, 3));
    let word = world.allocate(0, 8);
    let stored = world.launch(0, "store_it", [word.0, 9]);
    world.finish(&[stored]);
    assert_eq!(world.peek(word), 9);
    assert!(
        world.load_code(2, WITH_VARIABLES).unwrap().variables.iter().all(|found| found.size.0 > 0)
    );
}
