//! The exports of `libcuda.so.1` that Partita's device uses. The CUDA Driver API describes each.

use crate::memory;
use crate::modules::{self, MARK};
use crate::state::{
    CHANGED, EventState, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_READY, SUCCESS, State,
    Waits, begin, lock, wait,
};
use crate::stream::{self, Op};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Writes through a pointer that a caller gave for an answer.
pub fn put<T>(into: *mut T, value: T) {
    if !into.is_null() {
        // SAFETY: exports are given pointers to places for their answers.
        unsafe { into.write(value) };
    }
}

/// Reads through a pointer that a caller gave.
pub fn get<T: Copy>(from: *const T) -> T {
    // SAFETY: exports are given pointers to their arguments.
    unsafe { from.read_unaligned() }
}

pub fn text(from: *const c_char) -> String {
    // SAFETY: exports are given strings.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

pub fn bytes<'a>(from: *const c_void, count: usize) -> &'a [u8] {
    // SAFETY: exports are given as many bytes as they say.
    unsafe { std::slice::from_raw_parts(from.cast(), count) }
}

pub fn put_text(into: *mut c_char, room: usize, value: &str) {
    if room == 0 {
        return;
    }
    let count = value.len().min(room - 1);
    // SAFETY: exports are given room for so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr().cast(), into, count) };
    // SAFETY: as above; the last byte is free.
    unsafe { into.wrapping_add(count).write(0) };
}

pub fn answer(result: Result<u32, u32>) -> u32 {
    result.unwrap_or_else(|code| code)
}

/// Exports: recorded, made to fail and to wait by [`begin`], then carried out with the state.
macro_rules! exports {
    ($($name:ident($($arg:ident: $type:ty),*) $waits:ident |$state:ident| $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the CUDA Driver API.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
            let arguments: Vec<String> = vec![$(format!("{:?}", $arg)),*];
            answer(begin(stringify!($name), &arguments.join(", "),
                Waits::$waits).and_then(|$state| $body))
        }
    )*};
}
pub(crate) use exports;

fn attribute(state: &State, number: c_int) -> c_int {
    let value = match number {
        1 => 1024,                               // MAX_THREADS_PER_BLOCK
        8 => 48 << 10,                           // MAX_SHARED_MEMORY_PER_BLOCK
        13 => state.setting("clock", 1_980_000), // CLOCK_RATE
        16 => state.setting("sms", 132),         // MULTIPROCESSOR_COUNT
        17 => state.setting("display", 0),       // KERNEL_EXEC_TIMEOUT
        20 => state.setting("compute-mode", 0),  // COMPUTE_MODE
        36 => 3_201_000,                         // MEMORY_CLOCK_RATE
        37 => 6144,                              // GLOBAL_MEMORY_BUS_WIDTH
        38 => 60 << 20,                          // L2_CACHE_SIZE
        39 => 2048,                              // MAX_THREADS_PER_MULTIPROCESSOR
        41 | 102 | 122 => 1, // UNIFIED_ADDRESSING, virtual memory, CAN_USE_64_BIT_STREAM_MEM_OPS
        75 => state.setting("major", 9), // COMPUTE_CAPABILITY_MAJOR
        76 => state.setting("minor", 0), // COMPUTE_CAPABILITY_MINOR
        81 => 228 << 10,     // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        82 => 65_536,        // MAX_REGISTERS_PER_MULTIPROCESSOR
        88 => state.setting("pageable", 1), // PAGEABLE_MEMORY_ACCESS
        121 => state.setting("deferred", 1), // DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED
        97 => 227 << 10,     // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        106 => 32,           // MAX_BLOCKS_PER_MULTIPROCESSOR
        111 => 1 << 10,      // RESERVED_SHARED_MEMORY_PER_BLOCK
        _ => 0,
    };
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

const GRANULARITY: usize = 2 << 20;

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: c_int = 1;

exports! {
    cuInit(_flags: c_uint) Beside |state| { drop(state); Ok(SUCCESS) }
    cuDriverGetVersion(version: *mut c_int) Beside |state| {
        put(version, c_int::try_from(state.setting("driver", 12_040)).unwrap_or(0));
        Ok(SUCCESS)
    }
    cuDeviceGetCount(count: *mut c_int) Beside |state| {
        // As with NVIDIA's driver, the environment may show some of them only; here it makes them.
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").map_or(1,
            |list| list.split(',').count() as u64);
        put(count, c_int::try_from(state.setting("gpus", visible)).unwrap_or(0));
        Ok(SUCCESS)
    }
    cuDeviceGet(device: *mut c_int, ordinal: c_int) Beside |state| {
        drop(state);
        put(device, ordinal);
        Ok(SUCCESS)
    }
    cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) Beside |state| {
        let text = state.settings.get("name").map_or("Fake GPU", String::as_str);
        put_text(name, usize::try_from(room).unwrap_or(0), text);
        Ok(SUCCESS)
    }
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) Beside |state| {
        drop(state);
        let mut value = *b"fake-gpu-uuid-00";
        value[15] += u8::try_from(device).unwrap_or(0);
        put(uuid, value);
        Ok(SUCCESS)
    }
    cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) Beside |state| {
        put(bytes, usize::try_from(memory::capacity(&state)).unwrap_or(0));
        Ok(SUCCESS)
    }
    cuDeviceGetAttribute(value: *mut c_int, number: c_int, _device: c_int) Beside |state| {
        put(value, attribute(&state, number));
        Ok(SUCCESS)
    }
    cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, _device: c_int) Beside |state| {
        drop(state);
        put_text(id, usize::try_from(room).unwrap_or(0), "0000:01:00.0");
        Ok(SUCCESS)
    }
    cuDevicePrimaryCtxSetFlags_v2(_device: c_int, _flags: c_uint) Beside |state| { drop(state);
        Ok(SUCCESS) }
    cuDevicePrimaryCtxRetain(context: *mut u64, _device: c_int) Beside |state| {
        drop(state);
        put(context, 0xc0de);
        Ok(SUCCESS)
    }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) Beside |state| { drop(state); Ok(SUCCESS) }
    cuCtxSetCurrent(_context: u64) Beside |state| { drop(state); Ok(SUCCESS) }
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) Beside |state| {
        drop(state);
        put(least, 0);
        put(greatest, -5);
        Ok(SUCCESS)
    }
    cuCtxSynchronize() ForAll |state| { drop(state); Ok(SUCCESS) }
    cuModuleGetLoadingMode(mode: *mut c_int) Beside |state| {
        let lazy = state.settings.get("loading").is_some_and(|mode| mode == "lazy");
        put(mode, if lazy { 2 } else { 1 });
        Ok(SUCCESS)
    }

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) Beside |state| {
        let all = memory::capacity(&state);
        put(free, usize::try_from(all - state.used).unwrap_or(0));
        put(total, usize::try_from(all).unwrap_or(0));
        Ok(SUCCESS)
    }
    cuMemAddressReserve(start: *mut u64, size: usize, alignment: usize, hint: u64,
        flags: u64) Beside |state| {
        let mut state = state;
        let fits = size > 0 && size.is_multiple_of(GRANULARITY) && flags == 0;
        if !fits || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        let granularity = GRANULARITY as u64;
        put(
            start,
            memory::reserve(&mut state, size as u64, alignment as u64, hint, granularity)?,
        );
        Ok(SUCCESS)
    }
    cuMemAddressFree(start: u64, size: usize) Beside |state| {
        let mut state = state;
        Ok(memory::unreserve(&mut state, start, size as u64))
    }
    cuMemGetAllocationGranularity(granularity: *mut usize, _prop: *const c_void,
        _option: c_uint) Beside |state| {
        drop(state);
        put(granularity, GRANULARITY);
        Ok(SUCCESS)
    }
    cuMemCreate(handle: *mut u64, size: usize, prop: *const [c_int; 8], flags: u64) Beside |state| {
        let mut state = state;
        // CUmemAllocationProp: kind, handle types, the location's kind and number, a pointer, and
        // flags of which the second pair of bytes is what it is for.
        let [kind, handles, place, _, _, _, more, _] = get(prop);
        let usage = more >> 16;
        let known = kind == 1 && handles == 0 && matches!(place, ON_DEVICE | 2..=4)
            && matches!(usage, 0 | 1);
        if size == 0 || !size.is_multiple_of(GRANULARITY) || flags != 0 || !known {
            return Err(INVALID_VALUE);
        }
        put(handle, memory::create(&mut state, size as u64, usage == 1)?);
        Ok(SUCCESS)
    }
    cuMemRelease(handle: u64) Beside |state| {
        let mut state = state;
        Ok(memory::release(&mut state, handle))
    }
    cuMemMap(start: u64, size: usize, offset: usize, handle: u64, _flags: u64) Beside |state| {
        let mut state = state;
        let whole = |number: u64| number.is_multiple_of(GRANULARITY as u64);
        if offset != 0 || size == 0 || !whole(start) || !whole(size as u64) {
            return Err(INVALID_VALUE);
        }
        Ok(memory::map_physical(&mut state, start, size as u64, handle))
    }
    cuMemSetAccess(start: u64, size: usize, descriptions: *const [c_int; 3],
        count: usize) Beside |state| {
        let mut state = state;
        // CUmemAccessDesc: the location's kind and number, and flags.
        let flags = (0..count).map(|at| get(descriptions.wrapping_add(at))).find(|[kind,
            ..]| *kind == ON_DEVICE);
        let Some([_, _, flags]) = flags else { return Err(INVALID_VALUE) };
        if !size.is_multiple_of(GRANULARITY) || size == 0 {
            return Err(INVALID_VALUE);
        }
        Ok(memory::give_access(&mut state, start, size as u64, flags.cast_unsigned()))
    }
    cuMemUnmap(start: u64, size: usize) Beside |state| {
        let mut state = state;
        Ok(memory::unmap_physical(&mut state, start, size as u64))
    }
    cuMemRetainAllocationHandle(handle: *mut u64, address: u64) Beside |state| {
        let mut state = state;
        put(handle, memory::retain(&mut state, address)?);
        Ok(SUCCESS)
    }
    cuMemAlloc_v2(start: *mut u64, size: usize) ForAll |state| {
        let mut state = state;
        put(start, memory::pin(&mut state, size as u64)?);
        Ok(SUCCESS)
    }
    cuMemFree_v2(start: u64) ForAll |state| {
        let mut state = state;
        Ok(memory::unpin(&mut state, start))
    }
    cuMemHostAlloc(start: *mut u64, size: usize, _flags: c_uint) ForAll |state| {
        let mut state = state;
        put(start, memory::pin(&mut state, size as u64)?);
        Ok(SUCCESS)
    }
    cuMemFreeHost(start: u64) ForAll |state| {
        let mut state = state;
        Ok(memory::unpin(&mut state, start))
    }
    cuMemHostRegister_v2(start: u64, size: usize, _flags: c_uint) ForAll |state| {
        let mut state = state;
        state.pinned.insert(start, size as u64);
        Ok(SUCCESS)
    }
    cuMemHostUnregister(start: u64) ForAll |state| {
        let mut state = state;
        state.pinned.remove(&start);
        Ok(SUCCESS)
    }
    cuMemHostGetDevicePointer_v2(device: *mut u64, host: u64, _flags: c_uint) Beside |state| {
        drop(state);
        put(device, host);
        Ok(SUCCESS)
    }

    cuStreamCreateWithPriority(stream: *mut u64, flags: c_uint, _priority: c_int) Beside |state| {
        let mut state = state;
        if flags != 1 {
            state.log.push("a stream that meets the legacy stream".into());
        }
        put(stream, stream::create(&mut state));
        Ok(SUCCESS)
    }
    cuStreamDestroy_v2(stream: u64) Beside |state| {
        let mut state = state;
        let Some(queue) = state.streams.get_mut(&stream) else { return Err(INVALID_HANDLE) };
        queue.destroyed = true;
        drop(state);
        CHANGED.notify_all();
        Ok(SUCCESS)
    }
    cuStreamQuery(stream: u64) Beside |state| { Ok(stream::query(&state, stream)) }
    cuStreamSynchronize(stream: u64) Beside |state| {
        let (state, done) = wait(state, |state| stream::query(state,
            stream) != NOT_READY || state.sticky != 0);
        Ok(if !done { crate::state::TIMEOUT } else { state.sticky })
    }
    cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) Beside |state| {
        let number = state.events.get(&event).ok_or(INVALID_HANDLE)?.recorded;
        Ok(stream::submit(state, stream, Op::Wait { event, number }))
    }
    cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: c_uint) Beside |state| {
        if flags != 0 || !memory::is_live(&state, address, 8) {
            return Err(INVALID_VALUE);
        }
        Ok(stream::submit(state, stream, Op::WaitValue { address, value }))
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, size: usize, stream: u64) Beside |state| {
        copy(state, to, from, size, stream, to, from)
    }
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, size: usize, stream: u64) Beside |state| {
        copy(state, to, from, size, stream, from, to)
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: u64) Beside |state| {
        // Source and target of a copy must not overlap.
        if to.abs_diff(from) < size as u64 {
            return Err(INVALID_VALUE);
        }
        copy(state, to, from, size, stream, to, from)
    }
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) Beside |state| {
        fill(state, to, value.into(), 1, count, stream)
    }
    cuMemsetD16Async(to: u64, value: u16, count: usize, stream: u64) Beside |state| {
        fill(state, to, value.into(), 2, count, stream)
    }
    cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) Beside |state| {
        fill(state, to, value, 4, count, stream)
    }

    cuEventCreate(event: *mut u64, _flags: c_uint) Beside |state| {
        let mut state = state;
        let handle = state.handle();
        state.events.insert(handle, EventState::default());
        put(event, handle);
        Ok(SUCCESS)
    }
    cuEventDestroy_v2(event: u64) Beside |state| {
        let mut state = state;
        state.events.remove(&event).map(|_| SUCCESS).ok_or(INVALID_HANDLE)
    }
    cuEventRecord(event: u64, stream: u64) Beside |state| {
        let mut state = state;
        let found = state.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        found.recorded += 1;
        let number = found.recorded;
        Ok(stream::submit(state, stream, Op::Record { event, number }))
    }
    cuEventQuery(event: u64) Beside |state| {
        let found = state.events.get(&event).ok_or(INVALID_HANDLE)?;
        Ok(if found.reached == found.recorded { SUCCESS } else { NOT_READY })
    }
    cuEventSynchronize(event: u64) Beside |state| {
        let reached = |state: &State| {
            state.events.get(&event).is_none_or(|event| event.reached == event.recorded)
        };
        let (state, done) = wait(state, |state| reached(state) || state.sticky != 0);
        Ok(if !done { crate::state::TIMEOUT } else { state.sticky })
    }
    cuEventElapsedTime(ms: *mut f32, start: u64, end: u64) Beside |state| {
        let time = |event: u64| {
            state.events.get(&event).map(|event| event.time).ok_or(INVALID_HANDLE)
        };
        let nanos = time(end)?.wrapping_sub(time(start)?).cast_signed();
        #[expect(clippy::cast_precision_loss, reason = "CUDA tells it as a float")]
        put(ms, nanos as f32 / 1e6);
        Ok(SUCCESS)
    }

    cuLinkCreate_v2(count: c_uint, options: *const c_uint, values: *const usize,
        link: *mut u64) Beside |state| {
        let mut state = state;
        let mut errors = 0;
        for at in 0..count as usize {
            // CU_JIT_ERROR_LOG_BUFFER
            if get(options.wrapping_add(at)) == 5 {
                errors = get(values.wrapping_add(at)) as u64;
            }
        }
        let handle = state.handle();
        state.links.insert(handle, (Vec::new(), errors));
        put(link, handle);
        Ok(SUCCESS)
    }
    cuLinkAddData_v2(link: u64, kind: c_uint, data: *const c_void, size: usize,
        _name: *const c_char,
        _count: c_uint, _options: *const c_uint, _values: *const c_void) Beside |state| {
        let mut state = state;
        let newest = modules::newest(state.setting("driver", 12_040));
        let (image, errors) = state.links.get_mut(&link).ok_or(INVALID_HANDLE)?;
        let text = String::from_utf8_lossy(bytes(data, size)).trim_end_matches('\0').to_owned();
        let complain = |words: &str| put_text(*errors as *mut c_char, 256, words);
        if kind != 1 {
            return Err(INVALID_VALUE);
        }
        if modules::version(&text) > newest {
            complain("ptxas fatal: unsupported .version");
            return Err(222);
        }
        if text.contains("refused_by_ptxas") {
            complain("ptxas application ptx input, line 7; error: no such instruction");
            return Err(218);
        }
        *image = [MARK, text.as_bytes()].concat();
        state.linked_texts.push_back(text);
        Ok(SUCCESS)
    }
    cuLinkComplete(link: u64, image: *mut *const u8, size: *mut usize) Beside |state| {
        let (found, _) = state.links.get(&link).ok_or(INVALID_HANDLE)?;
        put(image, found.as_ptr());
        put(size, found.len());
        Ok(SUCCESS)
    }
    cuLinkDestroy(link: u64) Beside |state| {
        let mut state = state;
        state.links.remove(&link).map(|_| SUCCESS).ok_or(INVALID_HANDLE)
    }
    cuModuleLoadDataEx(module: *mut u64, image: *const c_char, _count: c_uint,
        _options: *const c_uint,
        _values: *const c_void) ForAll |state| {
        let mut state = state;
        let start = text(image);
        let loaded = if let Some(source) = start.strip_prefix(&*String::from_utf8_lossy(MARK)) {
            modules::load(&mut state, source)?
        } else if start.starts_with("\x7fELF") {
            // SAFETY: whoever loads an image has checked that it is whole.
            unsafe { modules::load_elf(&mut state, image.cast()) }?
        } else {
            return Err(200);
        };
        let handle = state.handle();
        state.modules.insert(handle, loaded);
        put(module, handle);
        Ok(SUCCESS)
    }
    cuModuleUnload(module: u64) ForAll |state| {
        let mut state = state;
        let loaded = state.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        for (address, _) in loaded.variables.into_values() {
            memory::unpin(&mut state, address);
        }
        Ok(SUCCESS)
    }
    cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) Beside |state| {
        let mut state = state;
        let name = text(name);
        let known = state.modules.get(&module).ok_or(INVALID_HANDLE)?.kernels.contains(&name);
        if !known {
            return Err(NOT_FOUND);
        }
        let handle = state.handle();
        state.functions.insert(handle, (module, name));
        put(function, handle);
        Ok(SUCCESS)
    }
    cuModuleGetGlobal_v2(address: *mut u64, size: *mut usize, module: u64,
        name: *const c_char) Beside |state| {
        let module = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let (start, length) = module.variables.get(&text(name)).ok_or(NOT_FOUND)?;
        put(address, *start);
        put(size, usize::try_from(*length).unwrap_or(0));
        Ok(SUCCESS)
    }
    cuFuncGetAttribute(value: *mut c_int, number: c_int, _function: u64) Beside |state| {
        drop(state);
        put(value, match number { 0 => 1024, 1 => 16, 4 => 32, _ => 0 });
        Ok(SUCCESS)
    }
    cuFuncSetAttribute(_function: u64, _number: c_int, _value: c_int) Beside |state| { drop(state);
        Ok(SUCCESS) }

    cuLibraryLoadData(library: *mut u64, image: *const c_char, _options: *const c_uint,
        _values: *const c_void,
        _count: c_uint, _library_options: *const c_uint, _library_values: *const c_void,
            _library_count: c_uint) ForAll |state| {
        let mut state = state;
        let start = text(image);
        let loaded = if let Some(source) = start.strip_prefix(&*String::from_utf8_lossy(MARK)) {
            modules::load(&mut state, source)?
        } else if start.starts_with("\x7fELF") {
            // SAFETY: whoever loads an image has checked that it is whole.
            unsafe { modules::load_elf(&mut state, image.cast()) }?
        } else {
            return Err(200);
        };
        let handle = state.handle();
        state.modules.insert(handle, loaded);
        put(library, handle);
        Ok(SUCCESS)
    }
    cuLibraryUnload(library: u64) ForAll |state| {
        let mut state = state;
        let loaded = state.modules.remove(&library).ok_or(INVALID_HANDLE)?;
        for (address, _) in loaded.variables.into_values() {
            memory::unpin(&mut state, address);
        }
        Ok(SUCCESS)
    }
    cuLibraryGetKernel(kernel: *mut u64, library: u64, name: *const c_char) Beside |state| {
        let mut state = state;
        let name = text(name);
        if !state.modules.get(&library).ok_or(INVALID_HANDLE)?.kernels.contains(&name) {
            return Err(NOT_FOUND);
        }
        let handle = state.handle();
        state.functions.insert(handle, (library, name));
        put(kernel, handle);
        Ok(SUCCESS)
    }
    cuLibraryGetGlobal(address: *mut u64, size: *mut usize, library: u64,
        name: *const c_char) Beside |state| {
        let library = state.modules.get(&library).ok_or(INVALID_HANDLE)?;
        let (start, length) = library.variables.get(&text(name)).ok_or(NOT_FOUND)?;
        put(address, *start);
        put(size, usize::try_from(*length).unwrap_or(0));
        Ok(SUCCESS)
    }
    cuKernelGetAttribute(value: *mut c_int, number: c_int, _kernel: u64,
        _device: c_int) Beside |state| {
        drop(state);
        put(value, match number { 0 => 1024, 1 => 16, 4 => 32, _ => 0 });
        Ok(SUCCESS)
    }
    cuKernelSetAttribute(_number: c_int, _value: c_int, _kernel: u64,
        _device: c_int) Beside |state| {
        drop(state);
        Ok(SUCCESS)
    }

    cuDeviceGetDevResource(_device: c_int, resource: *mut c_void, _kind: c_uint) Beside |state| {
        let mut state = state;
        let sms = u32::try_from(state.setting("sms", 132)).unwrap_or(0);
        put_resource(&mut state, resource, (0..sms).collect());
        Ok(SUCCESS)
    }
    cuDevSmResourceSplitByCount(groups: *mut c_void, count: *mut c_uint, input: *const c_void,
        rest: *mut c_void, _flags: c_uint, least: c_uint) Beside |state| {
        let mut state = state;
        let all = sms_of(&state, input)?;
        // Compute capability 9: at least 8, in steps of 8. A group has pairs of SMs from all over
        // the GPU.
        let each = least.max(8).next_multiple_of(8) as usize;
        let there = all.len() / each;
        let wanted = if groups.is_null() { usize::MAX } else { get(count) as usize };
        for group in 0..there.min(wanted) {
            let sms = (0..each).map(|at| all[2 * (group + there * (at / 2)) + at % 2]).collect();
            if !groups.is_null() {
                put_resource(&mut state,
                    groups.cast::<u8>().wrapping_add(group * RESOURCE_BYTES).cast(), sms);
            }
        }
        if !rest.is_null() {
            put_resource(&mut state, rest, all[there * each..].to_vec());
        }
        put(count, c_uint::try_from(there.min(wanted)).unwrap_or(0));
        Ok(SUCCESS)
    }
    cuDevResourceGenerateDesc(description: *mut u64, resources: *const c_void,
        count: c_uint) Beside |state| {
        let mut state = state;
        let mut sms = Vec::new();
        for at in 0..count as usize {
            sms.extend(sms_of(&state,
                resources.cast::<u8>().wrapping_add(at * RESOURCE_BYTES).cast())?);
        }
        sms.sort_unstable();
        let handle = state.handle();
        state.descriptions.insert(handle, sms);
        put(description, handle);
        Ok(SUCCESS)
    }
    cuGreenCtxCreate(context: *mut u64, description: u64, _device: c_int,
        _flags: c_uint) ForAll |state| {
        let mut state = state;
        let sms = state.descriptions.get(&description).cloned().ok_or(INVALID_HANDLE)?;
        let handle = state.handle();
        state.contexts.insert(handle, sms);
        put(context, handle);
        Ok(SUCCESS)
    }
    cuGreenCtxDestroy(context: u64) ForAll |state| {
        let mut state = state;
        state.contexts.remove(&context).map(|_| SUCCESS).ok_or(INVALID_HANDLE)
    }
    cuGreenCtxStreamCreate(stream: *mut u64, context: u64, _flags: c_uint,
        _priority: c_int) Beside |state| {
        let mut state = state;
        let sms = state.contexts.get(&context).cloned().ok_or(INVALID_HANDLE)?;
        let handle = stream::create(&mut state);
        state.stream_sms.insert(handle, sms);
        put(stream, handle);
        Ok(SUCCESS)
    }
}

/// Size of a `CUdevResource` before CUDA 13.
const RESOURCE_BYTES: usize = 144;

/// Kind SM, how many, and a number by which they are found again.
fn put_resource(state: &mut State, into: *mut c_void, sms: Vec<u32>) {
    let handle = state.handle();
    put(into.cast::<c_uint>(), 1);
    put(into.cast::<u8>().wrapping_add(8).cast::<u64>(), handle);
    put(
        into.cast::<u8>().wrapping_add(96).cast::<c_uint>(),
        c_uint::try_from(sms.len()).unwrap_or(0),
    );
    state.resources.insert(handle, sms);
}

fn sms_of(state: &State, resource: *const c_void) -> Result<Vec<u32>, u32> {
    let handle: u64 = get(resource.cast::<u8>().wrapping_add(8).cast());
    state.resources.get(&handle).cloned().ok_or(INVALID_VALUE)
}

fn copy(
    state: std::sync::MutexGuard<'static, State>,
    to: u64,
    from: u64,
    size: usize,
    stream: u64,
    device: u64,
    other: u64,
) -> Result<u32, u32> {
    // Pageable memory would make the call wait: what is copied must be device memory or
    // page-locked.
    if !memory::is_live(&state, device, size as u64) || !memory::is_live(&state, other, size as u64)
    {
        return Err(INVALID_VALUE);
    }
    Ok(stream::submit(state, stream, Op::Copy { to, from, bytes: size as u64 }))
}

fn fill(
    state: std::sync::MutexGuard<'static, State>,
    to: u64,
    value: u32,
    width: u64,
    count: usize,
    stream: u64,
) -> Result<u32, u32> {
    let is_aligned = to.is_multiple_of(width) && count > 0;
    if !is_aligned || !memory::is_live(&state, to, width * count as u64) {
        return Err(INVALID_VALUE);
    }
    Ok(stream::submit(state, stream, Op::Set { to, value, width, count: count as u64 }))
}

/// `cuLaunchHostFunc` of the CUDA Driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: u64,
    function: extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> u32 {
    let begun = begin("cuLaunchHostFunc", &format!("{stream}"), Waits::Beside);
    answer(begun.map(|state| {
        stream::submit(state, stream, Op::HostFunction { function, data: data as usize })
    }))
}

/// The configuration of a launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: u64,
    /// `CUlaunchAttribute`: which, and what.
    attributes: *const [c_uint; 18],
    count: c_uint,
}

/// The parameters that a launch was given as one buffer.
fn packed(params: *const c_void, extra: *const *const c_void) -> Vec<u8> {
    if !params.is_null() || extra.is_null() || get(extra).is_null() {
        return Vec::new();
    }
    // CU_LAUNCH_PARAM_BUFFER_POINTER, …_SIZE, …_END
    let start: *const c_void = get(extra.wrapping_add(1));
    let size: usize = get(get(extra.wrapping_add(3)).cast());
    bytes(start, size).to_vec()
}

/// Launches. The line in the log has the kernel's name and the parameters' bytes.
fn launch(call: &str, function: u64, config: LaunchConfig, params: Vec<u8>, more: &str) -> u32 {
    let name = lock().functions.get(&function).map_or_else(String::new, |(_, name)| name.clone());
    let shown: String = params.iter().map(|byte| format!("{byte:02x}")).collect();
    let [grid_x, grid_y, grid_z] = config.grid;
    let [block_x, block_y, block_z] = config.block;
    let (shared, stream) = (config.shared, config.stream);
    let arguments = format!(
        "{name}, grid {grid_x} {grid_y} {grid_z}, block {block_x} {block_y} {block_z}, shared \
         {shared}{more}, \
         params {shown}"
    );
    answer(begin(call, &arguments, Waits::Beside).and_then(|state| {
        if name.is_empty() {
            return Err(INVALID_HANDLE);
        }
        // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
        let sizes = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        let threads = u64::from(block_x) * u64::from(block_y) * u64::from(block_z);
        let fits = grid_x <= 0x7fff_ffff && grid_y <= 65_535 && grid_z <= 65_535 && block_z <= 64;
        if sizes.contains(&0) || threads > 1024 || !fits {
            return Err(INVALID_VALUE);
        }
        let sms = state.stream_sms.get(&stream).cloned().unwrap_or_default();
        let ctas = grid_x.saturating_mul(grid_y).saturating_mul(grid_z);
        Ok(stream::submit(state, stream, Op::Kernel { name, params, ctas, sms }))
    }))
}

/// `cuLaunchKernel` of the CUDA Driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: u64,
    params: *const c_void,
    extra: *const *const c_void,
) -> u32 {
    let config = LaunchConfig {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared,
        stream,
        attributes: std::ptr::null(),
        count: 0,
    };
    launch("cuLaunchKernel", function, config, packed(params, extra), "")
}

/// `cuLaunchKernelEx` of the CUDA Driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: u64,
    params: *const c_void,
    extra: *const *const c_void,
) -> u32 {
    let config = get(config);
    let attributes = (0..config.count as usize).map(|at| get(config.attributes.wrapping_add(at)));
    let mut more = String::new();
    for words in attributes {
        // CU_LAUNCH_ATTRIBUTE_COOPERATIVE, …_CLUSTER_DIMENSION: the value comes behind four bytes
        // of nothing.
        match words[0] {
            2 if words[2] == 1 => more.push_str(", cooperative"),
            4 => more.push_str(&format!(", clusters {} {} {}", words[2], words[3], words[4])),
            _ => {}
        }
    }
    launch("cuLaunchKernelEx", function, config, packed(params, extra), &more)
}

fn error_text(code: u32) -> &'static CStr {
    match code {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        218 => c"CUDA_ERROR_INVALID_PTX",
        222 => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        _ => c"CUDA_ERROR_OF_THE_FAKE",
    }
}

/// `cuGetErrorName` of the CUDA Driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    put(name, error_text(code).as_ptr());
    SUCCESS
}
