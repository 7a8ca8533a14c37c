//! `clusterlaunchcontrol` (PTX ISA, "clusterlaunchcontrol.try_cancel",
//! "clusterlaunchcontrol.query_cancel").

use super::{Decoder, Result};
use crate::exec::asynchronous::AsyncOp;
use crate::exec::inst::Source;
use crate::exec::lane;
use crate::exec::launch_control::CancelOp;
use partita_ptx::{Form, Mod, Operand, Type};

impl Decoder<'_> {
    pub(super) fn launch_control(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let words: Vec<&str> = self.module.text(form.text).split('.').collect();
        match (words.get(1), words.get(2)) {
            (Some(&"try_cancel"), Some(&"async")) => self.try_cancel(form, operands),
            (Some(&"query_cancel"), Some(what)) => {
                let &[to, answer] = operands else { return self.unsupported(form) };
                let [low, high] = self.wide_rows(answer)?.map(Source::R64);
                self.query_cancel(form, what, to, [low, high])
            }
            _ => self.unsupported(form),
        }
    }

    fn try_cancel(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let &[at, mbarrier] = operands else { return self.unsupported(form) };
        let text = self.module.text(form.text);
        let counts = text.split('.').any(|word| word == "mbarrier::complete_tx::bytes");
        if form.last_type() != Some(Type::B128) || !counts {
            return self.unsupported(form);
        }
        let to_all = text.split('.').any(|word| word == "multicast::cluster::all");
        let space = self.space_at(form, at)?;
        let (address, mbarrier) = (self.whole_address(at)?, self.whole_address(mbarrier)?);
        self.emit_async(AsyncOp::Cancel(CancelOp { space, address, mbarrier, to_all }));
        Ok(())
    }

    fn query_cancel(
        &mut self,
        form: &Form,
        what: &str,
        to: Operand,
        [low, high]: [Source; 2],
    ) -> Result<()> {
        // The parts of an answer: a half, and the place of a part in it.
        let parts = [(low, 0), (low, 32), (high, 0)];
        let one = match what {
            "is_canceled" => {
                let target = self.target(to, Type::Pred)?;
                self.emit_lane(lane::piece, 63, [high, Source::None, Source::None], target);
                return Ok(());
            }
            "get_first_ctaid" if form.has(Mod::V4) => None,
            "get_first_ctaid::x" => Some(0),
            "get_first_ctaid::y" => Some(1),
            "get_first_ctaid::z" => Some(2),
            _ => return self.unsupported(form),
        };
        let wanted = match one {
            Some(index) => vec![(to, parts[index])],
            None => self.elements(to).into_iter().zip(parts).collect(),
        };
        for (to, (half, shift)) in wanted {
            if to != Operand::Sink {
                let target = self.target(to, Type::B32)?;
                self.emit_lane(lane::piece, shift, [half, Source::None, Source::None], target);
            }
        }
        Ok(())
    }
}
