//! A small language for one thread, and how it is written in PTX.
//!
//! The reference interprets these lines; the emulated GPU gets the text. Registers have 32 bits. A
//! line whose text is several PTX instructions (a call, a lock around an addition) is one step of
//! the language.

use std::fmt::Write;

/// Registers `0..DATA` hold what a thread computes with; the rest belongs to the control flow.
pub const DATA: usize = 8;
/// Predicates `0..PREDICATES` are the thread's own.
pub const PREDICATES: usize = 4;
/// Words of local memory of the kernel and of each function.
pub const LOCAL_WORDS: u32 = 4;
/// Words per thread of the output.
pub const OUT_WORDS: usize = 24;
/// Accumulators in shared and in global memory, each with the one operation that reaches it.
pub const ACCUMULATORS: [&str; 6] =
    ["add.u32", "max.u32", "min.s32", "xor.b32", "or.b32", "and.b32"];
/// Words that only whole threads change: one by compare-and-swap, one under a lock.
pub const SWAPPED: usize = ACCUMULATORS.len();
/// See [`SWAPPED`].
pub const LOCKED: usize = SWAPPED + 1;
/// Words of the buffer of global accumulators; the last is the lock.
pub const GLOBAL_WORDS: usize = LOCKED + 2;
/// Parameters of a function: two values, a depth, the lanes that call.
pub const PARAMETERS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub enum Value {
    Register(usize),
    Constant(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alu {
    Move,
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    MinSigned,
    MaxUnsigned,
}

#[derive(Clone, Copy, Debug)]
pub enum Compare {
    Equal,
    NotEqual,
    LessUnsigned,
    GreaterSigned,
}

#[derive(Clone, Copy, Debug)]
pub enum Special {
    TidX,
    TidY,
    TidZ,
    /// Linear index in the CTA.
    Thread,
    Lane,
    /// Linear index of the CTA.
    Cta,
}

#[derive(Clone, Copy, Debug)]
pub enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug)]
pub enum Vote {
    All,
    Any,
    Uniform,
}

#[derive(Clone, Copy, Debug)]
pub enum Reduction {
    Add,
    Min,
    Max,
    Xor,
}

/// What lanes do together. The last operand of each names the members.
#[derive(Clone, Copy, Debug)]
pub enum Together {
    /// Result, validity, value, lane or distance, segment mask.
    Shuffle(Shuffle, usize, usize, usize, Value, u32),
    /// Result, predicate.
    Vote(Vote, usize, usize),
    /// Result, predicate, negated.
    Ballot(usize, usize, bool),
    /// Result, value.
    MatchAny(usize, usize),
    /// Result, whether all, value.
    MatchAll(usize, usize, usize),
    /// Result, value.
    Reduce(Reduction, usize, usize),
    Barrier,
}

#[derive(Clone, Copy, Debug)]
pub enum Barrier {
    /// All threads of the CTA.
    Whole,
    /// All of it, by number and count.
    Counted,
    /// Pairs of warps, each with a barrier of its own: register of the number, register of the
    /// count.
    Pair(usize, usize),
    /// Result, predicate.
    Count(usize, usize),
    /// Predicate, predicate.
    And(usize, usize),
    /// Predicate, predicate.
    Or(usize, usize),
}

#[derive(Clone, Debug)]
pub enum Op {
    Label(usize),
    Alu(Alu, usize, Value, Value),
    Set(Compare, usize, Value, Value),
    Select(usize, usize, usize, usize),
    Special(usize, Special),
    /// A word of local memory, by the low bits of a register.
    LocalLoad(usize, usize),
    LocalStore(usize, usize),
    /// The word of shared memory that belongs to the thread so many places further on, from its
    /// own.
    SharedLoad(usize, u32),
    /// The thread's own word.
    SharedStore(usize),
    /// Writes an accumulator of shared memory.
    SharedSet(usize, usize),
    /// Adds to an accumulator of shared memory.
    SharedReduce(usize, usize),
    /// Adds to one of global memory; with a result that nobody uses where the flag is set.
    GlobalReduce(usize, usize, bool),
    SwapAdd(usize),
    LockedAdd(usize),
    Parameter(usize, usize),
    Jump(usize),
    Table(usize, Vec<usize>),
    /// Function, arguments, result.
    Call(usize, [usize; PARAMETERS], usize),
    /// The function that a register counts, among those that take pointers.
    CallPointer(usize, Vec<usize>, [usize; PARAMETERS], usize),
    /// From a function, with a result.
    Return(usize),
    Together(Together, usize),
    Barrier(Barrier),
    /// Writes a register to a word of the thread's output.
    Out(u32, usize),
    /// Writes a predicate there.
    OutPredicate(u32, usize),
    /// Writes a shared accumulator there.
    OutShared(u32, usize),
    Exit,
    /// The same, spelt `ret`.
    ExitByReturn,
}

#[derive(Clone, Debug)]
pub struct Line {
    /// Predicate, and whether it is negated.
    pub guard: Option<(usize, bool)>,
    pub op: Op,
}

#[derive(Clone, Debug, Default)]
pub struct Function {
    pub lines: Vec<Line>,
    pub registers: usize,
    pub predicates: usize,
}

#[derive(Clone, Debug)]
pub struct Program {
    /// The first is the kernel.
    pub functions: Vec<Function>,
    pub block: [u32; 3],
    pub grid: [u32; 3],
}

impl Program {
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    pub fn ctas(&self) -> u32 {
        self.grid.iter().product()
    }

    /// The module. The kernel is `k(out, accumulators)`.
    pub fn text(&self) -> String {
        let mut text = ".version 8.3\n.target sm_90\n.address_size 64\n".to_owned();
        let threads = self.threads();
        let accumulators = ACCUMULATORS.len();
        writeln!(
            text,
            ".shared .align 4 .b32 own[{threads}];\n.shared .align 4 .b32 acc[{accumulators}];"
        )
        .unwrap();
        let head = |index: usize| {
            let params: Vec<String> =
                (0..PARAMETERS).map(|at| format!(".param .b32 a{at}")).collect();
            format!(".func (.param .b32 res) f{index}({}, .param .b64 globals)", params.join(", "))
        };
        for index in 1..self.functions.len() {
            writeln!(text, "{};", head(index)).unwrap();
        }
        for (index, function) in self.functions.iter().enumerate() {
            let head = match index {
                0 => ".visible .entry k(.param .u64 outs, .param .u64 globals)".to_owned(),
                _ => head(index),
            };
            writeln!(text, "{head}\n{{").unwrap();
            writeln!(
                text,
                "\t.reg .b32 %r<{}>, %t<8>;\n\t.reg .b64 %d<8>;",
                function.registers.max(1)
            )
            .unwrap();
            writeln!(text, "\t.reg .pred %p<{}>, %q<2>;", function.predicates.max(1)).unwrap();
            writeln!(text, "\t.local .align 4 .b32 loc{index}[{LOCAL_WORDS}];").unwrap();
            writeln!(text, "\tld.param.u64 %d0, [globals];\n\tmov.u64 %d1, loc{index};").unwrap();
            writeln!(
                text,
                "\tmov.u32 %t0, %tid.z;\n\tmov.u32 %t1, %ntid.y;\n\tmov.u32 %t2, %tid.y;"
            )
            .unwrap();
            writeln!(text, "\tmad.lo.u32 %t0, %t0, %t1, %t2;\n\tmov.u32 %t1, %ntid.x;").unwrap();
            writeln!(text, "\tmov.u32 %t2, %tid.x;\n\tmad.lo.u32 %t0, %t0, %t1, %t2;").unwrap();
            writeln!(
                text,
                "\tmov.u32 %t1, %ctaid.z;\n\tmov.u32 %t2, %nctaid.y;\n\tmov.u32 %t3, %ctaid.y;"
            )
            .unwrap();
            writeln!(text, "\tmad.lo.u32 %t1, %t1, %t2, %t3;\n\tmov.u32 %t2, %nctaid.x;").unwrap();
            writeln!(text, "\tmov.u32 %t3, %ctaid.x;\n\tmad.lo.u32 %t1, %t1, %t2, %t3;").unwrap();
            writeln!(text, "\tmov.u32 %t2, own;\n\tmad.lo.u32 %t2, %t0, 4, %t2;").unwrap();
            if index == 0 {
                let bytes = 4 * OUT_WORDS;
                writeln!(
                    text,
                    "\tld.param.u64 %d2, [outs];\n\tmad.lo.u32 %t3, %t1, {threads}, %t0;"
                )
                .unwrap();
                writeln!(text, "\tmul.wide.u32 %d3, %t3, {bytes};\n\tadd.u64 %d2, %d2, %d3;")
                    .unwrap();
            }
            for (at, line) in function.lines.iter().enumerate() {
                self.write(&mut text, index, at, line);
            }
            text += "}\n";
        }
        text
    }

    /// `%t0` is the thread, `%t1` the CTA, `%t2` the thread's own word of shared memory; `%d0` the
    /// global accumulators, `%d1` local memory, `%d2` the thread's output.
    fn write(&self, text: &mut String, function: usize, at: usize, line: &Line) {
        let guard = match line.guard {
            None => String::new(),
            Some((p, negated)) => format!("@{}%p{p} ", if negated { "!" } else { "" }),
        };
        let value = |value: Value| match value {
            Value::Register(r) => format!("%r{r}"),
            Value::Constant(bits) => bits.to_string(),
        };
        let mut put = |instruction: String| writeln!(text, "\t{guard}{instruction};").unwrap();
        match line.op {
            Op::Label(label) => writeln!(text, "L{label}:").unwrap(),
            Op::Alu(Alu::Move, d, a, _) => put(format!("mov.u32 %r{d}, {}", value(a))),
            Op::Alu(alu, d, a, b) => {
                let name = match alu {
                    Alu::Move | Alu::Add => "add.u32",
                    Alu::Sub => "sub.u32",
                    Alu::Mul => "mul.lo.u32",
                    Alu::And => "and.b32",
                    Alu::Or => "or.b32",
                    Alu::Xor => "xor.b32",
                    Alu::ShiftLeft => "shl.b32",
                    Alu::ShiftRight => "shr.u32",
                    Alu::MinSigned => "min.s32",
                    Alu::MaxUnsigned => "max.u32",
                };
                put(format!("{name} %r{d}, {}, {}", value(a), value(b)));
            }
            Op::Set(compare, p, a, b) => {
                let name = match compare {
                    Compare::Equal => "eq.u32",
                    Compare::NotEqual => "ne.u32",
                    Compare::LessUnsigned => "lt.u32",
                    Compare::GreaterSigned => "gt.s32",
                };
                put(format!("setp.{name} %p{p}, {}, {}", value(a), value(b)));
            }
            Op::Select(d, a, b, p) => put(format!("selp.b32 %r{d}, %r{a}, %r{b}, %p{p}")),
            Op::Special(d, special) => {
                let name = match special {
                    Special::TidX => "%tid.x",
                    Special::TidY => "%tid.y",
                    Special::TidZ => "%tid.z",
                    Special::Thread => "%t0",
                    Special::Lane => "%laneid",
                    Special::Cta => "%t1",
                };
                put(format!("mov.u32 %r{d}, {name}"));
            }
            Op::LocalLoad(value, index) | Op::LocalStore(value, index) => {
                put(format!("and.b32 %t3, %r{index}, {}", LOCAL_WORDS - 1));
                put("mul.wide.u32 %d3, %t3, 4".to_owned());
                put("add.u64 %d3, %d3, %d1".to_owned());
                put(match line.op {
                    Op::LocalLoad(..) => format!("ld.local.u32 %r{value}, [%d3]"),
                    _ => format!("st.local.u32 [%d3], %r{value}"),
                });
            }
            Op::SharedLoad(d, distance) => {
                put(format!("add.u32 %t3, %t0, {distance}"));
                put(format!("rem.u32 %t3, %t3, {}", self.threads()));
                put("mov.u32 %t4, own".to_owned());
                put("mad.lo.u32 %t4, %t3, 4, %t4".to_owned());
                put(format!("ld.shared.u32 %r{d}, [%t4]"));
            }
            Op::SharedStore(value) => put(format!("st.shared.u32 [%t2], %r{value}")),
            Op::SharedSet(which, value) => {
                put(format!("st.shared.u32 [acc+{}], %r{value}", 4 * which))
            }
            Op::SharedReduce(which, value) => {
                put(format!("red.shared.{} [acc+{}], %r{value}", ACCUMULATORS[which], 4 * which));
            }
            Op::GlobalReduce(which, value, result) => {
                let (name, target) = if result { ("atom", "%t5, ") } else { ("red", "") };
                put(format!(
                    "{name}.global.{} {target}[%d0+{}], %r{value}",
                    ACCUMULATORS[which],
                    4 * which
                ));
            }
            Op::SwapAdd(value) => {
                let (again, over) = (format!("S{function}_{at}"), format!("T{function}_{at}"));
                if let Some((p, negated)) = line.guard {
                    writeln!(text, "\t@{}%p{p} bra {over};", if negated { "" } else { "!" })
                        .unwrap();
                }
                let word = 4 * SWAPPED;
                writeln!(text, "\tld.volatile.global.u32 %t3, [%d0+{word}];\n{again}:").unwrap();
                writeln!(text, "\tadd.u32 %t4, %t3, %r{value};").unwrap();
                writeln!(text, "\tatom.global.cas.b32 %t5, [%d0+{word}], %t3, %t4;").unwrap();
                writeln!(text, "\tsetp.ne.u32 %q0, %t5, %t3;\n\tmov.u32 %t3, %t5;").unwrap();
                writeln!(text, "\t@%q0 bra {again};\n{over}:").unwrap();
            }
            Op::LockedAdd(value) => {
                let (again, over) = (format!("S{function}_{at}"), format!("T{function}_{at}"));
                if let Some((p, negated)) = line.guard {
                    writeln!(text, "\t@{}%p{p} bra {over};", if negated { "" } else { "!" })
                        .unwrap();
                }
                let (word, lock) = (4 * LOCKED, 4 * (GLOBAL_WORDS - 1));
                writeln!(
                    text,
                    "{again}:\n\tatom.global.acquire.gpu.cas.b32 %t5, [%d0+{lock}], 0, 1;"
                )
                .unwrap();
                writeln!(text, "\tsetp.ne.u32 %q0, %t5, 0;\n\t@%q0 bra {again};").unwrap();
                writeln!(
                    text,
                    "\tld.global.u32 %t3, [%d0+{word}];\n\tadd.u32 %t3, %t3, %r{value};"
                )
                .unwrap();
                writeln!(text, "\tst.global.u32 [%d0+{word}], %t3;").unwrap();
                writeln!(text, "\tatom.global.release.gpu.exch.b32 %t5, [%d0+{lock}], 0;\n{over}:")
                    .unwrap();
            }
            Op::Parameter(d, which) => put(format!("ld.param.u32 %r{d}, [a{which}]")),
            Op::Jump(label) => put(format!("bra L{label}")),
            Op::Table(index, ref labels) => {
                let names: Vec<String> = labels.iter().map(|label| format!("L{label}")).collect();
                let table = format!("B{function}_{at}");
                writeln!(text, "{table}: .branchtargets {};", names.join(", ")).unwrap();
                writeln!(text, "\t{guard}brx.idx %r{index}, {table};").unwrap();
            }
            Op::Call(callee, arguments, result) => {
                Self::write_call(text, &guard, &format!("f{callee}"), "", arguments, result);
            }
            Op::CallPointer(index, ref callees, arguments, result) => {
                let shape = format!("Q{function}_{at}");
                let params = [".param .b32 _"; PARAMETERS].join(", ");
                writeln!(
                    text,
                    "{shape}: .callprototype (.param .b32 _) _ ({params}, .param .b64 _);"
                )
                .unwrap();
                writeln!(text, "\tmov.u64 %d3, f{};", callees[0]).unwrap();
                for (number, callee) in callees.iter().enumerate().skip(1) {
                    writeln!(text, "\tsetp.eq.u32 %q0, %r{index}, {number};").unwrap();
                    writeln!(text, "\tmov.u64 %d4, f{callee};\n\tselp.b64 %d3, %d4, %d3, %q0;")
                        .unwrap();
                }
                Self::write_call(text, &guard, "%d3", &format!(", {shape}"), arguments, result);
            }
            Op::Return(value) => {
                put(format!("st.param.b32 [res], %r{value}"));
                put("ret".to_owned());
            }
            Op::Together(together, members) => put(match together {
                Together::Shuffle(kind, d, p, a, b, segments) => {
                    let (name, clamp) = match kind {
                        Shuffle::Up => ("up", 0),
                        Shuffle::Down => ("down", 31),
                        Shuffle::Butterfly => ("bfly", 31),
                        Shuffle::Index => ("idx", 31),
                    };
                    let c = segments << 8 | clamp;
                    format!(
                        "shfl.sync.{name}.b32 %r{d}|%p{p}, %r{a}, {}, {c}, %r{members}",
                        value(b)
                    )
                }
                Together::Vote(kind, d, p) => {
                    let name = match kind {
                        Vote::All => "all",
                        Vote::Any => "any",
                        Vote::Uniform => "uni",
                    };
                    format!("vote.sync.{name}.pred %p{d}, %p{p}, %r{members}")
                }
                Together::Ballot(d, p, negated) => {
                    format!(
                        "vote.sync.ballot.b32 %r{d}, {}%p{p}, %r{members}",
                        if negated { "!" } else { "" }
                    )
                }
                Together::MatchAny(d, a) => format!("match.any.sync.b32 %r{d}, %r{a}, %r{members}"),
                Together::MatchAll(d, p, a) => {
                    format!("match.all.sync.b32 %r{d}|%p{p}, %r{a}, %r{members}")
                }
                Together::Reduce(kind, d, a) => {
                    let name = match kind {
                        Reduction::Add => "add.u32",
                        Reduction::Min => "min.s32",
                        Reduction::Max => "max.u32",
                        Reduction::Xor => "xor.b32",
                    };
                    format!("redux.sync.{name} %r{d}, %r{a}, %r{members}")
                }
                Together::Barrier => format!("bar.warp.sync %r{members}"),
            }),
            Op::Barrier(barrier) => put(match barrier {
                Barrier::Whole => "bar.sync 0".to_owned(),
                Barrier::Counted => {
                    format!("barrier.sync.aligned 1, {}", self.threads().next_multiple_of(32))
                }
                Barrier::Pair(id, count) => format!("barrier.sync %r{id}, %r{count}"),
                Barrier::Count(d, p) => format!("barrier.red.popc.aligned.u32 %r{d}, 0, %p{p}"),
                Barrier::And(d, p) => format!("barrier.red.and.pred %p{d}, 0, %p{p}"),
                Barrier::Or(d, p) => format!("barrier.red.or.pred %p{d}, 0, %p{p}"),
            }),
            Op::Out(word, value) => put(format!("st.global.u32 [%d2+{}], %r{value}", 4 * word)),
            Op::OutPredicate(word, p) => {
                put(format!("selp.b32 %t3, 1, 0, %p{p}"));
                put(format!("st.global.u32 [%d2+{}], %t3", 4 * word));
            }
            Op::OutShared(word, which) => {
                put(format!("ld.shared.u32 %t3, [acc+{}]", 4 * which));
                put(format!("st.global.u32 [%d2+{}], %t3", 4 * word));
            }
            Op::Exit => put("exit".to_owned()),
            Op::ExitByReturn => put("ret".to_owned()),
        }
    }

    fn write_call(
        text: &mut String,
        guard: &str,
        callee: &str,
        shape: &str,
        arguments: [usize; PARAMETERS],
        result: usize,
    ) {
        text.push_str("\t{\n");
        for (at, argument) in arguments.iter().enumerate() {
            writeln!(text, "\t.param .b32 c{at};\n\tst.param.b32 [c{at}], %r{argument};").unwrap();
        }
        writeln!(text, "\t.param .b64 cg;\n\tst.param.b64 [cg], %d0;\n\t.param .b32 cr;").unwrap();
        let names: Vec<String> = (0..PARAMETERS).map(|at| format!("c{at}")).collect();
        writeln!(text, "\t{guard}call (cr), {callee}, ({}, cg){shape};", names.join(", ")).unwrap();
        writeln!(text, "\t{guard}ld.param.b32 %r{result}, [cr];\n\t}}").unwrap();
    }
}
