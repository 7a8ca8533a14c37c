//! Exports: capture (CUDA Driver API, "Stream Management").

use crate::abi::{Array, OptionalOut, Out};
use crate::entry::exports_by_default_stream;
use crate::error::{CuError, CuResult};
use crate::graph::capture::Begin;
use crate::graph::graph_calls::read_list;
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;
use partita_client::StreamHandle;
use std::ffi::c_void;

exports_by_default_stream! {
    fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz(default; stream: u64) {
        begin(stream, default, 0, None)
    }

    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(default; stream: u64, mode: i32) {
        begin(stream, default, mode, None)
    }

    fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz(
        default; stream: u64, graph: u64, dependencies: Array<u64>, _data: Array<u64>,
        count: usize, mode: i32,
    ) {
        begin(stream, default, mode, Some((graph, read_list(dependencies, count)?)))
    }

    fn cuStreamEndCapture | cuStreamEndCapture_ptsz(default; stream: u64, graph: Out<u64>) {
        let runtime = runtime::of_stream(stream)?;
        graph.set(0);
        let stream = client(runtime, stream, default)?;
        graph.set(runtime.captures.end(&runtime.graphs, stream)?);
        Ok(())
    }

    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(default; stream: u64, status: Out<i32>) {
        let runtime = runtime::of_stream(stream)?;
        let info = runtime.captures.info(client(runtime, stream, default)?)?;
        status.set(info.map_or(0, |info| info.status));
        Ok(())
    }

    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(
        default; stream: u64, status: Out<i32>, id: OptionalOut<u64>,
    ) {
        let none = [OptionalOut::none(), OptionalOut::none()];
        let [graph, count] = none;
        tell(stream, default, &Answers { status, id, graph, dependencies: OptionalOut::none(),
            count })
    }

    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        default; stream: u64, status: Out<i32>, id: OptionalOut<u64>, graph: OptionalOut<u64>,
        dependencies: OptionalOut<*const c_void>, count: OptionalOut<u64>,
    ) {
        tell(stream, default, &Answers { status, id, graph, dependencies, count })
    }

    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        default; stream: u64, status: Out<i32>, id: OptionalOut<u64>, graph: OptionalOut<u64>,
        dependencies: OptionalOut<*const c_void>, edges: OptionalOut<*const c_void>,
        count: OptionalOut<u64>,
    ) {
        // All edges are ordinary ones, which null says.
        edges.set(std::ptr::null());
        tell(stream, default, &Answers { status, id, graph, dependencies, count })
    }

    fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz(
        default; stream: u64, dependencies: Array<u64>, count: usize, flags: u32,
    ) {
        update(stream, default, &read_list(dependencies, count)?, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz(
        default; stream: u64, dependencies: Array<u64>, _data: Array<u64>, count: usize, flags: u32,
    ) {
        update(stream, default, &read_list(dependencies, count)?, flags)
    }
}

/// The outputs of a query about a capture.
struct Answers {
    status: Out<i32>,
    id: OptionalOut<u64>,
    graph: OptionalOut<u64>,
    dependencies: OptionalOut<*const c_void>,
    count: OptionalOut<u64>,
}

fn client(runtime: &Runtime, stream: u64, default: DefaultStream) -> CuResult<StreamHandle> {
    runtime.streams.resolve(&runtime.session, stream, default)
}

fn begin(
    stream: u64,
    default: DefaultStream,
    mode: i32,
    into: Option<(u64, Vec<u64>)>,
) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    let blocking = runtime.streams.is_blocking(stream)?;
    let graph = into.as_ref().map(|(graph, _)| runtime.graphs.get(*graph)).transpose()?;
    let into = graph.zip(into.as_ref().map(|(_, nodes)| nodes.as_slice()));
    let stream = client(runtime, stream, default)?;
    runtime.captures.begin(&runtime.graphs, &Begin { stream, blocking, mode, into })
}

fn tell(stream: u64, default: DefaultStream, answers: &Answers) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    let Some(info) = runtime.captures.info(client(runtime, stream, default)?)? else {
        answers.status.set(0);
        return Ok(());
    };
    answers.status.set(info.status);
    answers.id.set(info.id);
    answers.graph.set(info.graph);
    answers.dependencies.set(info.dependencies.cast());
    answers.count.set(info.count as u64);
    Ok(())
}

fn update(stream: u64, default: DefaultStream, nodes: &[u64], flags: u32) -> CuResult {
    if flags > 1 {
        return Err(CuError::INVALID_VALUE);
    }
    let runtime = runtime::of_stream(stream)?;
    let stream = client(runtime, stream, default)?;
    runtime.captures.set_dependencies(&runtime.graphs, stream, nodes, flags == 1)
}
