//! Exports: start-up, versions, errors and the device (CUDA Driver API, "Error Handling", "Initialization", "Version
//! Management", "Device Management").

use crate::abi::{Array, Out, Text, write_text};
use crate::attributes;
use crate::context::check_device;
use crate::entry::exports;
use crate::error::{self, CuError};
use crate::runtime::{self, DRIVER_VERSION};
use std::ffi::c_char;

exports! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        runtime::initialize()
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
        runtime::get()?;
        count.set(1);
        Ok(())
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        check_device(ordinal)?;
        device.set(0);
        Ok(())
    }

    fn cuDeviceGetName(name: Out<u8>, bytes: i32, device: i32) {
        let runtime = check_device(device)?;
        let bytes = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
        write_text(&name, bytes, &runtime.facts().name);
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(check_device(device)?.facts().uuid);
        Ok(())
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(check_device(device)?.facts().uuid);
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        let runtime = check_device(device)?;
        bytes.set(usize::try_from(runtime.facts().memory.0).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        let runtime = check_device(device)?;
        value.set(match attribute {
            // CAN_MAP_HOST_MEMORY, MANAGED_MEMORY, CONCURRENT_MANAGED_ACCESS
            19 | 83 | 89 => i32::from(runtime.session.shared_window().is_some()),
            attribute => attributes::value(runtime.facts(), attribute),
        });
        Ok(())
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let capability = check_device(device)?.facts().compute_capability;
        major.set(i32::from(capability.major));
        minor.set(i32::from(capability.minor));
        Ok(())
    }

    /// `CUdevprop`: ten integers, most of which are attributes of their own today.
    fn cuDeviceGetProperties(properties: Out<i32>, device: i32) {
        let runtime = check_device(device)?;
        // maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], sharedMemPerBlock, totalConstantMemory, SIMDWidth,
        // memPitch, regsPerBlock, clockRate, textureAlign
        let attributes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        properties.set_all(&attributes.map(|attribute| attributes::value(runtime.facts(), attribute)));
        Ok(())
    }

    fn cuDeviceGetPCIBusId(id: Out<u8>, bytes: i32, device: i32) {
        check_device(device)?;
        let bytes = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
        write_text(&id, bytes, &pci_bus_id());
        Ok(())
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, id: Text) {
        runtime::get()?;
        let wanted = id.utf8()?;
        let own = pci_bus_id();
        // The domain and the function may be left out.
        let shorter = own.strip_prefix("0000:").and_then(|own| own.strip_suffix(".0"));
        let named = [Some(own.as_str()), own.strip_prefix("0000:"), own.strip_suffix(".0"), shorter];
        if !named.iter().flatten().any(|name| name.eq_ignore_ascii_case(wanted)) {
            return Err(CuError::INVALID_DEVICE);
        }
        device.set(0);
        Ok(())
    }

    /// There is one device, and it is no peer of itself.
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        check_device(device)?;
        check_device(peer)?;
        can.set(0);
        Ok(())
    }

    fn cuDeviceGetP2PAttribute(_value: Out<i32>, _attribute: i32, device: i32, peer: i32) {
        check_device(device)?;
        check_device(peer)?;
        Err(CuError::INVALID_DEVICE)
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, _kind: i32, device: i32) {
        check_device(device)?;
        supported.set(0);
        Ok(())
    }

    fn cuDeviceGetHostAtomicCapabilities(answers: Out<u32>, _operations: Array<i32>, count: u32, device: i32) {
        check_device(device)?;
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

fn pci_bus_id() -> String {
    let [domain, bus, device] = attributes::PCI;
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}
