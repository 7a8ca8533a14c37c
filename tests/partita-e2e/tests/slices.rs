//! A program whose kernel can be neither worker nor ticket lets others go between its slices.

use partita_e2e::daemon::Daemon;
use partita_e2e::held::Held;
use partita_e2e::toolchain;

#[test]
fn a_neighbour_runs_in_the_midst_of_a_launch_in_slices() {
    // A block has one warp only, so it needs many rounds for minutes of work.
    let devices = [("emu:cd-search-24", "60000"), ("emu:cd-search-24,timing=off", "400000")];
    for (device, rounds) in devices {
        let daemon = Daemon::start(device);
        let slices = toolchain::gallery_program("slices");
        let held = Held::start(&daemon, &slices, &["128", rounds]);
        let form = |status: &partita_model::StatusReport| {
            let mut kernels = status.applications.iter().flat_map(|a| &a.kernels);
            kernels.find(|kernel| kernel.name.contains("slices")).cloned()
        };
        let status = daemon
            .wait_for("some slices", |status| form(status).is_some_and(|kernel| kernel.slices > 1));
        let kernel = form(&status).expect("it was found");
        assert_eq!(kernel.form, "slice", "{kernel:?}");
        assert!(kernel.reason.as_ref().is_some_and(|reason| reason.contains("`exit`")));
        let neighbour = toolchain::gallery_program("grid_stride");
        let output = daemon.run(&neighbour).output().expect("partita can be started");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.ends_with("PASSED\n"), "{stdout}\n{}", daemon.log());
        let status = daemon.wait_for("the held program", |status| form(status).is_some());
        let own = status.applications.iter().find(|a| a.name == "slices");
        assert_eq!(own.map(|a| a.launches_completed), Some(0), "it was over before the neighbour");
        let output = held.release();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.ends_with("PASSED\n"), "{stdout}\n{}", daemon.log());
    }
}
