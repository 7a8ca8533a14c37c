//! Exports: events (CUDA Driver API, "Event Management").

use crate::abi::Out;
use crate::entry::{exports, exports_by_default_stream};
use crate::error::{CuError, CuResult};
use crate::graph::action::Action;
use crate::graph::capture::Target;
use crate::runtime;
use crate::stream::DefaultStream;

exports! {
    fn cuEventCreate(event: Out<u64>, flags: u32) {
        let runtime = runtime::current()?;
        event.set(runtime.events.create(&runtime.session, flags)?);
        Ok(())
    }

    fn cuEventQuery(event: u64) {
        let runtime = runtime::of(event)?;
        let event = runtime.events.get(event)?;
        event.outside_capture()?;
        if runtime.session.query_event(event.client)? { Ok(()) } else { Err(CuError::NOT_READY) }
    }

    fn cuEventSynchronize(event: u64) {
        let runtime = runtime::of(event)?;
        let event = runtime.events.get(event)?;
        event.outside_capture()?;
        Ok(runtime.session.synchronize_event(event.client)?)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        elapsed(&milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        elapsed(&milliseconds, start, end)
    }

    fn cuEventDestroy(event: u64) { destroy(event) }

    fn cuEventDestroy_v2(event: u64) { destroy(event) }
}

exports_by_default_stream! {
    fn cuEventRecord | cuEventRecord_ptsz(default; event: u64, stream: u64) {
        record(event, stream, default, 0)
    }

    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz(
        default; event: u64, stream: u64, flags: u32,
    ) {
        record(event, stream, default, flags)
    }
}

/// `CU_EVENT_RECORD_EXTERNAL`: a node of the graph that is captured records it.
const EXTERNAL: u32 = 1;

fn record(handle: u64, stream: u64, default: DefaultStream, flags: u32) -> CuResult {
    // An event is recorded in streams of its own device.
    let runtime = runtime::of_stream(stream)?;
    let event = runtime.events.get(handle)?;
    match runtime.target(stream, default)? {
        Target::Stream(stream) => {
            runtime.captures.forget(&event);
            event.record(&runtime.session, stream)
        }
        Target::Capture(stream) if flags & EXTERNAL != 0 => {
            runtime.captures.add(&runtime.graphs, stream, Action::EventRecord(handle, event))
        }
        Target::Capture(stream) => runtime.captures.record(stream, &event),
    }
}

fn destroy(event: u64) -> CuResult {
    let runtime = runtime::of(event)?;
    let event = runtime.events.destroy(&runtime.session, event)?;
    runtime.captures.forget(&event);
    Ok(())
}

fn elapsed(milliseconds: &Out<f32>, start: u64, end: u64) -> CuResult {
    let runtime = runtime::of(start)?;
    let (start, end) = (runtime.events.get(start)?, runtime.events.get(end)?);
    start.outside_capture()?;
    end.outside_capture()?;
    if !(start.has_time && end.has_time) {
        return Err(CuError::INVALID_HANDLE);
    }
    let nanoseconds = runtime.session.elapsed_ns(start.client, end.client)?;
    milliseconds.set(nanoseconds as f32 / 1e6);
    Ok(())
}
