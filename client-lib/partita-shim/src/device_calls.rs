//! Exports: start-up, versions, errors and the device (CUDA Driver API, "Error Handling",
//! "Initialization", "Version Management", "Device Management").

use crate::abi::{Array, Out, Text, write_text};
use crate::attributes;
use crate::devices;
use crate::entry::exports;
use crate::error::{self, CuError};
use crate::runtime::DRIVER_VERSION;
use partita_model::DeviceKind;
use std::ffi::c_char;

exports! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        devices::initialize()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(DRIVER_VERSION);
        Ok(())
    }

    fn cuGetErrorName(code: i32, name: Out<*const c_char>) {
        let found = error::name_of(code);
        name.set(found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr));
        found.map(drop).ok_or(CuError::INVALID_VALUE)
    }

    fn cuGetErrorString(code: i32, text: Out<*const c_char>) {
        let found = error::text_of(code);
        text.set(found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr));
        found.map(drop).ok_or(CuError::INVALID_VALUE)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(i32::try_from(devices::all()?.len()).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        device.set(devices::get(ordinal)?.ordinal());
        Ok(())
    }

    fn cuDeviceGetName(name: Out<u8>, bytes: i32, device: i32) {
        let device = devices::get(device)?;
        let bytes = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
        write_text(&name, bytes, &device.facts().name);
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(devices::get(device)?.facts().uuid);
        Ok(())
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(devices::get(device)?.facts().uuid);
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        let device = devices::get(device)?;
        bytes.set(usize::try_from(device.facts().memory.0).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        let device = devices::get(device)?;
        value.set(match attribute {
            // CAN_MAP_HOST_MEMORY, MANAGED_MEMORY, CONCURRENT_MANAGED_ACCESS
            19 | 83 | 89 => i32::from(match device.opened() {
                Some(runtime) => runtime.session.shared_window().is_some(),
                // As far as it can be told before.
                None => device.facts().kind == DeviceKind::Emulated,
            }),
            50 => device.pci()[0],
            33 => device.pci()[1],
            34 => device.pci()[2],
            attribute => attributes::value(device.facts(), attribute),
        });
        Ok(())
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let capability = devices::get(device)?.facts().compute_capability;
        major.set(i32::from(capability.major));
        minor.set(i32::from(capability.minor));
        Ok(())
    }

    /// `CUdevprop`: ten integers, most of which are attributes of their own today.
    fn cuDeviceGetProperties(properties: Out<i32>, device: i32) {
        let device = devices::get(device)?;
        // maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], sharedMemPerBlock,
        // totalConstantMemory, SIMDWidth, memPitch, regsPerBlock, clockRate, textureAlign
        let attributes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        properties.set_all(&attributes.map(|attribute| attributes::value(device.facts(),
            attribute)));
        Ok(())
    }

    fn cuDeviceGetPCIBusId(id: Out<u8>, bytes: i32, device: i32) {
        let device = devices::get(device)?;
        let bytes = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
        write_text(&id, bytes, &pci_bus_id(device));
        Ok(())
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, id: Text) {
        let wanted = id.utf8()?;
        let found = devices::all()?.iter().find(|device| {
            let own = pci_bus_id(device);
            // The domain and the function may be left out.
            let shorter = own.strip_prefix("0000:").and_then(|own| own.strip_suffix(".0"));
            let named = [Some(own.as_str()), own.strip_prefix("0000:"), own.strip_suffix(".0"),
                shorter];
            named.iter().flatten().any(|name| name.eq_ignore_ascii_case(wanted))
        });
        device.set(found.ok_or(CuError::INVALID_DEVICE)?.ordinal());
        Ok(())
    }

    /// No device reaches another's memory, and none is a peer of itself.
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        devices::get(device)?;
        devices::get(peer)?;
        can.set(0);
        Ok(())
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32) {
        let (device, peer) = (devices::get(device)?, devices::get(peer)?);
        if device.ordinal() == peer.ordinal() {
            return Err(CuError::INVALID_DEVICE);
        }
        // PERFORMANCE_RANK, ACCESS_SUPPORTED, NATIVE_ATOMIC_SUPPORTED,
        // ARRAY_ACCESS_ACCESS_SUPPORTED
        if !(1..=4).contains(&attribute) {
            return Err(CuError::INVALID_VALUE);
        }
        value.set(0);
        Ok(())
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, _kind: i32, device: i32) {
        devices::get(device)?;
        supported.set(0);
        Ok(())
    }

    fn cuDeviceGetHostAtomicCapabilities(
        answers: Out<u32>, _operations: Array<i32>, count: u32, device: i32,
    ) {
        devices::get(device)?;
        answers.set_all(&vec![0; count.min(64) as usize]);
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: Out<i32>) {
        const EAGER: i32 = 1;
        const LAZY: i32 = 2;
        let eager = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER");
        mode.set(if eager { EAGER } else { LAZY });
        Ok(())
    }

    fn cuProfilerStart() { Ok(()) }

    fn cuProfilerStop() { Ok(()) }
}

fn pci_bus_id(device: &devices::Device) -> String {
    let [domain, bus, device] = device.pci();
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}
