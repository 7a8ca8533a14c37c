//! Exports: streams (CUDA Driver API, "Stream Management").
//!
//! A callback runs in the calling thread, after all earlier work of its stream: the call waits for
//! that work. The order is CUDA's; the only difference is that the caller's thread is not free in
//! the meantime.

use crate::abi::{Argument, Memory, OptionalOut, Out};
use crate::across;
use crate::entry::{exports, exports_by_default_stream};
use crate::error::{CuError, CuResult};
use crate::graph::action::{Action, HostCall, HostFunction};
use crate::graph::capture::Target;
use crate::runtime::{self, Runtime};
use crate::stream::{DefaultStream, is_default};
use crate::stream_attributes::Attributes;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// `CUstreamCallback`: stream, status, the program's data.
type StreamCallback = Option<unsafe extern "C" fn(u64, i32, *mut c_void)>;

impl Argument for Option<HostFunction> {}
impl Argument for StreamCallback {}

exports! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) {
        let runtime = runtime::current()?;
        stream.set(runtime.streams.create(runtime, flags, 0)?);
        Ok(())
    }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) {
        let runtime = runtime::current()?;
        stream.set(runtime.streams.create(runtime, flags, priority)?);
        Ok(())
    }

    /// Programs can make no green contexts, so no stream belongs to one.
    fn cuStreamGetGreenCtx(stream: u64, context: Out<u64>) {
        runtime::of_stream(stream)?.streams.created(stream)?;
        context.set(0);
        Ok(())
    }

    fn cuStreamDestroy(stream: u64) { destroy(stream) }

    fn cuStreamDestroy_v2(stream: u64) { destroy(stream) }

    /// Capture modes matter while capturing only; programs set and restore them around allocations.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<i32>) {
        thread_local!(static MODE: Cell<i32> = const { Cell::new(0) });
        let wanted = mode.exchange(MODE.get());
        if !(0..=2).contains(&wanted) {
            return Err(CuError::INVALID_VALUE);
        }
        MODE.set(wanted);
        Ok(())
    }
}

exports_by_default_stream! {
    fn cuStreamSynchronize | cuStreamSynchronize_ptsz(default; stream: u64) {
        synchronize(runtime::of_stream(stream)?, stream, default)
    }

    fn cuStreamQuery | cuStreamQuery_ptsz(default; stream: u64) {
        let runtime = runtime::of_stream(stream)?;
        let stream = runtime.outside_capture(stream, default)?;
        if runtime.session.query_stream(stream)? { Ok(()) } else { Err(CuError::NOT_READY) }
    }

    fn cuStreamGetFlags | cuStreamGetFlags_ptsz(_default; stream: u64, flags: Out<u32>) {
        flags.set(runtime::of_stream(stream)?.streams.created(stream)?.map_or(0,
            |stream| stream.flags));
        Ok(())
    }

    fn cuStreamGetPriority | cuStreamGetPriority_ptsz(_default; stream: u64, priority: Out<i32>) {
        let runtime = runtime::of_stream(stream)?;
        let stream = runtime.streams.created(stream)?;
        priority.set(stream.map_or(0, |stream| runtime.streams.attributes.priority(stream.client,
            stream.priority)));
        Ok(())
    }

    fn cuStreamGetId | cuStreamGetId_ptsz(default; stream: u64, id: Out<u64>) {
        let runtime = runtime::of_stream(stream)?;
        id.set(runtime.streams.id(&runtime.session, stream, default)?);
        Ok(())
    }

    fn cuStreamGetCtx | cuStreamGetCtx_ptsz(_default; stream: u64, context: Out<u64>) {
        context.set(context_of(stream)?);
        Ok(())
    }

    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(
        _default; stream: u64, context: OptionalOut<u64>, green: OptionalOut<u64>,
    ) {
        context.set(context_of(stream)?);
        green.set(0);
        Ok(())
    }

    fn cuStreamGetDevice | cuStreamGetDevice_ptsz(_default; stream: u64, device: Out<i32>) {
        let runtime = runtime::of_stream(stream)?;
        runtime.streams.created(stream)?;
        device.set(runtime.index.ordinal());
        Ok(())
    }

    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(default; stream: u64, event: u64, flags: u32) {
        wait_event(stream, event, default, flags)
    }

    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(
        default; stream: u64, function: Option<HostFunction>, data: Memory,
    ) {
        call_host(stream, default, function, data)
    }

    fn cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz(
        default; stream: u64, function: Option<HostFunction>, data: Memory, _mode: u32,
    ) {
        call_host(stream, default, function, data)
    }

    fn cuStreamAddCallback | cuStreamAddCallback_ptsz(
        default; stream: u64, callback: StreamCallback, data: Memory, _flags: u32,
    ) {
        let runtime = runtime::of_stream(stream)?;
        let callback = callback.ok_or(CuError::INVALID_VALUE)?;
        let client = runtime.outside_capture(stream, default)?;
        let data = data.address();
        runtime.host_calls.add(&runtime.session, client, move |outcome| {
            let status = outcome.err().map_or(0, |error| CuError::from(error).0);
            // SAFETY: the program gave the function for this call.
            unsafe { callback(stream, status, data as *mut c_void) };
        })
    }

    /// Attributes are hints for caches, priorities and power: they are kept to be asked for.
    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz(
        default; stream: u64, attribute: i32, value: Memory,
    ) {
        let runtime = runtime::of_stream(stream)?;
        let client = runtime.streams.resolve(&runtime.session, stream, default)?;
        runtime.streams.attributes.set(client, attribute,
            value.bytes(Attributes::size(attribute)?)?)
    }

    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz(
        default; stream: u64, attribute: i32, value: Memory,
    ) {
        let runtime = runtime::of_stream(stream)?;
        let client = runtime.streams.resolve(&runtime.session, stream, default)?;
        let priority = runtime.streams.created(stream)?.map_or(0, |stream| stream.priority);
        let into = value.bytes_mut(Attributes::size(attribute)?)?;
        runtime.streams.attributes.get(client, attribute, priority, into)
    }

    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz(default; to: u64, from: u64) {
        let runtime = runtime::of_stream(to)?;
        let resolve = |stream| runtime.streams.resolve(&runtime.session, stream, default);
        runtime.streams.attributes.copy(resolve(to)?, resolve(from)?);
        Ok(())
    }
}

fn destroy(stream: u64) -> CuResult {
    let runtime = runtime::of(stream)?;
    let stream = runtime.streams.destroy(&runtime.session, stream)?;
    runtime.captures.stream_destroyed(&runtime.graphs, stream);
    Ok(())
}

fn wait_event(stream: u64, handle: u64, default: DefaultStream, flags: u32) -> CuResult {
    /// `CU_EVENT_WAIT_EXTERNAL`: a node of the graph that is captured waits.
    const EXTERNAL: u32 = 1;
    let runtime = runtime::of_stream(stream)?;
    let of = runtime::of(handle)?;
    let event = of.events.get(handle)?;
    let client = runtime.streams.resolve(&runtime.session, stream, default)?;
    if of.index != runtime.index {
        event.outside_capture()?;
        let client = runtime.captures.outside(client)?;
        return across::wait_event(runtime, client, of, &event);
    }
    if event.captured.load(Ordering::Relaxed) {
        return runtime.captures.join(client, runtime.streams.is_blocking(stream)?, &event);
    }
    match runtime.captures.target(client)? {
        Target::Stream(stream) => Ok(runtime.session.wait_event(stream, event.client)?),
        Target::Capture(stream) if flags & EXTERNAL != 0 => {
            runtime.captures.add(&runtime.graphs, stream, Action::EventWait(handle, event))
        }
        Target::Capture(stream) if event.recorded.load(Ordering::Relaxed) => {
            Err(runtime.captures.isolate(stream))
        }
        Target::Capture(_) => Ok(()),
    }
}

/// Waits for a stream.
pub fn synchronize(runtime: &Runtime, stream: u64, default: DefaultStream) -> CuResult {
    let stream = runtime.outside_capture(stream, default)?;
    Ok(runtime.session.synchronize(Some(stream))?)
}

fn context_of(stream: u64) -> CuResult<u64> {
    if is_default(stream) {
        return runtime::current()?.contexts.current();
    }
    let created = runtime::of(stream)?.streams.created(stream)?;
    created.map(|stream| stream.context).ok_or(CuError::INVALID_HANDLE)
}

fn call_host(
    stream: u64,
    default: DefaultStream,
    function: Option<HostFunction>,
    data: Memory,
) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    let call = HostCall { function: function.ok_or(CuError::INVALID_VALUE)?, data: data.address() };
    match runtime.target(stream, default)? {
        Target::Stream(stream) => Action::Host(call).perform(runtime, stream),
        Target::Capture(stream) => {
            runtime.captures.add(&runtime.graphs, stream, Action::Host(call))
        }
    }
}
