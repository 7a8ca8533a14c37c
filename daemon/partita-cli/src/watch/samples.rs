//! Readings for tests: two applications on 24 SMs.

use partita_model::{GpuNumber, GpuStatus, StatusReport};

const REPORT: &str = r#"{"version": "0.1.0",
    "gpu": {"number": 0, "name": "emu 24", "kind": "emulated", "timekeeping": "simulated",
        "compute_capability": {"major": 9, "minor": 0}, "sms": 24, "memory_bytes": 4294967296,
        "memory_used_bytes": 1048576, "device_time_ns": 1500000, "energy_nj": null, "pid": 7,
        "restarts": 0},
    "applications": [
        {"id": 1, "name": "poly", "tenant": 1000, "sessions": [3, 5], "pids": [42, 43],
        "memory_used_bytes": 1048576, "class": "compute", "launches_completed": 20,
        "ctas_completed": 512, "kernels": [
            {"name": "_Z4polyPf", "form": "worker", "reason": null, "launches": 3}]},
        {"id": 2, "name": "triad", "tenant": 1001, "sessions": [4], "pids": [44],
        "memory_used_bytes": 4096, "class": "memory", "launches_completed": 5,
        "ctas_completed": 100, "kernels": [
            {"name": "_Z5triadPf", "form": "original", "reason": "it uses a barrier",
            "launches": 5}]}],
    "partitions": [{"application": 1, "sms": "0-11", "pinned": true},
        {"application": 2, "sms": "12-19", "pinned": false}],
    "policy": {"selector": "everyone", "partitioner": "cd-search", "stage": "watch",
        "stalled": "11", "gated": "20-21", "why": ["One.", "So application 1 has 12 SMs."],
        "decisions": [{"sequence": 8, "time": 1200000, "partitioner": "cd-search",
            "cause": "membership", "interval": null, "sms": "0-23", "gated": "20-21",
            "stage": "watch", "notes": [], "applications": [{"application": 1, "had": "0-23",
                "had_stalled": "none", "progress": {"ctas": 0, "traffic": null}, "gets": "0-11",
                "stalled": "11"}]}]}}"#;

/// The answer of `/v1/status`.
pub fn report() -> StatusReport {
    serde_json::from_str(REPORT).unwrap()
}

/// The part of one GPU.
pub fn gpu(number: u16) -> GpuStatus {
    let mut status = GpuStatus::from(report());
    status.gpu.number = GpuNumber(number);
    status
}
