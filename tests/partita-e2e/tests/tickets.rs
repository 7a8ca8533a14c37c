//! A program whose kernel cannot be a worker keeps to its partition as tickets while borders move.

use partita_e2e::daemon::Daemon;
use partita_e2e::held::Held;
use partita_e2e::toolchain;
use partita_model::StatusReport;

fn ctas(status: &StatusReport) -> Vec<u64> {
    status.applications.iter().map(|application| application.ctas_completed).collect()
}

#[test]
fn borders_move_while_tickets_run() {
    for (device, rounds) in [("emu:cd-search-24", "1500"), ("emu:cd-search-24,timing=off", "4000")]
    {
        let daemon = Daemon::start(device);
        let programs = [
            Held::start(&daemon, &toolchain::gallery_program("leavers"), &["128", rounds]),
            Held::start(&daemon, &toolchain::gallery_program("poly"), &["32768", rounds, "1"]),
        ];
        let status = daemon.wait_for("two applications on halves", |status| {
            status.partitions.len() == 2
                && status.partitions.iter().all(|partition| partition.sms.len() == 12)
                && ctas(status).iter().all(|ctas| *ctas > 0)
        });
        let id = |name: &str| status.applications.iter().find(|a| a.name == name).map(|a| a.id.0);
        let (tickets, workers) = (id("leavers").expect("it runs"), id("poly").expect("it runs"));
        let kernel = status
            .applications
            .iter()
            .flat_map(|a| &a.kernels)
            .find(|k| k.name.contains("leavers"));
        let kernel = kernel.expect("it is reported");
        assert_eq!(kernel.form, "ticket", "{kernel:?}");
        assert!(kernel.reason.as_ref().is_some_and(|reason| reason.contains("shfl")), "{kernel:?}");

        for (few, many) in [("0-3", "4-23"), ("0-19", "20-23")] {
            let plan = [format!("{tickets}={few}"), format!("{workers}={many}")];
            let resize =
                daemon.partita(&["resize"]).args(&plan).output().expect("partita can be started");
            assert!(resize.status.success(), "{}", String::from_utf8_lossy(&resize.stderr));
            let moved = daemon.wait_for("the new border", |status| {
                let has = |id: u32, sms: &str| {
                    let mut parts = status.partitions.iter();
                    parts.any(|part| part.application.0 == id && part.sms.to_string() == sms)
                };
                has(tickets, few) && has(workers, many)
            });
            assert!(
                moved.applications.iter().all(|a| a.launches_completed == 0),
                "both were running"
            );
            let then = ctas(&moved);
            daemon.wait_for("progress behind the border", |status| {
                ctas(status).iter().zip(&then).all(|(now, then)| *now > then + 16)
            });
        }
        for program in programs {
            let output = program.release();
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(stdout.ends_with("PASSED\n"), "{stdout}\n{}", daemon.log());
        }
    }
}
