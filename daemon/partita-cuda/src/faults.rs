//! The consequences of a fault on the device.
//!
//! A fault ends the context: every later call fails, and the process must be restarted (CUDA Driver
//! API, `CUresult`). The driver reports the kind of the fault and not the kernel. The guilty kernel
//! is among those that were on the device. It is known where only one kernel was there; the guilty
//! window is known where all kernels were of one window.

use crate::driver::Failure;
use partita_device::{Event, Fault, FaultKind, Outcome};
use partita_model::{ModuleId, Nanos, OperationId, WindowId};
use std::sync::Arc;

/// The kind of fault that a `CUresult` reports.
pub(crate) fn kind_of(failure: &Failure) -> Option<FaultKind> {
    Some(match failure.code {
        700 => FaultKind::IllegalAddress,
        710 => FaultKind::Assert,
        714 => FaultKind::StackOverflow,
        715 => FaultKind::IllegalInstruction,
        716 => FaultKind::MisalignedAddress,
        717 => FaultKind::InvalidAddressSpace,
        718 => FaultKind::InvalidPc,
        719 => FaultKind::LaunchFailed,
        _ => return None,
    })
}

pub(crate) fn fault(kind: FaultKind, kernel: &str, detail: String) -> Fault {
    Fault {
        kind,
        kernel: kernel.to_owned(),
        position: None,
        line: None,
        address: None,
        detail,
        assertion: None,
        values: Vec::new(),
    }
}

/// A kernel that was on the device when the context ended.
pub(crate) struct Suspect {
    pub(crate) operation: OperationId,
    pub(crate) module: ModuleId,
    pub(crate) window: Option<WindowId>,
    pub(crate) kernel: Arc<str>,
}

/// The events of the context's end: the guilty operation's fault where it is known, then the end.
pub(crate) fn end(failure: &Failure, suspects: &[Suspect], now: Nanos) -> Vec<Event> {
    let mut events = Vec::new();
    let names: Vec<String> = suspects
        .iter()
        .map(|suspect| match suspect.window {
            Some(window) => format!("`{}` of {window}", suspect.kernel),
            None => format!("`{}` of {}", suspect.kernel, suspect.module),
        })
        .collect();
    let mut reason = failure.to_string();
    if let (Some(kind), Some(first)) = (kind_of(failure), suspects.first()) {
        let one_window = suspects.iter().all(|suspect| suspect.window == first.window);
        if one_window && first.window.is_some() {
            let detail = if names.len() == 1 {
                "it ended the GPU's context".to_owned()
            } else {
                format!(
                    "it, or another kernel of its program, ended the GPU's context: {}",
                    names.join(", ")
                )
            };
            let outcome = Outcome::Fault(Box::new(fault(kind, &first.kernel, detail)));
            events.push(Event::Done { operation: first.operation, time: now, outcome });
        }
        reason = format!("{failure}; on the device: {}", names.join(", "));
    }
    events.push(Event::Lost { reason });
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(operation: u64, window: u64, kernel: &str) -> Suspect {
        let window = Some(WindowId(window));
        Suspect {
            operation: OperationId(operation),
            module: ModuleId(1),
            window,
            kernel: kernel.into(),
        }
    }

    fn told(code: u32, suspects: &[Suspect]) -> (Option<u64>, String) {
        let failure = Failure { function: "cuEventQuery", code, name: "CUDA_ERROR".into() };
        let mut guilty = None;
        let mut reason = String::new();
        for event in end(&failure, suspects, Nanos(5)) {
            match event {
                Event::Done { operation, outcome: Outcome::Fault(_), .. } => {
                    guilty = Some(operation.0)
                }
                Event::Lost { reason: text } => reason = text,
                other => panic!("{other:?}"),
            }
        }
        (guilty, reason)
    }

    #[test]
    fn only_who_is_known_to_be_guilty_is_named_so() {
        let alone = [suspect(1, 7, "bad")];
        assert_eq!(told(700, &alone).0, Some(1));
        let (guilty, reason) = told(700, &[suspect(1, 7, "bad"), suspect(2, 8, "good")]);
        assert_eq!(guilty, None);
        assert!(
            reason.contains("`bad` of window 7") && reason.contains("`good` of window 8"),
            "{reason}"
        );
        assert_eq!(told(716, &[suspect(1, 7, "a"), suspect(2, 7, "b")]).0, Some(1));
        assert_eq!(told(700, &[]).0, None);
        // A memory error is not the fault of a kernel.
        assert_eq!(told(214, &alone).0, None);
    }
}
