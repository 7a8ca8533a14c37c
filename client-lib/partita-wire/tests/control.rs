//! What `partitad` and `partita-gpu` of older versions say to each other is still understood.
//!
//! A newer `partitad` adopts an older `partita-gpu` within one major version of the control
//! messages, so a message keeps its meaning, and a new field has a default. The recordings are
//! conversations of two real processes (`versions/record_control.py`), never written by hand. That
//! a `partita-gpu` refuses requests of newer versions is tested with its control socket.

#![cfg(feature = "supervision")]

use partita_wire::call::{CONTROL, Call, CallAnswer, Want};
use partita_wire::supervise::{Answer, Ask, FrameReader, FromGpu, ToGpu, encode};
use serde::de::DeserializeOwned;
use serde_json::Value;

const RECORDED: [(u16, &str); 1] = [(0, include_str!("versions/control-1.0.json"))];

fn heard<T: DeserializeOwned>(recorded: &Value) -> Vec<T> {
    let understood = |message: &Value| {
        let mut frames = FrameReader::default();
        frames.push(&encode(message).expect("a recorded message fits into a frame"));
        match frames.next_message() {
            Ok(Some(understood)) => understood,
            other => panic!("{message}: {:?}", other.err()),
        }
    };
    recorded.as_array().into_iter().flatten().map(understood).collect()
}

#[test]
fn older_processes_are_understood() {
    for (minor, text) in RECORDED {
        let recorded: Value = serde_json::from_str(text).unwrap();
        let call = Call::decode(recorded["call"].to_string().as_bytes()).unwrap();
        assert_eq!(call.want, Want::Serve { device: "emu:cd-search-24".into() }, "1.{minor}");
        let answer = CallAnswer::decode(recorded["answer"].to_string().as_bytes()).unwrap();
        assert_eq!(answer, CallAnswer::Connected);

        let asked: Vec<ToGpu> = heard(&recorded["to_gpu"]);
        assert!(asked.iter().any(|question| matches!(question.ask, Ask::Configure(_))));
        assert!(asked.iter().any(|question| matches!(question.ask, Ask::SetPlan(_))));
        let said: Vec<FromGpu> = heard(&recorded["from_gpu"]);
        let FromGpu::Ready(ready) = &said[0] else { panic!("1.{minor}: {:?}", said[0]) };
        assert_eq!(ready.facts.sm_count, 24);
        let status = said.iter().find_map(|message| match message {
            FromGpu::Answer { answer: Answer::Status(status), .. } => Some(status),
            _ => None,
        });
        assert_eq!(status.unwrap().gpu.sms, 24);
    }
}

#[test]
fn this_version_is_recorded() {
    let newest = RECORDED.last().map(|(minor, _)| *minor);
    assert_eq!(
        (CONTROL.major, Some(CONTROL.minor)),
        (1, newest),
        "record this version with versions/record_control.py, and keep the older files"
    );
}
