//! The layouts of control blocks and count blocks are stated twice, because the compiler depends on
//! nothing of ours. The two are equal.

use partita_model::control as engine;
use partita_ptx::control as compiler;

#[test]
fn engine_and_compiler_agree() {
    for (name, engine, compiler) in [
        ("next", engine::NEXT, compiler::NEXT),
        ("helped", engine::HELPED, compiler::HELPED),
        ("exhausted", engine::EXHAUSTED, compiler::EXHAUSTED),
        ("completed", engine::COMPLETED, compiler::COMPLETED),
        ("departed", engine::DEPARTED, compiler::DEPARTED),
        ("idle", engine::IDLE, compiler::IDLE),
        ("total", engine::TOTAL, compiler::TOTAL),
        ("main ctas", engine::MAIN_CTAS, compiler::MAIN_CTAS),
        ("static", engine::STATIC, compiler::STATIC),
        ("grid x", engine::GRID_X, compiler::GRID_X),
        ("grid y", engine::GRID_Y, compiler::GRID_Y),
        ("grid z", engine::GRID_Z, compiler::GRID_Z),
        ("shift", engine::SHIFT, compiler::SHIFT),
        ("first", engine::FIRST, compiler::FIRST),
        ("stride", engine::STRIDE, compiler::STRIDE),
        ("counts", engine::COUNTS, compiler::COUNTS),
        ("fault", engine::FAULT, compiler::FAULT),
        ("fault to", engine::FAULT_TO, compiler::FAULT_TO),
        ("abort", engine::ABORT, compiler::ABORT),
        ("retired", engine::RETIRED, compiler::RETIRED),
        ("quota", engine::QUOTA, compiler::QUOTA),
        ("slots", engine::SLOTS, compiler::SLOTS),
        ("slot bytes", engine::SLOT_BYTES, compiler::SLOT_BYTES),
        ("slot registered", engine::SLOT_REGISTERED, compiler::SLOT_REGISTERED),
        ("slot gate", engine::SLOT_GATE, compiler::SLOT_GATE),
        ("slot left", engine::SLOT_LEFT, compiler::SLOT_LEFT),
        ("slot returned", engine::SLOT_RETURNED, compiler::SLOT_RETURNED),
        ("a helper's greatest number", (*engine::HELPERS.end()).into(), compiler::NUMBER),
    ] {
        assert_eq!(engine, compiler, "{name}");
    }
}

#[test]
fn they_agree_on_count_blocks_too() {
    use partita_model::profile as engine;
    use partita_ptx::count as compiler;
    for (name, engine, compiler) in [
        ("warp instructions", engine::WARP_INSTRUCTIONS, compiler::WARP_INSTRUCTIONS),
        ("thread instructions", engine::THREAD_INSTRUCTIONS, compiler::THREAD_INSTRUCTIONS),
        ("loads", engine::GLOBAL_LOADS, compiler::GLOBAL_LOADS),
        ("stores", engine::GLOBAL_STORES, compiler::GLOBAL_STORES),
        ("atomics", engine::ATOMICS, compiler::ATOMICS),
        ("sectors", engine::GLOBAL_SECTORS, compiler::GLOBAL_SECTORS),
        ("sectors past L1", engine::PAST_SECTORS, compiler::PAST_SECTORS),
        ("recorded", engine::RECORDED, compiler::RECORDED),
        ("capacity", engine::CAPACITY, compiler::CAPACITY),
        ("period", engine::PERIOD, compiler::PERIOD),
        ("records", engine::RECORDS, compiler::RECORDS),
        ("a load's kind", engine::RECORD_LOAD, compiler::Access::Load as u64),
        (
            "of a store's kind",
            engine::RECORD_WRITES,
            compiler::Access::Store as u64 & engine::RECORD_WRITES,
        ),
        (
            "of an atomic's kind",
            engine::RECORD_WRITES,
            compiler::Access::Atomic as u64 & engine::RECORD_WRITES,
        ),
        ("of another load's kind", 0, compiler::Access::LoadPastL1 as u64 & engine::RECORD_WRITES),
    ] {
        assert_eq!(engine, compiler, "{name}");
    }
}
