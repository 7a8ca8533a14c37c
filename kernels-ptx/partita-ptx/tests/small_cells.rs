//! The `fence` pass for a small cell, whose margins are narrower than in the corpus.

use partita_ptx::fence::SMALL_CELL_BITS;
use partita_ptx::passes;
use partita_ptx::{Pass, WorkerOptions};

const TEXT: &str = "
.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
{
	.reg .b32 %r<4>;
	.reg .b64 %d<3>;
	.reg .f32 %f<9>;
	ld.param.u64 %d1, [p];
	ld.global.u32 %r2, [%d1+2147483632];
	cp.async.bulk.prefetch.L2.global [%d1+2147483632], %r2;
	wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%d1], {%f1, %f1, %f1, %f1, %f1, %f1, %f1, \
                    %f1}, %r2;
	ret;
}
";

fn fenced(cell_bits: u32) -> String {
    let module = partita_ptx::parse(TEXT).unwrap_or_else(|errors| panic!("{errors}"));
    let options = WorkerOptions { cell_bits, ..WorkerOptions::default() };
    partita_ptx::print(&passes::apply(&module, &[Pass::Fence], &options).module)
}

/// A bulk copy from the cell's last byte on, with the largest offset, would end behind the margin.
#[test]
fn an_offset_that_leaves_the_margin_is_forced_with_its_address() {
    let (full, small) = (fenced(38), fenced(SMALL_CELL_BITS));
    assert!(full.contains("global [%d1+2147483632], %r2;"), "{full}");
    assert!(small.contains("add.s64 %pw_to, %d1, 2147483632;"), "{small}");
    assert!(small.contains("global [%pw_fenced], %r2;"), "{small}");
    assert!(small.contains("ld.global.u32 %r2, [%d1+2147483632];"), "it stays inside: {small}");
}

#[test]
fn rows_of_a_matrix_lie_nearer_to_each_other() {
    for (bits, most) in [(38, "67108864"), (SMALL_CELL_BITS, "4194304")] {
        let text = fenced(bits);
        assert!(text.contains(&format!("min.u32 %pw_size, %r2, {most};")), "{text}");
    }
}
