//! What keys do to the state of `partita top`.

use super::*;
use crate::watch::samples;

fn top() -> Top {
    let mut top = Top::new();
    top.absorb(Ok(samples::report()));
    top
}

fn press(top: &mut Top, keys: &str) -> Option<Command> {
    let codes = keys.chars().map(|c| match c {
        '\n' => KeyCode::Enter,
        '\u{8}' => KeyCode::Backspace,
        '\t' => KeyCode::Tab,
        c => KeyCode::Char(c),
    });
    let mut asked = None;
    for code in codes {
        asked = top.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    asked
}

fn plan(shares: &[(u32, &str)]) -> Option<Command> {
    let shares = shares.iter().map(|(id, sms)| (ApplicationId(*id), sms.parse().unwrap()));
    Some(Command::Plan(GpuNumber(0), shares.collect()))
}

fn order(top: &Top) -> Vec<u32> {
    top.rows().iter().map(|row| row.application.id.0).collect()
}

#[test]
fn pinning_keeps_the_rest_of_the_plan() {
    let mut top = top();
    assert_eq!(press(&mut top, "p"), plan(&[]), "application 1 was the only one that was pinned");
    assert_eq!(press(&mut top, "jp"), plan(&[(1, "0-11"), (2, "12-19")]));
}

#[test]
fn resizing_takes_no_pinned_sm() {
    let mut top = top();
    assert_eq!(press(&mut top, "-"), plan(&[(1, "0-10")]));
    assert_eq!(press(&mut top, "+"), plan(&[(1, "0-12")]), "2 is not pinned");
    assert_eq!(press(&mut top, "j+"), plan(&[(1, "0-11"), (2, "12-20")]));
}

#[test]
fn typed_sms_are_checked() {
    let mut top = top();
    assert_eq!(press(&mut top, "r\u{8}\u{8}7\n"), plan(&[(1, "0-7")]));
    assert_eq!(press(&mut top, "rx\n"), None);
    assert!(top.message.contains("0-17 or 0-3,8"), "{}", top.message);
    assert!(matches!(top.mode, Mode::Resize(..)), "what was typed can be put right");
}

#[test]
fn cancelling_asks_first() {
    let mut top = top();
    assert_eq!(press(&mut top, "cn"), None);
    assert!(top.message.contains("nothing"));
    let sessions = vec![SessionId(3), SessionId(5)];
    assert_eq!(press(&mut top, "cy"), Some(Command::Cancel(sessions)));
    assert_eq!(press(&mut top, "c"), None);
    let mut gone = samples::report();
    gone.applications.remove(0);
    top.absorb(Ok(gone));
    assert_eq!(top.mode, Mode::Table, "the application of the question has ended");
    assert_eq!(press(&mut top, "y"), None);
}

#[test]
fn sorting() {
    let mut top = top();
    assert_eq!(order(&top), [1, 2]);
    press(&mut top, "S");
    assert_eq!(order(&top), [2, 1]);
    press(&mut top, "Ssss");
    assert_eq!((top.sorting(), order(&top)), ((Column::Sms, false), vec![1, 2]));
    let mut report = samples::report();
    report.partitions[0].sms = SmSet::range(0, 2);
    top.absorb(Ok(report));
    assert_eq!(order(&top), [2, 1], "most SMs first");
}

#[test]
fn several_gpus_and_the_end() {
    let mut top = top();
    let mut report = samples::report();
    report.others.push(samples::gpu(1));
    report.others[0].applications.remove(0);
    top.absorb(Ok(report));
    assert_eq!(press(&mut top, "j"), None);
    press(&mut top, "\t");
    assert_eq!((top.gpu().unwrap().0.gpu.number, order(&top)), (GpuNumber(1), vec![2]));
    press(&mut top, "g");
    assert_eq!(top.gpu().unwrap().0.gpu.number, GpuNumber(0));
    top.absorb(Err("no daemon".into()));
    assert_eq!((order(&top), top.silence.as_deref()), (vec![1, 2], Some("no daemon")));
    assert_eq!(press(&mut top, "?q"), None, "any key ends the help");
    assert_eq!(press(&mut top, "q"), Some(Command::Quit));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut top, "r");
    assert_eq!(top.key(control_c), Some(Command::Quit));
}

#[test]
fn decisions_are_told_once() {
    let mut top = top();
    let told = top.sentences().len();
    assert!(told > 0);
    top.absorb(Ok(samples::report()));
    assert_eq!(top.sentences().len(), told);
    let mut report = samples::report();
    report.policy.decisions[0].sequence = 2;
    top.absorb(Ok(report));
    assert_eq!(top.sentences().len(), 2 * told, "a new partita-gpu counts from one");
}
