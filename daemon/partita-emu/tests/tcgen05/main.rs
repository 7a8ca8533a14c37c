//! Tensor memory and the fifth generation of tensor cores, against plain computations on the host.
//!
//! Each case fills tensor memory with `tcgen05.st`, executes instructions in one thread, waits by
//! `tcgen05.commit`, and reads all of tensor memory back with `tcgen05.ld`. Every word counts, also
//! the words that an instruction must leave alone.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::float_cmp, reason = "all sums are exact")]
#![expect(clippy::cast_possible_truncation, reason = "small whole numbers in every type")]

mod columns;
mod forms;
mod moves;
mod numbers;
mod products;
mod timing;

use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use std::fmt::Write;

/// Bytes of shared memory that a case fills.
const IMAGE: usize = 48 << 10;
/// Lanes and columns of tensor memory.
const ROWS: usize = 128;
const COLUMNS: usize = 512;
/// Words of tensor memory.
const WORDS: usize = ROWS * COLUMNS;

/// What a CTA has, and what it does.
struct Case {
    /// Shared memory of each CTA.
    images: Vec<Vec<u8>>,
    /// Tensor memory of each CTA.
    before: Vec<Vec<u32>>,
    /// Instructions of the first thread of the first CTA. `%r5` has the address of tensor memory.
    body: String,
    /// Whether all threads execute them.
    by_all: bool,
}

/// Words that differ from each other.
fn filling(seed: u32) -> Vec<u32> {
    (0..WORDS as u32).map(|at| (at ^ seed << 20).wrapping_mul(0x9e37_79b1)).collect()
}

impl Case {
    fn new(ctas: usize, body: String) -> Self {
        Case {
            images: vec![vec![0; IMAGE]; ctas],
            before: (0..ctas).map(|cta| filling(cta as u32 + 1)).collect(),
            body,
            by_all: false,
        }
    }

    fn kernel(&self) -> String {
        let pair = self.images.len() == 2;
        let group = if pair { "cta_group::2" } else { "cta_group::1" };
        let together = if pair {
            "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
        } else {
            "bar.sync 0;\n"
        };
        let mut text = ".version 8.7\n.target sm_100a\n.address_size 64\n\
            .extern .shared .align 1024 .b8 rows[];\n\
            .visible .entry test(.param .u64 p0, .param .u64 p1, .param .u64 p2)\n"
            .to_owned();
        if pair {
            text += ".explicitcluster\n.reqnctapercluster 2\n";
        }
        text += "{\n.reg .b32 %r<32>; .reg .b32 %c<128>; .reg .b64 %d<24>; .reg .pred %p<8>;\n\
            .reg .b16 %h<1>;\n\
            .shared .align 8 .b64 bar; .shared .align 4 .b32 place;\n\
            mov.u32 %r0, %tid.x;\n\
            ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; ld.param.u64 %d2, [p2];\n";
        let rank = if pair { "%cluster_ctarank" } else { "0" };
        writeln!(text, "mov.u32 %r10, {rank};").unwrap();
        writeln!(text, "mul.wide.u32 %d4, %r10, {IMAGE}; add.u64 %d0, %d0, %d4;").unwrap();
        writeln!(text, "mul.wide.u32 %d4, %r10, {};", 4 * WORDS).unwrap();
        text += "add.u64 %d1, %d1, %d4; add.u64 %d2, %d2, %d4;\n";
        text += "mul.wide.u32 %d4, %r0, 16; add.u64 %d0, %d0, %d4; mov.u32 %r1, rows;\n\
            mov.u32 %r2, rows; shl.b32 %r3, %r0, 4; add.u32 %r1, %r1, %r3;\n";
        writeln!(text, "add.u32 %r2, %r2, {IMAGE};").unwrap();
        text += "more:\nld.global.v4.b32 {%c0, %c1, %c2, %c3}, [%d0];\n\
            st.shared.v4.b32 [%r1], {%c0, %c1, %c2, %c3};\n\
            add.u32 %r1, %r1, 2048; add.u64 %d0, %d0, 2048;\n\
            setp.lt.u32 %p0, %r1, %r2; @%p0 bra more;\n\
            shr.u32 %r11, %r0, 5; setp.ne.u32 %p0, %r11, 0; mov.u32 %r3, place;\n\
            @%p0 bra past;\n";
        writeln!(text, "tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [%r3], 512;").unwrap();
        writeln!(text, "tcgen05.relinquish_alloc_permit.{group}.sync.aligned;").unwrap();
        text += "past:\nsetp.eq.u32 %p1, %r0, 0; mov.u32 %r4, bar;\n\
            @%p1 mbarrier.init.shared.b64 [%r4], 1;\n\
            fence.proxy.async; bar.sync 0;\n\
            ld.shared.b32 %r5, [place]; shl.b32 %r6, %r11, 21; add.u32 %r7, %r5, %r6;\n\
            mul.wide.u32 %d4, %r0, 2048; add.u64 %d1, %d1, %d4; add.u64 %d2, %d2, %d4;\n";
        let registers: Vec<String> = (0..32).map(|at| format!("%c{at}")).collect();
        let all = registers.join(", ");
        for first in (0..COLUMNS).step_by(32) {
            for (at, four) in registers.chunks(4).enumerate() {
                let (four, at) = (four.join(", "), 4 * (first + 4 * at));
                writeln!(text, "ld.global.v4.b32 {{{four}}}, [%d1+{at}];").unwrap();
            }
            writeln!(text, "tcgen05.st.sync.aligned.32x32b.x32.b32 [%r7+{first}], {{{all}}};")
                .unwrap();
        }
        text += "tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;\n";
        text += together;
        text += "tcgen05.fence::after_thread_sync;\n";
        if !self.by_all {
            text += "setp.ne.u32 %p2, %r10, 0; setp.ne.u32 %p3, %r0, 0; or.pred %p2, %p2, %p3;\n\
                @%p2 bra wait;\n";
        }
        text += &self.body;
        if self.by_all {
            text += "bar.sync 0;\n@!%p1 bra wait;\n";
        }
        text += "mov.b16 %h0, 3; tcgen05.commit.";
        text += group;
        text += ".mbarrier::arrive::one.shared::cluster";
        text += if pair { ".multicast::cluster.b64 [%r4], %h0;\n" } else { ".b64 [%r4];\n" };
        text += "wait:\nmbarrier.try_wait.parity.shared.b64 %p0, [%r4], 0; @!%p0 bra wait;\n\
            tcgen05.fence::after_thread_sync;\n";
        for first in (0..COLUMNS).step_by(32) {
            writeln!(text, "tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{all}}}, [%r7+{first}];")
                .unwrap();
            text += "tcgen05.wait::ld.sync.aligned;\n";
            for (at, four) in registers.chunks(4).enumerate() {
                let (four, at) = (four.join(", "), 4 * (first + 4 * at));
                writeln!(text, "st.global.v4.b32 [%d2+{at}], {{{four}}};").unwrap();
            }
        }
        text += "tcgen05.fence::before_thread_sync;\n";
        text += together;
        text += "setp.ne.u32 %p0, %r11, 0; @%p0 bra end;\n";
        writeln!(text, "tcgen05.dealloc.{group}.sync.aligned.b32 %r5, 512;").unwrap();
        text + "end:\nret;\n}\n"
    }

    /// Executes, and returns the tensor memory of each CTA.
    fn run(&self) -> Vec<Vec<u32>> {
        self.run_with(Timing::Off)
    }

    fn run_with(&self, timing: Timing) -> Vec<Vec<u32>> {
        self.run_as(Form::Original, timing)
    }

    fn run_as(&self, form: Form, timing: Timing) -> Vec<Vec<u32>> {
        let words = |all: &[Vec<u32>]| -> Vec<u8> {
            all.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
        };
        let before = words(&self.before);
        let ptx = self.kernel();
        if let Ok(folder) = std::env::var("PARTITA_TEST_PTX") {
            let name = format!("{folder}/{:016x}.ptx", hash(&ptx));
            std::fs::write(name, &ptx).unwrap();
        }
        let job = Run {
            ptx: ptx.into(),
            kernel: "test".to_owned(),
            grid: Dim3::linear(self.images.len() as u32),
            block: Dim3::linear(ROWS as u32),
            dynamic_shared: IMAGE as u32,
            arguments: [self.images.concat(), before.clone(), vec![0; before.len()]]
                .map(Argument::Buffer)
                .into(),
            form,
            spec: Spec::named("b200").unwrap(),
            options: Options { timing, seed: 1, ..Options::default() },
        };
        let found = run(&job).unwrap_or_else(|error| panic!("{error}\n{}", self.body));
        let words = found.buffers[2].as_chunks::<4>().0.iter().copied().map(u32::from_le_bytes);
        words.collect::<Vec<u32>>().chunks(WORDS).map(<[u32]>::to_vec).collect()
    }

    /// The fault or refusal.
    fn error(&self) -> String {
        self.error_as(Form::Original)
    }

    fn error_as(&self, form: Form) -> String {
        let job = Run {
            ptx: self.kernel().into(),
            kernel: "test".to_owned(),
            grid: Dim3::linear(self.images.len() as u32),
            block: Dim3::linear(ROWS as u32),
            dynamic_shared: IMAGE as u32,
            arguments: [self.images.concat(), vec![0; 8 * WORDS], vec![0; 8 * WORDS]]
                .map(Argument::Buffer)
                .into(),
            form,
            spec: Spec::named("b200").unwrap(),
            options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
        };
        run(&job).map(|_| ()).unwrap_err().to_string()
    }
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Compares all words. Returns their number.
fn compare(what: &dyn std::fmt::Debug, found: &[Vec<u32>], wanted: &[Vec<u32>]) -> usize {
    for (cta, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let (row, column) = (at / COLUMNS, at % COLUMNS);
            assert!(
                found == wanted,
                "{what:?}: CTA {cta}, lane {row}, column {column}: {found:#x} for {wanted:#x}"
            );
        }
    }
    found.len() * WORDS
}
