//! From a module's image to what the device loads: unpack, parse, verify, rewrite, print.
//!
//! Everything here is a function of the image alone: no session, no device, no clock. So its
//! results can be kept and shared by content ([`crate::pool`]). The image is a stranger's
//! ([`images`]), and whatever is wrong with the text is said with its line and column.

use crate::machine_code::{self, MachineCode};
use crate::uploads::Image;
use partita_device::{Device, Guards};
use partita_engine::{PrepareError, PreparedModule, Purpose};
use partita_model::{CudaResult, ImageKind, Limits, Originals, Sharing};
use partita_ptx::Stop;

mod images;
pub(crate) mod later;
mod rewrite;

use images::{linked, text_of, unpack, with_system};
pub use later::prepare_forms;
use rewrite::rewrite;

/// Bytes of memory that preparing and loading a text takes at most, for each of its bytes, without
/// forms.
const MEMORY_PER_BYTE: u64 = 40;

pub(crate) fn refused(code: CudaResult, text: impl Into<String>) -> PrepareError {
    PrepareError { code, text: text.into() }
}

/// What kernels are prepared for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// How they share the device.
    pub sharing: Sharing,
    /// What they must see to by themselves.
    pub guards: Guards,
    /// Whether the device runs machine code.
    pub machine_code: MachineCode,
    /// Whether the original of every kernel stays beside its form.
    pub originals: Originals,
}

impl Target {
    /// A device's kernels.
    pub fn of(device: &mut dyn Device) -> Target {
        let machine_code = match (device.machine_code().is_some(), device.sm_groups().is_empty()) {
            (false, _) => MachineCode::Refused,
            (true, true) => MachineCode::Alone,
            (true, false) => MachineCode::OnGroups,
        };
        let originals = Originals::default();
        Target { sharing: device.sharing(), guards: device.guards(), machine_code, originals }
    }
}

impl From<Sharing> for Target {
    fn from(sharing: Sharing) -> Target {
        let (guards, machine_code) = (Guards::default(), MachineCode::Refused);
        Target { sharing, guards, machine_code, originals: Originals::default() }
    }
}

/// What one preparation may take.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Gives the preparation up.
    pub stop: Stop,
    /// The limits, for messages and for the size of a text.
    pub limits: Limits,
}

impl Bounds {
    /// Refuses a preparation that was given up.
    fn check(&self) -> Result<(), PrepareError> {
        if !self.stop.is_asked() {
            return Ok(());
        }
        let seconds = f64::from(self.limits.prepare_ms) / 1e3;
        Err(refused(
            CudaResult::ERROR_INVALID_IMAGE,
            format!(
                "the module takes longer than {seconds} s to prepare: split it, or an \
                 administrator raises `prepare_ms` in `[policy]`"
            ),
        ))
    }

    /// Refuses a text that is too long.
    fn check_size(&self, bytes: usize) -> Result<(), PrepareError> {
        let most = (u64::from(self.limits.prepare_mib) << 20) / MEMORY_PER_BYTE;
        if bytes as u64 <= most {
            return Ok(());
        }
        Err(refused(
            CudaResult::ERROR_INVALID_IMAGE,
            format!(
                "the module has {bytes} bytes of PTX, and this daemon prepares {most}: split it, \
                 or an administrator raises `prepare_mib` in `[policy]`"
            ),
        ))
    }
}

/// Prepares a module: its kernels in the `worker` form where SMs are shared out and they are to
/// run, else as they are; guarded where the device asks for that.
///
/// # Errors
/// What the program gets, with words that name place and remedy.
pub fn prepare(
    image: &Image,
    target: impl Into<Target>,
    purpose: &Purpose,
) -> Result<Prepared, PrepareError> {
    prepare_within(image, target.into(), purpose, &Bounds::default())
}

/// As [`prepare`], within bounds.
///
/// # Errors
/// As [`prepare`]; and what exceeds the bounds is refused by the name of its limit.
pub fn prepare_within(
    image: &Image,
    target: Target,
    purpose: &Purpose,
    bounds: &Bounds,
) -> Result<Prepared, PrepareError> {
    if image.kind == ImageKind::Bundle {
        return rewrite(&linked(image, bounds)?, target, purpose, bounds);
    }
    let bytes = unpack(image)?;
    if image.kind.is_machine_code() {
        return machine_code::prepare(&bytes, target);
    }
    rewrite(&with_system(text_of(&bytes)?, bounds)?, target, purpose, bounds)
}

/// A prepared module, and what the shell must know of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Prepared {
    /// For the engine.
    pub module: PreparedModule,
    /// Of each kernel of the module.
    pub shapes: Vec<KernelShape>,
}

/// What the program is told of a kernel beside what the device knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelShape {
    /// The form that it has, in one word.
    pub form: &'static str,
    /// Static shared memory that the form adds to the program's own in what the engine tells of the
    /// kernel.
    pub shared_added: u64,
    /// Dynamic shared memory that each launch has beside what the program asks for.
    pub hidden_shared: u32,
    /// Whether it may launch kernels.
    pub launches: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_device::VariableFacts;
    use partita_engine::{
        Fallback, Fence, KernelForm, LoadedModule, PreparedKernel, RegisterBound,
    };
    use partita_model::{Bytes, DeviceAddress, ParamLayout, nested};
    use std::collections::BTreeMap;
    use std::fmt::Write;
    use std::sync::Arc;

    const TEXT: &str = "\
.version 8.4
.target sm_90
.address_size 64

// Adds one to each element.
.visible .entry bump(.param .u64 data, .param .u32 count)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    .reg .pred %p;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [count];

    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p, %r2, %r1;
    @%p bra DONE;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d3, %d1, %d2;
    ld.global.u32 %r5, [%d3];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%d3], %r5;
DONE:
    ret;
}
.visible .entry grid_id(.param .u64 data)
{
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [data];
    mov.u64 %d2, %gridid;
    st.global.u64 [%d1], %d2;
    ret;
}
";

    fn image(kind: ImageKind, unpacked_bytes: usize, bytes: &[u8]) -> Image {
        Image { kind, unpacked_bytes: unpacked_bytes as u64, bytes: bytes.into() }
    }

    fn padded() -> Vec<u8> {
        let mut bytes = TEXT.as_bytes().to_vec();
        bytes.extend([0; 5]);
        bytes
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn bundles_are_linked_and_broken_ones_refused() {
        let unit = |body: &str| format!(".version 8.0\n.target sm_75\n.address_size 64\n{body}\n");
        let caller = unit(
            ".extern .global .align 4 .u32 word;\n.visible .entry k(.param .u64 out) {\n.reg .b32 \
             %r<2>;\n\
             .reg .b64 %rd<2>;\nld.param.u64 %rd1, [out];\nld.global.u32 %r1, [word];\n\
             st.global.u32 [%rd1], %r1;\nret;\n}",
        );
        let callee = zstd(unit(".visible .global .align 4 .u32 word = 7;").as_bytes());
        let part = |kind: ImageKind, unpacked: usize, bytes: &[u8]| {
            let head = [u64::from(kind.to_raw()), bytes.len() as u64, unpacked as u64];
            [head.map(u64::to_le_bytes).concat(), bytes.to_vec()].concat()
        };
        let size = unit(".visible .global .align 4 .u32 word = 7;").len();
        let good = [
            part(ImageKind::Ptx, caller.len(), caller.as_bytes()),
            part(ImageKind::PtxZstd, size, &callee),
        ]
        .concat();
        let prepare_bundle = |bytes: &[u8]| {
            prepare(&image(ImageKind::Bundle, 1, bytes), Sharing::Spatial, &Purpose::Run)
        };
        let prepared = prepare_bundle(&good).unwrap();
        assert_eq!(prepared.module.kernels.len(), 1);
        assert!(prepared.module.ptx.contains("word"));
        for cut in [0, 1, 23, 24, 100, good.len() - 1] {
            assert!(prepare_bundle(&good[..cut]).is_err(), "cut to {cut}");
        }
        for (at, value) in [(0, 5), (0, 9), (4, 1), (15, 1), (23, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(prepare_bundle(&bad).is_err(), "byte {at} = {value}");
        }
        assert!(prepare_bundle(&[good.clone(), good].concat()).is_err(), "everything twice");
    }

    #[test]
    fn kernels_decide_about_nodes_of_graphs() {
        let head = ".version 8.0\n.target sm_75\n.address_size 64\n";
        let function = "func cudaGraphSetConditional(.param .b64 h, .param .b32 v)";
        let kernel = ".visible .entry k(.param .u64 h) {\n.reg .b64 %rd<2>;\n\
            ld.param.u64 %rd1, [h];\n{\n.param .b64 p;\n.param .b32 q;\n\
            st.param.b64 [p], %rd1;\nst.param.b32 [q], 7;\n\
            call.uni cudaGraphSetConditional, (p, q);\n}\nret;\n}\n";
        let prepared = |declared: &str, kind: ImageKind| {
            let text = format!("{head}{declared}\n{kernel}");
            let header = [u64::from(ImageKind::Ptx.to_raw()), text.len() as u64, text.len() as u64];
            let bundle = [header.map(u64::to_le_bytes).concat(), text.clone().into()].concat();
            let bytes = if kind == ImageKind::Bundle { &bundle } else { text.as_bytes() };
            let image = image(kind, bytes.len(), bytes);
            prepare(&image, Sharing::Mps, &Purpose::Run).unwrap().module.ptx
        };
        for kind in [ImageKind::Ptx, ImageKind::Bundle] {
            let text = prepared(&format!(".extern .{function};"), kind);
            assert_eq!(text.matches("st.global.b32").count(), 1, "{text}");
            assert!(!text.contains(".extern"), "{text}");
        }
        // A program's own function of that name stays.
        let own = format!(".visible .{function} {{\nret;\n}}");
        let text = prepared(&own, ImageKind::Ptx);
        assert!(!text.contains("st.global"), "{text}");
    }

    /// The passes and the program's side know the number of a kernel each by itself.
    #[test]
    fn kernels_that_launch_are_told_and_name_kernels_by_numbers() {
        let text = ".version 8.0\n.target sm_75\n.address_size 64\n\
            .extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 a, .param .b64 b);\n\
            .visible .entry first() { ret; }\n\
            .visible .entry child(.param .u64 a, .param .u32 b) { ret; }\n\
            .visible .entry parent(.param .u32 a) {\n.reg .b64 %d;\n.reg .b32 %r;\n\
            mov.u64 %d, child;\n{\n.param .b64 p;\n.param .b64 q;\n.param .b32 s;\n\
            st.param.b64 [p], %d;\nst.param.b64 [q], %d;\n\
            call.uni (s), __cudaCDP2LaunchDeviceV2, (p, q);\n}\nret;\n}\n";
        let image = image(ImageKind::Ptx, text.len(), text.as_bytes());
        let Prepared { module, shapes } = prepare(&image, Sharing::Spatial, &Purpose::Run).unwrap();
        let launches: Vec<bool> = shapes.iter().map(|shape| shape.launches).collect();
        assert_eq!(launches, [false, false, true]);
        let params = [ParamLayout { offset: 0, bytes: 4 }, ParamLayout { offset: 8, bytes: 8 }];
        assert_eq!(module.kernels[2].params, params);
        let moved = module.ptx.lines().find(|line| line.contains("mov.u64 %d, ")).unwrap();
        let number = moved.split(", ").nth(1).unwrap().trim_end_matches(';');
        let mut record = vec![0; 2 * nested::UNIT_BYTES];
        record[0] = 1;
        record[8..16].copy_from_slice(&number.parse::<u64>().unwrap().to_le_bytes());
        record[56] = 2;
        let found = nested::operations(&record).unwrap();
        let nested::Work::Launch { kernel, params, .. } = &found[0].work else {
            panic!("{found:?}")
        };
        assert_eq!((*kernel, params.len()), (1, 12));
    }

    #[test]
    fn where_sms_are_not_shared_out_kernels_stay_as_they_are() {
        for sharing in [Sharing::TimeSlice, Sharing::Mps] {
            let image = image(ImageKind::Ptx, TEXT.len(), TEXT.as_bytes());
            let prepared = prepare(&image, sharing, &Purpose::Run).unwrap();
            assert!(prepared.shapes.iter().all(|shape| shape.form == "original"));
            for kernel in &prepared.module.kernels {
                let KernelForm::Original { reason, .. } = &kernel.form else {
                    panic!("{kernel:?}")
                };
                assert!(reason.contains("runs as it is"), "{reason}");
            }
        }
    }

    #[test]
    fn where_the_device_checks_nothing_kernels_are_guarded() {
        let text = format!(
            "{TEXT}
.visible .entry gives_up(.param .u64 data)
{{
    .reg .b64 %d<3>;
    .reg .pred %p;
    ld.param.u64 %d1, [data];
    setp.eq.u64 %p, %d1, 0;
    @%p trap;
    ret;
}}
.visible .entry anywhere(.param .u64 function)
{{
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [function];
    shape: .callprototype _ ();
    call %d1, shape;
    ret;
}}
"
        );
        let image = image(ImageKind::Ptx, text.len(), text.as_bytes());
        let guards = Guards { cell_bits: Some(39), ends: true, prints: false, contains: false };
        let guarded = Target { guards, ..Target::from(Sharing::Spatial) };
        let prepared = prepare(&image, guarded, &Purpose::Run).unwrap().module;
        let fence = |name: &str| {
            &prepared.kernels.iter().find(|kernel| *kernel.name == *name).unwrap().fence
        };
        assert_eq!([fence("bump"), fence("grid_id"), fence("gives_up")], [&Fence::Code; 3]);
        let Fence::None(why) = fence("anywhere") else { panic!("{:?}", fence("anywhere")) };
        assert!(why.contains("a call through a register"), "{why}");
        assert!(
            prepared.ptx.contains(", 0, 39;") && !prepared.ptx.contains("trap;"),
            "{}",
            prepared.ptx
        );
        // The launch passes the cell's address first, then the form's own parameters.
        let head = prepared.ptx.split("gives_up(").nth(1).unwrap().split(')').next().unwrap();
        let places = ["data", "pw_window_base", "pw_control"].map(|name| head.find(name).unwrap());
        assert!(places.is_sorted(), "{head}");
        let open = prepare(&image, Sharing::Spatial, &Purpose::Run).unwrap().module;
        assert!(
            open.kernels.iter().all(|kernel| kernel.fence == Fence::Device)
                && open.ptx.contains("trap;")
        );
        // A call through a register may reach any function; this module has none.
        let give_up = |prepared: &PreparedModule| -> Vec<String> {
            let kernels = prepared.kernels.iter().filter(|kernel| kernel.gives_up);
            kernels.map(|kernel| kernel.name.to_string()).collect()
        };
        assert_eq!(give_up(&prepared), ["gives_up"]);
        // A guard of an access is a way to give up, too.
        let strict = Guards { contains: true, ..guards };
        let strict = Target { guards: strict, ..Target::from(Sharing::Spatial) };
        let guarded = give_up(&prepare(&image, strict, &Purpose::Run).unwrap().module);
        assert!(["gives_up", "bump"].iter().all(|name| guarded.iter().any(|own| own == name)));
        assert_eq!(give_up(&open), Vec::<String>::new());
    }

    /// Lanes that may wait apart have words in shared memory, of which the engine and the program's
    /// library know.
    #[test]
    fn guards_have_shared_memory_behind_that_of_the_program() {
        let text = format!(
            "{TEXT}
.visible .entry apart(.param .u64 data)
{{
    .reg .b32 %r<3>;
    .reg .pred %p;
    mov.u32 %r1, %laneid;
    setp.lt.u32 %p, %r1, 16;
    @%p bra LOW;
    shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffff0000;
    bra DONE;
LOW:
    shfl.sync.bfly.b32 %r2, %r1, 2, 31, 0xffff;
DONE:
    ret;
}}
"
        );
        let image = image(ImageKind::Ptx, text.len(), text.as_bytes());
        let hidden = |contains| {
            let guards = Guards { cell_bits: Some(39), ends: true, prints: false, contains };
            let target = Target { guards, ..Target::from(Sharing::Spatial) };
            let Prepared { module, shapes } = prepare(&image, target, &Purpose::Run).unwrap();
            let of_kernels: Vec<u32> =
                module.kernels.iter().map(|kernel| kernel.hidden_shared).collect();
            let of_shapes: Vec<u32> = shapes.iter().map(|shape| shape.hidden_shared).collect();
            assert_eq!(of_kernels, of_shapes);
            of_kernels
        };
        assert_eq!(hidden(false), [0; 3]);
        let [bump, grid_id, apart] = hidden(true)[..] else { panic!("three kernels") };
        assert_eq!([bump, grid_id], [0; 2]);
        assert!(apart > 12 * 32, "{apart} bytes do not hold the words of 32 warps");
    }

    #[test]
    fn every_packing_gives_the_same() {
        let text = padded();
        let plain =
            prepare(&image(ImageKind::Ptx, text.len(), &text), Sharing::Spatial, &Purpose::Run)
                .unwrap();
        assert_eq!(
            prepare(
                &image(ImageKind::PtxZstd, text.len(), &zstd(&text)),
                Sharing::Spatial,
                &Purpose::Run
            )
            .unwrap(),
            plain
        );
        let lz4 = lz4_flex::block::compress(&text);
        assert_eq!(
            prepare(&image(ImageKind::PtxLz4, text.len(), &lz4), Sharing::Spatial, &Purpose::Run)
                .unwrap(),
            plain
        );
    }

    /// Forms, and originals only where forms cannot serve every launch.
    fn forms_only() -> Target {
        Target { originals: Originals::Never, ..Target::from(Sharing::Spatial) }
    }

    #[test]
    fn kernels_get_their_form() {
        let prepared = prepare(
            &image(ImageKind::Ptx, TEXT.len(), TEXT.as_bytes()),
            forms_only(),
            &Purpose::Run,
        )
        .unwrap();
        let [bump, grid_id] = &prepared.module.kernels[..] else { panic!("two kernels") };
        assert_eq!((&*bump.name, bump.param_bytes), ("bump", 12));
        assert_eq!(
            bump.params,
            [ParamLayout { offset: 0, bytes: 8 }, ParamLayout { offset: 8, bytes: 4 }]
        );
        assert!(matches!(bump.form, KernelForm::Worker { .. }));
        let KernelForm::Original { reason, .. } = &grid_id.form else {
            panic!("no worker reads %gridid")
        };
        assert!(reason.contains("line 32") && reason.contains("%gridid"), "{reason}");
        let worker = KernelShape { form: "worker", shared_added: 48, ..KernelShape::default() };
        let original = KernelShape { form: "original", ..KernelShape::default() };
        assert_eq!(prepared.shapes, [worker, original]);
    }

    /// A kernel that no worker or ticket can be: a function of it ends threads.
    const LEAVING: &str = "\
.func leave(.param .u32 at)
{
    .reg .b32 %r<2>;
    .reg .pred %p;
    ld.param.u32 %r1, [at];
    setp.gt.u32 %p, %r1, 7;
    @%p exit;
    ret;
}
.visible .entry leaving(.param .u64 data)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<4>;
    .reg .pred %p;
    .param .u32 at;
    ld.param.u64 %d1, [data];
    mov.u32 %r1, %tid.x;
    st.param.u32 [at], %r1;
    call leave, (at);
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d3, %d1, %d2;
    // WAIT
    st.global.u32 [%d3], %r2;
    ret;
}
";

    #[test]
    fn a_kernel_that_is_neither_worker_nor_ticket_gets_slices() {
        let guards = Guards { cell_bits: Some(39), ends: true, prints: false, contains: false };
        let prepared = |leaving: &str, guards| {
            let text = format!("{TEXT}{leaving}");
            let image = image(ImageKind::Ptx, text.len(), text.as_bytes());
            let target = Target { guards, ..Target::from(Sharing::Spatial) };
            let prepared = prepare(&image, target, &Purpose::Run).unwrap();
            assert_eq!(prepared.module.kernels[0].slice, None, "a worker");
            assert_eq!(prepared.module.kernels[1].slice, None, "it reads %gridid");
            prepared
        };
        let Prepared { module, shapes } = prepared(LEAVING, guards);
        let kernel = &module.kernels[2];
        let slice = kernel.slice.as_ref().expect("an entry in slices");
        let KernelForm::Original { reason, .. } = &kernel.form else { panic!("{kernel:?}") };
        assert!(reason.contains("`exit` inside the function `leave`"), "{reason}");
        assert_eq!((shapes[2].form, slice.abort), ("slice", true));
        let head = module.ptx.split(&format!("{}(", slice.entry)).nth(1).unwrap();
        let head = head.split(')').next().unwrap();
        let names = ["data", "pw_window_base", "pw_slice_first", "pw_slice_width", "pw_control"];
        assert!(names.map(|name| head.find(name).unwrap()).is_sorted(), "{head}");
        // A loop that waits for another CTA.
        let look = "WAIT: ld.volatile.global.u32 %r1, [%d3];";
        let waits = format!("{look} setp.eq.u32 %p, %r1, 0; @%p bra WAIT;");
        let waits = LEAVING.replace("// WAIT", &waits);
        let kernel = &prepared(&waits, Guards::default()).module.kernels[2];
        let KernelForm::Original { reason, .. } = &kernel.form else { panic!("{kernel:?}") };
        assert!(kernel.slice.is_none() && reason.contains("not run in slices"), "{reason}");
    }

    #[test]
    fn originals_stay_beside_all_kernels_where_they_are_to_run() {
        let target = |originals| Target { originals, ..Target::from(Sharing::Spatial) };
        let of = |originals| {
            let image = image(ImageKind::Ptx, TEXT.len(), TEXT.as_bytes());
            prepare(&image, target(originals), &Purpose::Run).unwrap().module
        };
        let (without, with) = (of(Originals::Never), of(Originals::Alone));
        assert_eq!(without.kernels[0].form.fallback(), None);
        let fallback = with.kernels[0].form.fallback().expect("an original beside the worker");
        assert!(!fallback.for_cooperative && !fallback.for_broken_rows, "{fallback:?}");
        let entries = |module: &PreparedModule| {
            let kernels = partita_ptx::parse(&module.ptx).unwrap().kernels();
            kernels.into_iter().map(|kernel| kernel.name).collect::<Vec<_>>()
        };
        let (few, more) = (entries(&without), entries(&with));
        assert!(more.contains(&fallback.entry.to_string()), "{more:?}");
        assert_eq!(more.len(), few.len() + 1, "none beside the kernel that counts: {more:?}");
    }

    #[test]
    fn an_original_stays_where_the_worker_does_not_serve_every_launch() {
        let text = TEXT.replace("setp.ge.u32 %p, %r2, %r1;", "setp.gt.u32 %p, %r4, 31;");
        let text = text.replace("DONE:\n", "shfl.sync.down.b32 %r5, %r5, 1, 31, -1;\nDONE:\n");
        let prepared = prepare(
            &image(ImageKind::Ptx, text.len(), text.as_bytes()),
            forms_only(),
            &Purpose::Run,
        )
        .unwrap();
        let fallback = |index: usize| match &prepared.module.kernels[index].form {
            KernelForm::Worker { fallback, .. } => fallback.clone(),
            other => panic!("{other:?}"),
        };
        let Some(Fallback { entry, for_broken_rows: true, .. }) = fallback(0) else {
            panic!("rows matter")
        };
        let again = partita_ptx::parse(&prepared.module.ptx).unwrap();
        let names: Vec<_> = again.kernels().into_iter().map(|k| (k.name, k.param_bytes)).collect();
        assert_eq!(names[..2], [("bump".to_owned(), 24), (entry.to_string(), 24)]);
        assert_eq!(prepared.module.kernels.len(), 2, "the program has no kernel more");
        // Where a trap ends the context, the original beside the worker must not keep its traps
        // either.
        let trapping =
            text.replace("setp.gt.u32 %p, %r4, 31;", "setp.gt.u32 %p, %r4, 31;\n    @%p trap;");
        let guards = Guards { cell_bits: Some(38), ends: true, prints: false, contains: false };
        let guarded = Target { guards, ..Target::from(Sharing::Spatial) };
        let trapping = image(ImageKind::Ptx, trapping.len(), trapping.as_bytes());
        let guarded = prepare(&trapping, guarded, &Purpose::Run).unwrap().module;
        let KernelForm::Worker { fallback: Some(fallback), .. } = &guarded.kernels[0].form else {
            panic!("{:?}", guarded.kernels[0].form)
        };
        assert!(fallback.abort && !guarded.ptx.contains("trap;"), "{}", guarded.ptx);
        let lines = prepared.module.lines.unwrap();
        let stores = prepared
            .module
            .ptx
            .lines()
            .zip(&*lines)
            .filter(|(text, _)| text.contains("[%d3], %r5"));
        // Worker and original, and both again of the kernel that counts.
        assert_eq!(stores.map(|(_, line)| *line).collect::<Vec<_>>(), [24; 4]);
        let plain = prepare(
            &image(ImageKind::Ptx, TEXT.len(), TEXT.as_bytes()),
            forms_only(),
            &Purpose::Run,
        )
        .unwrap();
        assert!(matches!(plain.module.kernels[0].form, KernelForm::Worker { fallback: None, .. }));
    }

    #[test]
    fn kernels_that_cannot_be_workers_are_tickets() {
        // Some lanes exit, and the others synchronise afterwards.
        let text = TEXT.replace("DONE:\n", "shfl.sync.down.b32 %r5, %r5, 1, 31, -1;\nDONE:\n");
        let prepared = prepare(
            &image(ImageKind::Ptx, text.len(), text.as_bytes()),
            forms_only(),
            &Purpose::Run,
        )
        .unwrap();
        let KernelForm::Ticket { fallback: None, reason, .. } = &prepared.module.kernels[0].form
        else {
            panic!("{:?}", prepared.module.kernels[0])
        };
        assert!(reason.contains("line 25") && reason.contains("shfl.sync.down.b32"), "{reason}");
        assert_eq!(prepared.shapes[0].form, "ticket");
    }

    #[test]
    fn a_form_is_bounded_by_what_the_original_has() {
        let image = image(ImageKind::Ptx, TEXT.len(), TEXT.as_bytes());
        let to = |purpose: &Purpose| prepare(&image, forms_only(), purpose).unwrap().module;
        let is = |module: &PreparedModule, bound: RegisterBound| {
            module.kernels.iter().all(|kernel| kernel.registers == bound)
        };
        let free = to(&Purpose::Run);
        assert!(!free.ptx.contains(".maxnreg") && is(&free, RegisterBound::Nothing));
        let measured = to(&Purpose::Registers(Arc::new(BTreeMap::from([(Arc::from("bump"), 72)]))));
        let is_original =
            |kernel: &PreparedKernel| matches!(kernel.form, KernelForm::Original { .. });
        assert!(measured.kernels.iter().all(is_original));
        for (registers, bound) in [(16, 24), (65, 72), (168, 168)] {
            let known = BTreeMap::from([(Arc::from("bump"), registers)]);
            let bounded = to(&Purpose::RunWithin(Arc::new(known)));
            assert_eq!(bounded.ptx.matches(&format!(".maxnreg {bound}")).count(), 1, "{registers}");
            assert!(is(&bounded, RegisterBound::Settled));
            assert!(matches!(bounded.kernels[0].form, KernelForm::Worker { fallback: None, .. }));
        }
    }

    #[test]
    fn forms_come_later_where_all_would_take_too_much() {
        let mut text = TEXT.to_owned();
        for kernel in 0..30 {
            writeln!(text, ".visible .entry k{kernel}() {{ ret; }}").unwrap();
        }
        let image = image(ImageKind::Ptx, text.len(), text.as_bytes());
        let prepared = |prepare_mib| {
            let limits = Limits { prepare_mib, ..Limits::default() };
            let bounds = Bounds { limits, ..Bounds::default() };
            prepare_within(&image, forms_only(), &Purpose::Run, &bounds).unwrap()
        };
        assert!(prepared(64).module.later.is_none());
        let Prepared { module, shapes } = prepared(2);
        assert!(shapes.iter().all(|shape| shape.form == "later"));
        assert!(module.kernels.iter().all(|kernel| kernel.later));
        let loaded = LoadedModule { kernels: Vec::new(), variables: Vec::new() };
        let forms = |kernel| {
            let source = &module.later.as_ref().unwrap().source;
            prepare_forms(source, kernel, &loaded, forms_only(), &Purpose::Run)
        };
        let bump = forms(0).unwrap().module;
        assert!(matches!(
            bump.kernels[..],
            [PreparedKernel { form: KernelForm::Worker { .. }, .. }]
        ));
        assert_eq!(bump.kernels[0].hash, module.kernels[0].hash, "the same code");
        let store = bump.ptx.lines().position(|line| line.contains("[%d3], %r5")).unwrap();
        assert_eq!(bump.lines.unwrap()[store], 24, "the line of the whole module");
        assert!(forms(99).is_err());
    }

    #[test]
    fn a_later_form_keeps_to_its_window_and_finds_variables() {
        let mut text =
            TEXT.replace(".visible .entry bump", ".global .u32 sum;\n.visible .entry bump");
        text = text.replace("DONE:", "atom.global.add.u32 %r5, [sum], %r5;\nDONE:");
        for kernel in 0..30 {
            writeln!(text, ".visible .entry k{kernel}() {{ ret; }}").unwrap();
        }
        let image = image(ImageKind::Ptx, text.len(), text.as_bytes());
        let guards = Guards { cell_bits: Some(39), ends: true, prints: false, contains: false };
        let target = Target { guards, ..forms_only() };
        let limits = Limits { prepare_mib: 2, ..Limits::default() };
        let bounds = Bounds { limits, ..Bounds::default() };
        let module = prepare_within(&image, target, &Purpose::Run, &bounds).unwrap().module;
        let source = &module.later.as_ref().unwrap().source;
        let sum = VariableFacts {
            name: "sum".to_owned(),
            address: DeviceAddress(0x5_0000_1000),
            size: Bytes(4),
        };
        let forms = |variables| {
            let loaded = LoadedModule { kernels: Vec::new(), variables };
            prepare_forms(source, 0, &loaded, target, &Purpose::Run)
        };
        let error = forms(Vec::new()).unwrap_err();
        assert!(error.text.contains("a variable without an address"), "{error}");
        let bump = forms(vec![sum]).unwrap().module;
        assert!(matches!(bump.kernels[0].form, KernelForm::Worker { .. }));
        assert_eq!(bump.kernels[0].fence, Fence::Code);
        assert!(bump.ptx.contains(&0x5_0000_1000_u64.to_string()), "{}", bump.ptx);
    }

    #[test]
    fn lines_lead_back() {
        let prepared = prepare(
            &image(ImageKind::Ptx, TEXT.len(), TEXT.as_bytes()),
            Sharing::Spatial,
            &Purpose::Run,
        )
        .unwrap();
        let lines = prepared.module.lines.unwrap();
        let original = |printed: &str| {
            let line = prepared.module.ptx.lines().position(|line| line.trim() == printed).unwrap();
            TEXT.lines().nth(lines[line] as usize - 1).unwrap().trim()
        };
        for line in
            ["ld.global.u32 %r5, [%d3];", "st.global.u32 [%d3], %r5;", "st.global.u64 [%d1], %d2;"]
        {
            assert_eq!(original(line), line);
        }
        assert_eq!(lines.len(), prepared.module.ptx.lines().count());
    }

    #[test]
    fn bad_images_say_what_is_wrong() {
        let text = padded();
        let check = |image: Image, code: CudaResult, words: &str| {
            let error = prepare(&image, Sharing::Spatial, &Purpose::Run).unwrap_err();
            assert_eq!(error.code, code, "{error}");
            assert!(error.text.contains(words), "{error}");
        };
        let invalid = CudaResult::ERROR_INVALID_IMAGE;
        let packed = zstd(&text);
        check(image(ImageKind::PtxZstd, text.len() - 1, &packed), invalid, "more than");
        check(image(ImageKind::PtxZstd, text.len() + 1, &packed), invalid, "less than");
        check(
            image(ImageKind::PtxZstd, text.len(), &packed[..packed.len() / 2]),
            invalid,
            "broken zstd",
        );
        check(image(ImageKind::PtxZstd, text.len(), b"nothing"), invalid, "not a zstd frame");
        check(image(ImageKind::PtxZstd, 1 << 40, &packed), invalid, "at most");
        let packed = lz4_flex::block::compress(&text);
        check(image(ImageKind::PtxLz4, text.len() - 1, &packed), invalid, "LZ4");
        check(image(ImageKind::PtxLz4, text.len() + 1, &packed), invalid, "less than");
        check(image(ImageKind::PtxLz4, text.len(), b"\xff\xff\xff"), invalid, "LZ4");
        check(
            image(ImageKind::Cubin, 4, b"\x7fELF"),
            CudaResult::ERROR_NO_BINARY_FOR_GPU,
            "-gencode",
        );
        check(image(ImageKind::CubinZstd, 4, b"nothing"), invalid, "not a zstd frame");
        let bad = CudaResult::ERROR_INVALID_PTX;
        check(image(ImageKind::Ptx, 3, b"a\n\xff"), bad, "line 2");
        check(image(ImageKind::Ptx, 2, b"\0\0"), bad, "");
        let broken = TEXT.replace("add.u32 %r5, %r5, 1;", "add.u32 %r5, %r5;");
        check(image(ImageKind::Ptx, broken.len(), broken.as_bytes()), bad, "23:");
    }
}
