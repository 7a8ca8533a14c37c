//! Exports: batches of copies, and copies with attributes (CUDA Driver API, "Memory Management").
//!
//! The copies of a batch are submitted one after the other, which is one of the orders that CUDA
//! allows. Every copy is checked before the first is submitted. Hints about the place of memory and
//! about overlap are ignored.

use crate::abi::{Array, In, OptionalOut, Plain};
use crate::copy::{Place, Until, copy};
use crate::copy_calls::{ARRAY, Copy3D, Side3D, UNIFIED, copy_3d};
use crate::entry::exports_by_default_stream;
use crate::error::{CuError, CuResult};
use crate::graph::action::Action;
use crate::graph::capture::Target;
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;
use partita_client::StreamHandle;

/// `CUmemcpyAttributes`: when the source is read, where both sides may lie, flags.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CopyAttributes {
    source_order: i32,
    hints: [[i32; 2]; 2],
    flags: u32,
}

/// `CUmemcpy3DOperand`: a pointer with row length, layer height and a hint, or an array with an
/// offset.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Operand {
    kind: i32,
    padding: u32,
    object: u64,
    sizes: [usize; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BoxCopy {
    from: Operand,
    to: Operand,
    extent: [usize; 3],
    source_order: i32,
    flags: u32,
}

// SAFETY: integers.
unsafe impl Plain for CopyAttributes {}
// SAFETY: integers.
unsafe impl Plain for Operand {}
// SAFETY: integers.
unsafe impl Plain for BoxCopy {}

const _: () = assert!(size_of::<CopyAttributes>() == 24 && size_of::<BoxCopy>() == 112);

/// `CUmemcpySrcAccessOrder`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SourceOrder {
    /// At the copy's turn in the stream.
    Stream,
    /// Before the call returns.
    DuringCall,
    /// At any time.
    Any,
}

exports_by_default_stream! {
    fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz(
        default; to: Array<u64>, from: Array<u64>, sizes: Array<usize>, count: usize,
        attributes: Array<CopyAttributes>,
        first: Array<usize>, attribute_count: usize, failed: OptionalOut<usize>, stream: u64,
    ) {
        failed.set(usize::MAX);
        let attributes = Attributes { list: attributes, first, count: attribute_count };
        copy_batch(stream, default, (to, from, sizes, count), &attributes, &failed)
    }

    fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz(
        default; to: Array<u64>, from: Array<u64>, sizes: Array<usize>, count: usize,
        attributes: Array<CopyAttributes>,
        first: Array<usize>, attribute_count: usize, stream: u64,
    ) {
        let attributes = Attributes { list: attributes, first, count: attribute_count };
        copy_batch(stream, default, (to, from, sizes, count), &attributes, &OptionalOut::none())
    }

    fn cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz(
        default; to: u64, from: u64, bytes: usize, attributes: In<CopyAttributes>, stream: u64,
    ) {
        let order = attributes.get().order()?;
        let runtime = runtime::of_stream(stream)?;
        let target = runtime.target(stream, default)?;
        copy_line(runtime, &target, (to, from, bytes), order)
    }

    fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz(
        default; count: usize, copies: Array<BoxCopy>, failed: OptionalOut<usize>, flags: u64,
        stream: u64,
    ) {
        failed.set(usize::MAX);
        copy_boxes(stream, default, (copies, count), flags, &failed)
    }

    fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz(
        default; count: usize, copies: Array<BoxCopy>, flags: u64, stream: u64,
    ) {
        copy_boxes(stream, default, (copies, count), flags, &OptionalOut::none())
    }

    fn cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz(
        default; request: In<BoxCopy>, flags: u64, stream: u64,
    ) {
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let runtime = runtime::of_stream(stream)?;
        let target = runtime.target(stream, default)?;
        let request = request.get();
        copy_box(runtime, &target, &request.request(runtime)?, request.order()?)
    }
}

/// Attributes of a batch. Each attribute applies from its first copy to the next attribute's first
/// copy.
struct Attributes {
    list: Array<CopyAttributes>,
    first: Array<usize>,
    count: usize,
}

impl Attributes {
    /// The order of every copy.
    fn orders(&self, copies: usize) -> CuResult<Vec<SourceOrder>> {
        let all = spread(self.list, self.first, self.count, copies)?;
        all.iter().map(CopyAttributes::order).collect()
    }
}

/// What holds for each of `total` things, where each entry of a list holds from its first thing to
/// that of the next.
pub fn spread<T: Plain>(
    list: Array<T>,
    first: Array<usize>,
    count: usize,
    total: usize,
) -> CuResult<Vec<T>> {
    if count == 0 || count > total || first.get(0) != Some(0) {
        return Err(CuError::INVALID_VALUE);
    }
    let mut all = Vec::new();
    for index in 0..count {
        let entry = list.get(index).ok_or(CuError::INVALID_VALUE)?;
        let end = if index + 1 == count { Some(total) } else { first.get(index + 1) };
        let end = end.filter(|end| *end > all.len() && *end <= total);
        all.resize(end.ok_or(CuError::INVALID_VALUE)?, entry);
    }
    Ok(all)
}

impl CopyAttributes {
    fn order(&self) -> CuResult<SourceOrder> {
        order(self.source_order, self.flags)
    }
}

fn order(number: i32, flags: u32) -> CuResult<SourceOrder> {
    const OVERLAP_WITH_COMPUTE: u32 = 1;
    if flags & !OVERLAP_WITH_COMPUTE != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    match number {
        1 => Ok(SourceOrder::Stream),
        2 => Ok(SourceOrder::DuringCall),
        3 => Ok(SourceOrder::Any),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// Finds the stream of a batch. The legacy default stream takes no batches.
fn target(runtime: &Runtime, stream: u64, default: DefaultStream) -> CuResult<Target> {
    if runtime.streams.resolve(&runtime.session, stream, default)? == StreamHandle::LEGACY {
        return Err(CuError::INVALID_VALUE);
    }
    runtime.target(stream, default)
}

fn copy_batch(
    stream: u64,
    default: DefaultStream,
    (to, from, sizes, count): (Array<u64>, Array<u64>, Array<usize>, usize),
    attributes: &Attributes,
    failed: &OptionalOut<usize>,
) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    let target = target(runtime, stream, default)?;
    let orders = attributes.orders(count)?;
    let mut lines = Vec::new();
    for index in 0..count {
        let line = (to.get(index), from.get(index), sizes.get(index));
        let (Some(to), Some(from), Some(bytes)) = line else { return Err(CuError::INVALID_VALUE) };
        if to == 0 || from == 0 || bytes == 0 {
            failed.set(index);
            return Err(CuError::INVALID_VALUE);
        }
        lines.push((to, from, bytes));
    }
    for (index, (line, order)) in lines.into_iter().zip(orders).enumerate() {
        copy_line(runtime, &target, line, order).inspect_err(|_| failed.set(index))?;
    }
    Ok(())
}

fn copy_line(
    runtime: &Runtime,
    target: &Target,
    (to, from, bytes): (u64, u64, usize),
    order: SourceOrder,
) -> CuResult {
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = (Place::of(runtime, to), Place::of(runtime, from));
    match *target {
        Target::Stream(stream) => {
            wait_for_source(runtime, stream, from, order)?;
            copy(runtime, stream, to, from, bytes as u64, until(order))
        }
        Target::Capture(stream) => {
            let request = Copy3D::line(to, from, bytes);
            runtime.captures.add(&runtime.graphs, stream, Action::Copy(request))
        }
    }
}

/// Waits for earlier work of the stream where the stream's order matters, because pageable memory
/// is read during the call.
fn wait_for_source(
    runtime: &Runtime,
    stream: StreamHandle,
    from: Place,
    order: SourceOrder,
) -> CuResult {
    match from {
        Place::Host(memory) if order == SourceOrder::Stream => {
            if runtime.session.host_range(memory.pointer().cast(), 1).is_none() {
                runtime.session.synchronize(Some(stream))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A source that may vanish after the call is copied during the call.
fn until(order: SourceOrder) -> Until {
    if order == SourceOrder::DuringCall { Until::Done } else { Until::Submitted }
}

fn copy_boxes(
    stream: u64,
    default: DefaultStream,
    (copies, count): (Array<BoxCopy>, usize),
    flags: u64,
    failed: &OptionalOut<usize>,
) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    let target = target(runtime, stream, default)?;
    if flags != 0 || count == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let mut requests = Vec::new();
    for index in 0..count {
        let one = copies.get(index).ok_or(CuError::INVALID_VALUE)?;
        let checked = one.order().and_then(|order| Ok((one.request(runtime)?, order)));
        requests.push(checked.inspect_err(|_| failed.set(index))?);
    }
    for (index, (request, order)) in requests.into_iter().enumerate() {
        copy_box(runtime, &target, &request, order).inspect_err(|_| failed.set(index))?;
    }
    Ok(())
}

fn copy_box(runtime: &Runtime, target: &Target, request: &Copy3D, order: SourceOrder) -> CuResult {
    let [_, from] = request.check(runtime)?;
    match *target {
        Target::Stream(stream) => {
            wait_for_source(runtime, stream, from.place, order)?;
            copy_3d(runtime, request, stream, until(order))
        }
        Target::Capture(stream) => {
            runtime.captures.add(&runtime.graphs, stream, Action::Copy(*request))
        }
    }
}

impl BoxCopy {
    fn order(&self) -> CuResult<SourceOrder> {
        order(self.source_order, self.flags)
    }

    /// The same copy in bytes.
    fn request(&self, runtime: &Runtime) -> CuResult<Copy3D> {
        let element = match (self.from.element()?, self.to.element()?) {
            (Some(from), Some(to)) if from != to => return Err(CuError::INVALID_VALUE),
            (Some(one), _) | (None, Some(one)) => one,
            (None, None) => 1,
        };
        let [width, height, depth] = self.extent;
        if width == 0 || height == 0 || depth == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let width_bytes = width.checked_mul(element).ok_or(CuError::INVALID_VALUE)?;
        let request = Copy3D {
            from: self.from.side(self.extent, element)?,
            to: self.to.side(self.extent, element)?,
            width_bytes,
            height,
            depth,
        };
        request.check(runtime)?;
        Ok(request)
    }
}

impl Operand {
    const POINTER: i32 = 1;
    const ARRAY: i32 = 2;

    /// Bytes of an array's elements.
    fn element(&self) -> CuResult<Option<usize>> {
        match self.kind {
            Operand::POINTER => Ok(None),
            Operand::ARRAY => {
                let array = runtime::of(self.object)?.arrays.get(self.object)?;
                Ok(Some(array.shape.format.bytes() as usize))
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    fn side(&self, [width, height, _]: [usize; 3], element: usize) -> CuResult<Side3D> {
        if self.kind == Operand::ARRAY {
            let [x, y, z] = self.sizes;
            let x_bytes = x.checked_mul(element).ok_or(CuError::INVALID_VALUE)?;
            let mut side = Side3D::at(ARRAY, [x_bytes, y, z], [0, 0]);
            side.array = self.object;
            return Ok(side);
        }
        // 0 is as much as is copied.
        let packed = |length: usize, least: usize| match length {
            0 => Ok(least),
            length if length >= least => Ok(length),
            _ => Err(CuError::INVALID_VALUE),
        };
        let [row, layer, _] = self.sizes;
        let pitch = packed(row, width)?.checked_mul(element).ok_or(CuError::INVALID_VALUE)?;
        let mut side = Side3D::at(UNIFIED, [0; 3], [pitch, packed(layer, height)?]);
        side.device = self.object;
        Ok(side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_copy_has_the_attributes_that_hold_for_it() {
        let list = [(1, 0), (3, 1)].map(|(source_order, flags)| CopyAttributes {
            source_order,
            hints: [[0; 2]; 2],
            flags,
        });
        let check = |first: &[usize], copies| {
            let attributes = Attributes {
                list: Array::at(list.as_ptr()),
                first: Array::at(first.as_ptr()),
                count: first.len(),
            };
            attributes.orders(copies).ok()
        };
        use SourceOrder::{Any, Stream};
        assert_eq!(check(&[0, 2], 3), Some(vec![Stream, Stream, Any]));
        assert_eq!(check(&[0], 2), Some(vec![Stream, Stream]));
        for (first, copies) in
            [(&[1, 2][..], 3), (&[0, 0], 3), (&[0, 3], 3), (&[0, 1], 1), (&[], 1)]
        {
            assert_eq!(check(first, copies), None, "{first:?} {copies}");
        }
        assert_eq!(order(0, 0), Err(CuError::INVALID_VALUE));
        assert_eq!(order(1, 2), Err(CuError::INVALID_VALUE));
    }

    #[test]
    fn rows_and_layers_of_0_are_as_long_as_the_copy() {
        let side = |sizes| {
            let operand = Operand { kind: Operand::POINTER, padding: 0, object: 64, sizes };
            operand.side([10, 3, 2], 1).map(|side| (side.pitch, side.height)).ok()
        };
        assert_eq!(side([0, 0, 0]), Some((10, 3)));
        assert_eq!(side([16, 4, 0]), Some((16, 4)));
        assert_eq!(side([9, 4, 0]), None);
        assert_eq!(side([10, 2, 0]), None);
    }
}
