//! The PTX compiler: parse, verify, rewrite into every form, link, print, and parse again.

use partita_ptx::{
    Module, Pass, Version, WorkerOptions, link, lower, parse, passes, print, print_with_lines,
    settle, verify,
};

/// The oldest version that a text is lowered to.
const OLDEST: Version = Version { major: 7, minor: 0 };

/// Compositions of passes beside each pass alone.
const COMPOSITIONS: [&[Pass]; 3] = [
    &Pass::ALL,
    &[Pass::Fence, Pass::Contain, Pass::Choose, Pass::Cancel],
    &[Pass::Fence, Pass::Contain, Pass::Count, Pass::Slice, Pass::Cancel],
];

/// Checks the text of a module.
///
/// # Panics
/// Where an error has no place in the text, or what is printed does not mean what was read.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let module = match parse(text) {
        Ok(module) => module,
        Err(errors) => {
            let lines = text.lines().count() + 1;
            assert!(!errors.list().is_empty(), "a refusal names an error");
            for error in errors.list() {
                assert!((error.pos.line as usize) <= lines, "{error:?} in a text of {lines} lines");
            }
            return;
        }
    };
    let printed = printing_is_stable(&module);
    if verify(&module).is_err() {
        return;
    }
    // Settling may refuse a module; it may not panic.
    let _ = settle(&module);
    if let Ok(linked) = link(&[text]) {
        assert_holds("link", &linked);
    }
    for pass in Pass::ALL {
        rewrite(&module, &[pass], &WorkerOptions::default());
    }
    let options = WorkerOptions { keep_originals: true, ..WorkerOptions::default() };
    for composition in COMPOSITIONS {
        rewrite(&module, composition, &options);
    }
    assert_eq!(print(&module), printed, "a pass leaves the module that it was given");
}

/// What is printed parses to a module that prints alike and about which the verifier says the same.
fn printing_is_stable(module: &Module) -> String {
    let printed = print(module);
    let again = parse(&printed)
        .unwrap_or_else(|errors| panic!("what is printed does not parse: {errors}\n{printed}"));
    assert_eq!(print(&again), printed, "printing is stable");
    assert_eq!(
        verify(module).is_ok(),
        verify(&again).is_ok(),
        "printing keeps what the verifier says\n{printed}"
    );
    printed
}

fn rewrite(module: &Module, wanted: &[Pass], options: &WorkerOptions) {
    let rewritten = passes::apply(module, wanted, options).module;
    let printed = print_with_lines(&rewritten);
    assert_holds(&format!("{wanted:?}"), &printed.text);
    // A text that is lowered says the same below its first line.
    if let Ok(lowered) = lower(&rewritten, OLDEST)
        && lowered.version != rewritten.version
    {
        let body = |text: &str| text.split_once('\n').unwrap_or_default().1.to_owned();
        assert_eq!(body(&print(&lowered)), body(&printed.text));
    }
}

fn assert_holds(what: &str, text: &str) {
    parse(text)
        .and_then(|module| verify(&module))
        .unwrap_or_else(|errors| panic!("{what} broke the module: {errors}\n{text}"));
}
