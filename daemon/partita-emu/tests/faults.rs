//! Every kind of fault with its exact message; `docs/faults.md` lists the same, and is checked
//! against this.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::{
    Activity, AddressRange, Device, Event, Fault, FaultKind, GridSpec, Horizon, Outcome, Textures,
    Work,
};
use partita_emu::{EmulatedGpu, MemoryCheck, Options, Spec, Timing};
use partita_model::texture::{
    ArrayKind, ArrayShape, ChannelType, Sampler, TexelFormat, TexelSource, TextureSpec,
};
use partita_model::{DeviceAddress, Dim3, ModuleId, OperationId, StreamId, WindowId};

const FAR: Horizon = Horizon { until: None, warp_instructions: u64::MAX };
const BYTES: u64 = 64 << 20;

/// Where the parameter of a kernel points.
#[derive(Clone, Copy)]
enum At {
    /// An allocation of 256 bytes.
    Buffer,
    /// So many bytes into it.
    Inside(u64),
    /// An allocation that was freed.
    Freed,
    /// An allocation of another session.
    Other,
    /// A texture object of the first 64 floats of the allocation.
    Texture,
    /// A surface object of 4 rows of 16 floats.
    Surface,
    /// A texture object of another session.
    OtherTexture,
    /// A texture object of memory that was freed.
    FreedTexture,
    /// This address.
    Number(u64),
}

use At::{Buffer, Freed, FreedTexture, Inside, Number, Other, OtherTexture, Surface, Texture};
use FaultKind::{
    Assert, IllegalAddress, IllegalInstruction, InvalidAddressSpace, InvalidPc, LaunchFailed,
    MisalignedAddress, StackOverflow,
};

/// What goes wrong, the kernel of `catalogue.ptx`, its parameter, and the kind.
const CATALOGUE: [(&str, &str, At, FaultKind); 31] = [
    ("a store beyond an allocation", "store_beyond", Inside(64), IllegalAddress),
    ("a null pointer", "store_beyond", Number(0), IllegalAddress),
    ("use after free", "store_beyond", Freed, IllegalAddress),
    ("memory of another session", "load_v4", Other, IllegalAddress),
    ("an atomic beyond an allocation", "add_to", Inside(256), IllegalAddress),
    ("a vector that is not aligned", "load_v4", Inside(8), MisalignedAddress),
    ("a write to constant memory", "write_constant", Buffer, IllegalAddress),
    ("shared memory beyond the allotment", "shared_beyond", Buffer, IllegalAddress),
    ("shared memory that is not aligned", "shared_misaligned", Buffer, MisalignedAddress),
    ("local memory beyond the thread's", "local_beyond", Buffer, IllegalAddress),
    ("parameters beyond the kernel's", "parameter_beyond", Buffer, IllegalAddress),
    ("a write to parameters", "write_parameter", Buffer, InvalidAddressSpace),
    ("recursion that is too deep", "too_deep", Buffer, StackOverflow),
    ("an `alloca` that is too large", "too_large", Buffer, StackOverflow),
    ("a call through a bad pointer", "no_function", Number(0x1234), InvalidPc),
    ("`trap`", "trapped", Buffer, LaunchFailed),
    ("a breakpoint", "breakpoint", Buffer, LaunchFailed),
    ("an assertion", "asserted", Buffer, Assert),
    ("a barrier that cannot be passed", "never_passed", Buffer, LaunchFailed),
    ("a barrier that does not exist", "no_barrier", Buffer, LaunchFailed),
    ("an mbarrier that was not initialised", "no_mbarrier", Buffer, IllegalInstruction),
    ("too many arrivals at an mbarrier", "too_many", Buffer, IllegalInstruction),
    ("a bulk copy that is not aligned", "bulk_misaligned", Buffer, MisalignedAddress),
    ("`free` of what `malloc` has not given", "free_twice", Inside(16), IllegalAddress),
    ("a texture object that does not exist", "fetch", Number(77), IllegalAddress),
    ("a texture object of another session", "fetch", OtherTexture, IllegalAddress),
    ("a texture of freed memory", "fetch", FreedTexture, IllegalAddress),
    ("a surface that is sampled", "fetch", Surface, InvalidAddressSpace),
    ("a texture that is written", "paint", Texture, InvalidAddressSpace),
    ("a place outside of a surface", "paint_beyond", Surface, LaunchFailed),
    ("a place in a surface that is not aligned", "paint_misaligned", Surface, MisalignedAddress),
];

struct World {
    gpu: EmulatedGpu,
    base: u64,
    other: u64,
    texture: u64,
    freed_texture: u64,
    other_texture: u64,
    surface: u64,
    operations: u64,
    notices: Vec<String>,
}

impl World {
    fn new(timing: Timing) -> Self {
        Self::checked(timing, MemoryCheck::Exact)
    }

    fn checked(timing: Timing, memcheck: MemoryCheck) -> Self {
        let mut gpu = EmulatedGpu::new(
            Spec::named("cd-search-24").unwrap(),
            Options { seed: 5, timing, memcheck, ..Options::default() },
        );
        let base = gpu.reserve(WindowId(1), BYTES).unwrap().0;
        let other = gpu.reserve(WindowId(2), BYTES).unwrap().0;
        gpu.load_module(ModuleId(1), WindowId(1), include_str!("ptx/catalogue.ptx").into())
            .unwrap();
        gpu.create_stream(StreamId(0)).unwrap();
        let mut events = Vec::new();
        gpu.poll(FAR, &mut events);
        let [Event::ModuleLoaded { facts, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(facts.refused, []);
        for (window, start) in [(1, base), (1, base + 4096), (2, other)] {
            let range = AddressRange { start: DeviceAddress(start), bytes: 256 };
            gpu.allocate(WindowId(window), range).unwrap();
        }
        let format = TexelFormat::new(ChannelType::F32, 1).unwrap();
        let texture = |gpu: &mut EmulatedGpu, window, address| {
            let source = TexelSource::Linear { address: DeviceAddress(address), format, width: 64 };
            gpu.create_texture(
                WindowId(window),
                &TextureSpec { source, sampler: Some(Sampler::default()) },
            )
        };
        let (own, freed) =
            (texture(&mut gpu, 1, base).unwrap(), texture(&mut gpu, 1, base + 4096).unwrap());
        let other_texture = texture(&mut gpu, 2, other).unwrap();
        let shape = ArrayShape::new(ArrayKind::Plane, format, [16, 4, 1], 1).unwrap();
        let array = gpu.create_array(WindowId(1), &shape).unwrap();
        let source = TexelSource::Array { array, first_level: 0, levels: 1 };
        let surface =
            gpu.create_texture(WindowId(1), &TextureSpec { source, sampler: None }).unwrap();
        gpu.free(DeviceAddress(base + 4096)).unwrap();
        World {
            gpu,
            base,
            other,
            texture: own,
            freed_texture: freed,
            other_texture,
            surface,
            operations: 0,
            notices: Vec::new(),
        }
    }

    fn run(&mut self, kernel: &str, at: At) -> Option<Fault> {
        let address = match at {
            Buffer => self.base,
            Inside(offset) => self.base + offset,
            Freed => self.base + 4096,
            Other => self.other,
            Texture => self.texture,
            FreedTexture => self.freed_texture,
            OtherTexture => self.other_texture,
            Surface => self.surface,
            Number(number) => number,
        };
        self.operations += 1;
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: ModuleId(1),
            kernel: kernel.into(),
            grid: Dim3::linear(1),
            block: Dim3::linear(64),
            dynamic_shared: 0,
            params: address.to_le_bytes().to_vec(),
            access: vec![AddressRange { start: DeviceAddress(self.base), bytes: BYTES }],
        };
        self.gpu.enqueue(StreamId(0), OperationId(self.operations), Work::Launch(launch)).unwrap();
        let mut events = Vec::new();
        while self.gpu.poll(FAR, &mut events) != Activity::Idle {}
        let mut ended = None;
        for event in events {
            match event {
                Event::Done { outcome, .. } => ended = Some(outcome),
                Event::Notice { text, .. } => self.notices.push(text),
                _ => {}
            }
        }
        match ended.unwrap() {
            Outcome::Fault(fault) => Some(*fault),
            Outcome::Complete => None,
            Outcome::Cancelled => panic!("nobody cancels"),
        }
    }
}

/// The error that CUDA gives for a kind.
fn cuda(kind: FaultKind) -> &'static str {
    match kind {
        IllegalAddress => "CUDA_ERROR_ILLEGAL_ADDRESS",
        MisalignedAddress => "CUDA_ERROR_MISALIGNED_ADDRESS",
        InvalidAddressSpace => "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        IllegalInstruction => "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        InvalidPc => "CUDA_ERROR_INVALID_PC",
        StackOverflow => "CUDA_ERROR_HARDWARE_STACK_ERROR",
        Assert => "CUDA_ERROR_ASSERT",
        LaunchFailed => "CUDA_ERROR_LAUNCH_FAILED",
    }
}

#[test]
fn the_catalogue_is_the_documents() {
    let document = include_str!("../../../docs/faults.md");
    let mut world = World::new(Timing::Off);
    let mut timed = World::new(Timing::On);
    let mut wanted = Vec::new();
    for (what, kernel, at, kind) in CATALOGUE {
        let fault = world.run(kernel, at).unwrap_or_else(|| panic!("{what}: no fault"));
        assert_eq!(fault.kind, kind, "{what}");
        assert!(fault.position.is_some() && fault.line.is_some(), "{what}: {fault}");
        assert_eq!(
            timed.run(kernel, at).map(|fault| fault.to_string()),
            Some(fault.to_string()),
            "{what}"
        );
        wanted.push(format!("- **{what}** — `{}`\n\n  ```\n  {fault}\n  ```\n", cuda(kind)));
    }
    let begin = "<!-- the catalogue, checked by partita-emu/tests/faults.rs -->\n\n";
    let (_, given) = document.split_once(begin).expect("the document has a catalogue");
    let wanted = wanted.join("\n");
    assert!(given == wanted, "docs/faults.md is out of step; its catalogue must be:\n\n{wanted}");
}

/// What only a GPU does, as a kernel's body, and why it is refused.
const REFUSED: [(&str, &str); 5] = [
    (
        "a sparse product by Blackwell's tensor cores",
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%r0], %d0, %d0, [%r0], %r0, %p0;",
    ),
    (
        "a copy of wide columns by tensor map",
        "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col::w [%d0, {%r0, %r0, %r0}], {%h0, %h0};",
    ),
    (
        "a wait for kernels that a kernel launched",
        "{ .param .b64 a; st.param.b64 [a], %d0; call.uni cudaDeviceSynchronize, (a); }",
    ),
    (
        "a copy of boxes by a kernel",
        "{ .param .b64 a; st.param.b64 [a], %d0; call.uni __cudaCDP2Memcpy3DAsync, (a); }",
    ),
    (
        "a function that nobody defines",
        "{ .param .b64 a; st.param.b64 [a], %d0; call.uni elsewhere, (a); }",
    ),
];

#[test]
fn refusals_are_the_documents() {
    let document = include_str!("../../../docs/faults.md");
    let mut wanted = Vec::new();
    for (what, body) in REFUSED {
        let text = format!(
            ".version 8.6\n.target sm_90a\n.address_size 64\n.extern .func \
             cudaDeviceSynchronize(.param .b64 a);\n\
             .extern .func __cudaCDP2Memcpy3DAsync(.param .b64 a);\n\
             .extern .func elsewhere(.param .b64 a);\n.visible .entry fine() {{ ret; }}\n.visible \
             .entry odd() {{\n\
             .reg .b16 %h<1>; .reg .b32 %r<1>; .reg .pred %p<1>;\n\
             .reg .b64 %d<1>;\n{body}\nret;\n}}\n"
        );
        let mut gpu = EmulatedGpu::new(Spec::named("h200").unwrap(), Options::default());
        gpu.reserve(WindowId(1), BYTES).unwrap();
        gpu.load_module(ModuleId(1), WindowId(1), text.into()).unwrap();
        let mut events = Vec::new();
        gpu.poll(FAR, &mut events);
        let [Event::ModuleLoaded { facts, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(
            facts.kernels.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>(),
            ["fine"]
        );
        let [refused] = &facts.refused[..] else { panic!("{:?}", facts.refused) };
        assert_eq!(refused.name, "odd");
        wanted.push(format!("- **{what}**\n\n  ```\n  {}\n  ```\n", refused.reason()));
    }
    let wanted = wanted.join("\n");
    assert!(
        document.contains(&wanted),
        "docs/faults.md is out of step; its refusals must be:\n\n{wanted}"
    );
}

/// The faults of the catalogue that a GPU does not find: the page is mapped.
const PASSED: [&str; 3] =
    ["a store beyond an allocation", "use after free", "an atomic beyond an allocation"];

#[test]
fn by_default_only_what_a_gpu_finds_is_a_fault() {
    for timing in [Timing::Off, Timing::On] {
        let mut strict = World::new(timing);
        let mut world = World::checked(timing, MemoryCheck::Pages);
        for (what, kernel, at, _) in CATALOGUE {
            let expected = strict.run(kernel, at).map(|fault| fault.to_string());
            let found = world.run(kernel, at).map(|fault| fault.to_string());
            let expected = expected.filter(|_| !PASSED.contains(&what));
            assert_eq!(found, expected, "{what}");
        }
        assert_eq!(strict.gpu.stray_accesses(), 0);
        assert!(world.gpu.stray_accesses() > 0);
    }
}

#[test]
fn what_is_stored_past_an_allocation_is_there_and_told_once() {
    let mut world = World::checked(Timing::On, MemoryCheck::Pages);
    // Thread i stores i at the address and 4 i: the last 16 of 64 beyond the allocation.
    assert_eq!(world.run("store_beyond", Inside(64)), None);
    assert_eq!(world.gpu.stray_accesses(), 16);
    let [text] = &world.notices[..] else { panic!("{:?}", world.notices) };
    for part in ["`store_beyond`", "PTX line 19", "0 bytes beyond the allocation", "memcheck=on"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(world.run("store_beyond", Inside(64)), None);
    assert_eq!((world.gpu.stray_accesses(), world.notices.len()), (32, 1));
    // The neighbour in the page that is allocated afterwards is zero, and what is past it is not.
    let (base, next) = (world.base, world.base + 256);
    let neighbour = AddressRange { start: DeviceAddress(next), bytes: 32 };
    world.gpu.allocate(WindowId(1), neighbour).unwrap();
    let mut words = [1; 32];
    world.gpu.peek(DeviceAddress(next), &mut words).unwrap();
    assert_eq!(words, [0; 32]);
    assert_eq!(world.run("load_and_keep", Number(next + 32)), None);
    world.gpu.peek(DeviceAddress(next), &mut words).unwrap();
    assert_eq!(words[..4], 56_u32.to_le_bytes(), "thread 56 had stored there");
    // Beyond the pages, and in another session's, it is a fault as ever.
    for address in [base + (2 << 20), world.other, world.other + 256, base - 4] {
        let fault = world.run("store_beyond", Number(address)).unwrap();
        assert_eq!(fault.kind, IllegalAddress, "{address:#x}: {fault}");
    }
}

#[test]
fn division_by_zero_is_no_fault() {
    let mut world = World::new(Timing::Off);
    assert_eq!(world.run("divide", Buffer), None);
    let mut words = [0; 8];
    world.gpu.peek(DeviceAddress(world.base), &mut words).unwrap();
    assert_eq!(words, [255, 255, 255, 255, 42, 0, 0, 0]);
}

#[test]
fn an_assertion_names_all_threads_of_the_warp() {
    let mut world = World::new(Timing::Off);
    let fault = world.run("asserted", Buffer).unwrap();
    let assertion = fault.assertion.unwrap();
    let message = assertion.message(Dim3::new(3, 2, 1));
    assert_eq!(message.lines().count(), 32);
    assert_eq!(
        message.lines().nth(4),
        Some("a.cu:7: void f(): block: [3,2,1], thread: [4,0,0] Assertion `a < b` failed.")
    );
}

#[test]
fn who_waits_for_a_thread_at_fault_is_not_to_blame() {
    for timing in [Timing::Off, Timing::On] {
        let mut world = World::new(timing);
        let fault = world.run("wrong_before_barrier", Number(0)).unwrap();
        assert_eq!(fault.kind, IllegalAddress, "{fault}");
        assert_eq!(fault.position.map(|position| position.thread.x), Some(5), "{fault}");
    }
}
