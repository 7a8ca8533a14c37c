//! What a daemon tells a client at its start, for tests that attach without a daemon.

use partita_model::{
    Bytes, ComputeCapability, DeviceAddress, DeviceFacts, DeviceKind, SessionId, SmSet, Timekeeping,
};
use partita_wire::{PROTOCOL, ServerSession, Welcome, Window};

pub fn welcome(server: &ServerSession) -> Welcome {
    Welcome {
        protocol: PROTOCOL,
        features: 0,
        session: SessionId(5),
        facts: DeviceFacts {
            kind: DeviceKind::Emulated,
            timekeeping: Timekeeping::Simulated,
            name: "Emulated H200".to_owned(),
            uuid: *b"0123456789abcdef",
            compute_capability: ComputeCapability { major: 9, minor: 0 },
            sm_count: 132,
            sm_clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6144,
            memory: Bytes(151 << 30),
            llc: Bytes(60 << 20),
            threads_per_sm: 2048,
            ctas_per_sm: 32,
            registers_per_sm: 65_536,
            shared_per_sm: Bytes(233_472),
            shared_per_cta: Bytes(49_152),
            shared_per_cta_optin: Bytes(232_448),
            threads_per_cta: 1024,
            register_parts: 4,
            shared_reserved: Bytes(1024),
            absent_sms: SmSet::EMPTY,
        },
        window: Window { base: DeviceAddress(1 << 40), bytes: 1 << 36 },
        layout: server.layout(),
        host: None,
    }
}
