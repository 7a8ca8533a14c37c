//! The configuration file of `partitad`.

use partita_model::{GpuConfig, GpuNumber, PartitionerKind, TenantId};
use partita_wire::supervise::{Ask, FrameReader, ToGpu, encode};
use partitad::configuration::{ConfigContext, read_policy};

/// Machines that the file is read for: the GPU, the number of GPUs, SMs of the GPU.
const MACHINES: [(u16, u16, u16); 3] = [(0, 1, 24), (1, 2, 132), (0, 1, 1)];

/// Checks the text of a file.
///
/// # Panics
/// Where a refusal names no line of the file, or what is taken cannot hold.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for (gpu, gpu_count, sm_count) in MACHINES {
        let read = read_policy(&ConfigContext {
            file: "partita.toml",
            text,
            gpu: GpuNumber(gpu),
            gpu_count,
            sm_count,
            user: &|name| (name == "alice").then_some(TenantId(1000)),
            user_exists: &|tenant| tenant.0 < 2000,
        });
        match read {
            Err(error) => {
                let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
                assert!((1..=lines).contains(&error.line), "{error} in a file of {lines} lines");
                assert!(!error.reason.is_empty(), "a refusal says why");
            }
            Ok(None) => {}
            Ok(Some(config)) => assert_can_hold(&config, sm_count),
        }
    }
}

fn assert_can_hold(config: &GpuConfig, sm_count: u16) {
    let shares = &config.policy.shares;
    let total: u32 = shares.iter().map(|share| u32::from(share.sms)).sum();
    assert!(shares.is_empty() || total < u32::from(sm_count), "{total} SMs of {sm_count}");
    assert!(
        shares.iter().all(|share| share.sms > 0 && (share.tenant.is_some() || share.tag.is_some()))
    );
    assert!(config.policy.partitioner != PartitionerKind::Static || !shares.is_empty());
    assert!(config.tenants.as_ref().is_none_or(|tenants| !tenants.is_empty()));
    assert!(config.quotas.iter().all(|quota| quota.bytes > 0));
    // `partita-gpu` gets it in a frame.
    let sent = ToGpu { id: 1, ask: Ask::Configure(config.clone()) };
    let mut frames = FrameReader::default();
    frames.push(&encode(&sent).expect("a configuration fits a frame"));
    let received = frames.next_message::<ToGpu>().expect("a frame is read as it was written");
    assert_eq!(received, Some(sent));
}
