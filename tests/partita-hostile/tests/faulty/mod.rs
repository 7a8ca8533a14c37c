//! Random kernels that do something wrong, as PTX text.
//!
//! A seed decides a kernel: one to three faults, the threads that commit them, and what surrounds
//! them (a loop, a function, a predicate, barriers). The rest of the kernel is right. Its
//! parameters are the address of [`BYTES`] bytes, and a number that is zero in every launch and
//! that no analysis knows.

mod acts;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::fmt::Write as _;

/// Bytes of the memory that a kernel gets.
pub const BYTES: u64 = 64 << 10;

/// A kernel and its launch.
pub struct Faulty {
    /// The module's text. Its kernel is `faulty`.
    pub ptx: String,
    /// The names of its faults.
    pub faults: Vec<&'static str>,
    /// CUDA's errors that its program may get.
    pub errors: Vec<u32>,
    pub ctas: u32,
    pub threads: u32,
    pub dynamic_shared: u32,
}

/// The choices of a seed.
pub struct Random(SplitMix64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(SplitMix64::seed_from_u64(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn one_of<T: Copy>(&mut self, things: &[T]) -> T {
        things[usize::try_from(self.below(things.len() as u64)).expect("an index")]
    }
}

/// The text of a fault, and what it needs beside.
pub struct Act {
    pub name: &'static str,
    /// CUDA's errors that its program may get.
    pub errors: &'static [u32],
    pub text: String,
    /// Declarations of the module.
    pub outside: String,
}

/// The kernel of a seed; with a name of [`acts::NAMES`] its faults are of this kind.
pub fn kernel(seed: u64, only: Option<&str>) -> Faulty {
    let mut random = Random::new(seed);
    let count = random.one_of(&[1, 1, 1, 2, 3]);
    let acts: Vec<Act> = (0..count).map(|index| acts::act(&mut random, index, only)).collect();
    let (mut body, mut outside, mut functions) = (String::new(), String::new(), String::new());
    for (index, act) in acts.iter().enumerate() {
        outside += &act.outside;
        let guarded = guarded(&mut random, index, &act.text);
        // Local arrays and labels of a function are its own.
        if random.is(4) && !act.text.contains("%own") {
            write!(
                functions,
                ".func wrong{index}(.reg .b64 %data, .reg .b32 %zero)\n{{\n{DECLARATIONS}\
                 {PLACES}{guarded}\tret;\n}}\n"
            )
            .expect("a string takes everything");
            writeln!(body, "\tcall wrong{index}, (%data, %zero);").expect("as above");
        } else {
            body += &guarded;
        }
    }
    let work = random.one_of(&[WORK, WORK_WITH_BARRIERS, TICKET_WORK]);
    let (before, behind) = if random.is(2) { (work, "") } else { ("", work) };
    let ptx = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, \
         .param .b64 e);\n\
         .global .align 8 .b8 words[64];\n.const .align 16 .b8 table[64];\n\
         .extern .shared .align 16 .b8 dynamic[];\n\
         {outside}{functions}\
         .visible .entry faulty(.param .u64 to, .param .u32 none)\n{{\n{DECLARATIONS}\
         \t.reg .b64 %data;\n\t.reg .b32 %zero;\n\
         \tld.param.u64 %data, [to];\n\tld.param.u32 %zero, [none];\n{PLACES}{before}{body}{behind}\
         \tret;\n}}\n"
    );
    Faulty {
        ptx,
        faults: acts.iter().map(|act| act.name).collect(),
        errors: acts.iter().flat_map(|act| act.errors).copied().collect(),
        ctas: random.one_of(&[1, 2, 7, 64, 300]),
        threads: random.one_of(&[32, 64, 96, 256]),
        dynamic_shared: random.one_of(&[0, 0, 64, 1024, 20_000]),
    }
}

/// What every body declares. Arrays are as small as a fault likes.
const DECLARATIONS: &str = "\
	.reg .pred %p<8>;
	.reg .b16 %h<8>;
	.reg .b32 %r<32>, %w, %v, %u, %s;
	.reg .f32 %f<8>;
	.reg .b64 %d<32>, %x, %y, %a, %b;
	.local .align 16 .b8 stack[64];
	.shared .align 16 .b8 tile[1024];
";

/// The thread's number in its grid (`%r1`) and in its CTA (`%r2`), and its own word (`%d2`).
const PLACES: &str = "\
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mad.lo.s32 %r1, %r3, %r4, %r2;
	and.b32 %r5, %r1, 4095;
	mul.wide.u32 %d1, %r5, 4;
	add.s64 %d2, %data, %d1;
";

const WORK: &str = "\
	ld.global.u32 %r6, [%d2];
	add.u32 %r6, %r6, 3;
	st.global.u32 [%d2], %r6;
";

const WORK_WITH_BARRIERS: &str = "\
	shl.b32 %r7, %r2, 2;
	mov.u32 %r8, tile;
	add.u32 %r8, %r8, %r7;
	st.shared.u32 [%r8], %r1;
	bar.sync 0;
	ld.shared.u32 %r6, [%r8];
	st.global.u32 [%d2], %r6;
	bar.sync 0;
";

/// A kernel with `bar.arrive` runs as tickets.
const TICKET_WORK: &str = "\
	mov.u32 %r9, %warpid;
	setp.ne.u32 %p7, %r9, 0;
	@%p7 bar.arrive 1, %r4;
	@!%p7 bar.sync 1, %r4;
	st.global.u32 [%d2], %r1;
";

/// The fault where some threads come by.
fn guarded(random: &mut Random, index: usize, text: &str) -> String {
    // Seeds mean what they did when lanes that wait for lanes elsewhere were not contained. Lanes
    // that have exited are not awaited.
    let of_warps = [".sync.aligned", ".popc.aligned", "bar.sync %w, %v", "bar.red."];
    let is_of_warps = of_warps.iter().any(|sync| text.contains(sync));
    let kinds = if is_of_warps { [0, 5, 3, 4, 4] } else { [0, 1, 2, 3, 4] };
    match random.one_of(&kinds) {
        0 => text.to_owned(),
        1 => {
            let thread = random.one_of(&[0, 1, 31, 33]);
            format!(
                "\tsetp.ne.u32 %p0, %r2, {thread};\n\t@%p0 bra $PAST{index};\n{text}$PAST{index}:\n"
            )
        }
        2 => format!(
            "\tand.b32 %r10, %r1, 3;\n\tsetp.eq.u32 %p0, %r10, 0;\n\t@%p0 bra $PAST{index};\n\
             {text}$PAST{index}:\n"
        ),
        3 => {
            let rounds = random.one_of(&[1, 5, 200]);
            format!(
                "\tmov.u32 %r11, 0;\n$ROUND{index}:\n\tadd.u32 %r11, %r11, 1;\n\
                 \tsetp.lt.u32 %p1, %r11, {rounds};\n\t@%p1 bra $ROUND{index};\n{text}"
            )
        }
        5 => {
            let thread = random.one_of(&[0, 1, 31, 33]);
            format!("\tsetp.ne.u32 %p0, %r2, {thread};\n\t@%p0 exit;\n{text}")
        }
        _ => {
            let rounds = random.one_of(&[1, 3, 9]);
            format!(
                "\tmov.u32 %r11, 0;\n$ROUND{index}:\n{text}\tadd.u32 %r11, %r11, 1;\n\
                 \tsetp.lt.u32 %p1, %r11, {rounds};\n\t@%p1 bra $ROUND{index};\n"
            )
        }
    }
}
