//! Programs that are wrong, or ask for the impossible.

use super::{Client, HELD_CTAS, THREADS, survive};
use partita_client::{Launch, StreamHandle, code, image};
use partita_model::Dim3;

#[test]
fn malformed_ptx() {
    survive(|daemon| {
        let client = daemon.connect();
        let capability = client.session.facts().compute_capability;
        let head = ".version 7.0\n.target sm_70\n.address_size 64\n";
        for body in ["nonsense", ".visible .entry f(", ".visible .entry f() { ld.global; }"] {
            let text = format!("{head}{body}");
            let image = image::select(text.as_bytes(), capability).unwrap();
            let error = client.session.load_module(&image).unwrap_err();
            assert_eq!(error.code, code::INVALID_PTX, "{body}: {error}");
            assert!(error.text.contains("4:"), "{body}: {error}");
        }
        client.check(&client.spin(3, 3));
    });
}

/// Launches `spin` with this grid; whether it was refused at once.
fn launch(client: &Client, grid: Dim3) -> Result<(), partita_client::CallError> {
    let data = client.session.mem_alloc(u64::from(HELD_CTAS)).unwrap();
    let mut params = data.0.to_le_bytes().to_vec();
    params.extend(1_u32.to_le_bytes());
    let index = client.module.contents.kernels.iter().position(|kernel| kernel.name == "spin");
    client.session.launch(Launch {
        module: client.module.module,
        kernel: u32::try_from(index.unwrap()).unwrap(),
        grid,
        block: Dim3::linear(THREADS),
        dynamic_shared: 0,
        stream: StreamHandle::LEGACY,
        cooperative: false,
        cluster: Dim3::linear(1),
        params: &params,
    })
}

#[test]
fn huge_grid() {
    survive(|daemon| {
        for grid in [
            Dim3 { x: u32::MAX, y: u32::MAX, z: u32::MAX },
            Dim3 { x: 0, y: 1, z: 1 },
            Dim3 { x: (1 << 31) - 1, y: 65_535, z: 65_535 },
        ] {
            let client = daemon.connect();
            // Refused, or a fault at its first CTA past the memory: an error in any case.
            let refused = launch(&client, grid).and_then(|()| client.session.synchronize(None));
            assert!(refused.is_err(), "{grid:?}");
        }
    });
}

#[test]
fn the_reason_of_a_refused_launch_reaches_the_program_and_the_log() {
    survive(|daemon| {
        let client = daemon.connect();
        let words = "grid 0,1,1 is outside";
        launch(&client, Dim3 { x: 0, y: 1, z: 1 }).unwrap();
        let refused = client.session.synchronize(None).unwrap_err();
        assert!(refused.text.contains(words), "{refused}");
        assert_eq!(client.session.check(), Err(refused));
        let log = daemon.log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("INVALID_VALUE")).collect();
        assert!(lines.len() == 1 && lines[0].contains(words), "{log}");
    });
}
