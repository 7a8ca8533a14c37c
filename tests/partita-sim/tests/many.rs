//! As many sessions as the daemon serves, far more than have room at full size, simultaneously and
//! one after another.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::Device;
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{CloseReason, Engine, EngineConfig, SessionGrant, SessionIdentity};
use partita_model::{SessionId, TenantId, Terms};

const SESSIONS: u64 = 4096;
const TENANTS: u32 = 26;

fn open(engine: &mut Engine, device: &mut EmulatedGpu, session: u64, tenant: u32) -> SessionGrant {
    let identity = SessionIdentity {
        session: SessionId(session),
        tenant: TenantId(tenant),
        pid: 1,
        program: "program".to_owned(),
        tag: None,
        asked: Terms::default(),
    };
    engine.open_session(device, identity).unwrap()
}

#[test]
fn thousands_of_sessions_at_a_time_have_windows_of_their_own() {
    let mut device = EmulatedGpu::new(Spec::named("h200").unwrap(), Options::default());
    let mut engine = Engine::new(EngineConfig::default(), &mut device).unwrap();
    let tenants = (1..=TENANTS).cycle();
    let grants: Vec<SessionGrant> = (1..=SESSIONS)
        .zip(tenants)
        .map(|(id, tenant)| open(&mut engine, &mut device, id, tenant))
        .collect();
    let mut windows: Vec<(u64, u64)> =
        grants.iter().map(|g| (g.window.start.0, g.window.end())).collect();
    windows.sort_unstable();
    assert!(windows.windows(2).all(|pair| pair[0].1 <= pair[1].0), "windows overlap");
    assert!(windows.iter().all(|(start, end)| end - start >= 8 << 30), "a window is too small");
    let memory = device.facts().memory.0;
    assert!(
        grants[..TENANTS as usize].iter().all(|grant| grant.window.bytes >= memory),
        "less than the device's memory"
    );
    for id in 1..=SESSIONS {
        engine.close_session(&mut device, SessionId(id), CloseReason::Died);
    }
    assert!(engine.is_at_rest() && engine.application_reports().is_empty());
    // The addresses are free again, so later sessions have as much as the first.
    for id in 10_000..13_000 {
        let grant = open(&mut engine, &mut device, id, 1);
        assert_eq!(grant.window.bytes, grants[0].window.bytes);
        engine.close_session(&mut device, SessionId(id), CloseReason::Goodbye);
    }
}
