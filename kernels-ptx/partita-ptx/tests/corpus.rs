//! Runs every case file of `kernels-ptx/corpus`.
//!
//! A file says in its header what must hold of it, a line each:
//!
//! | line | meaning |
//! | --- | --- |
//! | `// expect: ok` | parses, verifies |
//! | `// expect: parse-error L:C "part"` | the parser finds this, there; the lines name all that it finds |
//! | `// expect: verify-error L:C "part"` | the same of the verifier |
//! | `// expect: worker K` | kernel K takes the worker form; then `full-rows`: for such blocks; `kept`: beside the original |
//! | `// expect: keeping` | originals are kept where needed |
//! | `// expect: ticket K` and so on | the same of another pass; a file is about one |
//! | `// expect: choose K worker` | of the two forms kernel K gets this one, or with `original` none |
//! | `// expect: PASS refuses K at L "part"` | it does not, for this reason among others |
//! | `// expect: text "part"`, `no-text "part"` | the output has, or has not, that part |
//! | `// expect: settle` | its variables move out of the module |
//! | `// expect: settle refuses L:C "part"` | they do not, for this reason |
//! | `// expect: lower V` | its version can be lowered to V |
//! | `// expect: lower refuses V at L "part"` | it cannot, for this reason among others |
//! | `// expect: ptxas` | `ptxas` takes the output |
//!
//! The output is the printed module, rewritten by the pass of the file; combinations of all passes
//! must please `ptxas`, too, under the oldest version that they can be lowered to. Whatever parses
//! is printed, parsed and printed again, and must stay the same. Whatever verifies is rewritten by
//! every pass, and must verify then.

use std::path::{Path, PathBuf};
use std::process::Command;

use partita_ptx::{
    Blocks, Errors, KernelForm, Module, Pass, Rewritten, Version, WorkerOptions, lower, parse,
    passes, print, verify,
};

struct Expectation<'a> {
    words: Vec<&'a str>,
    part: String,
}

fn expectations(source: &str) -> Vec<Expectation<'_>> {
    let lines = source.lines().filter_map(|line| line.strip_prefix("// expect: "));
    lines
        .map(|line| match line.split_once(" \"") {
            Some((words, part)) => {
                let part =
                    part.strip_suffix('"').unwrap_or_else(|| panic!("no closing quote: {line}"));
                Expectation {
                    words: words.split(' ').collect(),
                    part: part.replace("\\\"", "\"").replace("\\n", "\n").replace("\\t", "\t"),
                }
            }
            None => Expectation { words: line.split(' ').collect(), part: String::new() },
        })
        .collect()
}

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    let mut todo = vec![root];
    let mut files = Vec::new();
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder).expect("the corpus is beside the crate") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ptx") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Compares errors with the expected ones of that kind; all must be named.
fn check_errors(
    found: Result<(), &Errors>,
    kind: &str,
    expected: &[Expectation<'_>],
) -> Result<(), String> {
    let list = found.err().map_or(&[][..], Errors::list);
    let wanted: Vec<&Expectation<'_>> = expected.iter().filter(|e| e.words[0] == kind).collect();
    if list.len() != wanted.len() {
        let found = found.err().map_or_else(|| "none".to_owned(), ToString::to_string);
        return Err(format!("{} {kind}s expected, found {}: {found}", wanted.len(), list.len()));
    }
    for (found, wanted) in list.iter().zip(wanted) {
        let place = format!("{}:{}", found.pos.line, found.pos.col);
        if place != wanted.words[1] || !found.message.contains(&wanted.part) {
            return Err(format!(
                "expected {kind} {} {:?}, found {place} {:?}",
                wanted.words[1], wanted.part, found.message
            ));
        }
        if found.excerpt.is_none() {
            return Err(format!("no excerpt for {place}"));
        }
    }
    Ok(())
}

/// What `ptxas` must take.
struct Texts {
    output: String,
    /// The module as it is and by each pass; where `ptxas` does not take the first, it need not
    /// take the rest.
    others: Vec<String>,
}

impl Texts {
    fn assemble(&self, ptxas: &str) -> Result<(), String> {
        assemble(ptxas, &self.output, &[75, 80, 90])?;
        if assemble(ptxas, &self.others[0], &[75]).is_err() {
            return Ok(());
        }
        let mut others: Vec<&String> = self.others[1..].iter().collect();
        others.sort();
        others.dedup();
        others.into_iter().try_for_each(|text| assemble(ptxas, text, &[75]))
    }
}

fn check_case(source: &str) -> Result<Option<Texts>, String> {
    let expected = expectations(source);
    if expected.is_empty() {
        return Err("no `// expect:` line".to_owned());
    }
    let parsed = parse(source);
    check_errors(parsed.as_ref().map(|_| ()), "parse-error", &expected)?;
    let Ok(module) = parsed else { return Ok(None) };
    check_print(&module)?;
    let verified = verify(&module).map_err(|errors| errors.with_source(source));
    check_errors(verified.as_ref().map(|&()| ()), "verify-error", &expected)?;
    if verified.is_err() {
        return Ok(None);
    }
    for pass in Pass::ALL {
        check_rewritten(&rewrite(&module, pass, true), pass)?;
    }
    // Every pass is in one of these.
    let combined =
        |wanted: &[Pass]| passes::apply(&module, wanted, &WorkerOptions::default()).module;
    let others = vec![
        print(&module),
        oldest(&combined(&[Pass::Fence, Pass::Contain, Pass::Count, Pass::Choose, Pass::Cancel])),
        oldest(&combined(&[Pass::Fence, Pass::Ticket])),
        print(&combined(&[Pass::Count, Pass::Slice])),
    ];
    let settled =
        check_settled(&combined(&[Pass::Fence, Pass::Contain, Pass::Choose, Pass::Cancel]))?;
    let others = others.into_iter().chain(settled).collect();
    let pass = expected.iter().find_map(|e| Pass::named(e.words[0]));
    let settles = expected.iter().find(|e| e.words[0] == "settle");
    let output = match (pass, settles) {
        (Some(pass), _) => check_pass(&module, pass, &expected)?,
        (None, Some(wanted)) if wanted.words.len() == 1 => {
            check_settled(&module)?.ok_or("its variables do not move")?
        }
        (None, Some(wanted)) => {
            let errors = partita_ptx::settle(&module).err().ok_or("its variables move")?;
            let found = &errors.list()[0];
            let place = format!("{}:{}", found.pos.line, found.pos.col);
            if place != wanted.words[2] || !found.message.contains(&wanted.part) {
                return Err(format!("found {place} {:?}", found.message));
            }
            print(&module)
        }
        (None, None) => print(&module),
    };
    for wanted in &expected {
        let holds = match wanted.words[0] {
            "text" => output.contains(&wanted.part),
            "no-text" => !output.contains(&wanted.part),
            "ok" | "ptxas" | "keeping" | "settle" => true,
            "lower" => lowers(&module, &wanted.words[1..], &wanted.part)?,
            word if Pass::named(word).is_some() => true,
            other => return Err(format!("unknown expectation `{other}`")),
        };
        if !holds {
            return Err(format!(
                "{} {:?} does not hold of\n{output}",
                wanted.words[0], wanted.part
            ));
        }
    }
    let assembled = expected.iter().any(|e| e.words[0] == "ptxas");
    Ok(assembled.then_some(Texts { output, others }))
}

/// The printed module without its variables, which must parse and verify; `None` where they do not
/// move.
fn check_settled(module: &Module) -> Result<Option<String>, String> {
    let Ok(settled) = partita_ptx::settle(module) else { return Ok(None) };
    let text = print(&settled.module);
    let again =
        parse(&text).map_err(|errors| format!("settled, it does not parse: {errors}\n{text}"))?;
    verify(&again).map_err(|errors| {
        format!("settled, it does not verify: {}\n{text}", errors.with_source(&text))
    })?;
    Ok(Some(text))
}

fn version(text: &str) -> Option<Version> {
    let (major, minor) = text.split_once('.')?;
    Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// Whether the module's version can be lowered as `words` say.
fn lowers(module: &Module, words: &[&str], part: &str) -> Result<bool, String> {
    let refuses = words[0] == "refuses";
    let most =
        version(words[usize::from(refuses)]).ok_or_else(|| format!("no version: {words:?}"))?;
    match lower(module, most) {
        Ok(lowered) => Ok(!refuses && lowered.version == most),
        Err(found) if refuses => Ok(found
            .iter()
            .any(|new| words[3] == new.pos.line.to_string() && new.to_string().contains(part))),
        Err(found) => Err(format!("cannot be lowered: {}", found[0])),
    }
}

/// Versions of the PTX ISA, the oldest first.
const VERSIONS: [(u32, u32); 29] = [
    (6, 0),
    (6, 1),
    (6, 2),
    (6, 3),
    (6, 4),
    (6, 5),
    (7, 0),
    (7, 1),
    (7, 2),
    (7, 3),
    (7, 4),
    (7, 5),
    (7, 6),
    (7, 7),
    (7, 8),
    (8, 0),
    (8, 1),
    (8, 2),
    (8, 3),
    (8, 4),
    (8, 5),
    (8, 6),
    (8, 7),
    (8, 8),
    (9, 0),
    (9, 1),
    (9, 2),
    (9, 3),
    (9, 4),
];

/// The text under the oldest version that it can be lowered to.
fn oldest(module: &Module) -> String {
    let versions = VERSIONS.into_iter().map(|(major, minor)| Version { major, minor });
    let lowered = versions
        .filter(|version| *version < module.version)
        .find_map(|most| lower(module, most).ok());
    print(lowered.as_ref().unwrap_or(module))
}

fn check_print(module: &Module) -> Result<(), String> {
    let once = print(module);
    let again =
        parse(&once).map_err(|errors| format!("printed text does not parse: {errors}\n{once}"))?;
    if print(&again) == once {
        Ok(())
    } else {
        Err(format!("printing is not stable:\n{once}\n{}", print(&again)))
    }
}

fn rewrite(module: &Module, pass: Pass, keep_originals: bool) -> Rewritten {
    pass.apply(
        module,
        &WorkerOptions { keep_originals, grid_workspace: true, ..WorkerOptions::default() },
    )
}

/// The printed module, which must parse and verify.
fn check_rewritten(rewritten: &Rewritten, pass: Pass) -> Result<String, String> {
    let text = print(&rewritten.module);
    let again = parse(&text)
        .map_err(|errors| format!("{}: its text does not parse: {errors}\n{text}", pass.name()))?;
    verify(&again).map_err(|errors| {
        format!("{}: its text does not verify: {}\n{text}", pass.name(), errors.with_source(&text))
    })?;
    Ok(text)
}

fn check_pass(module: &Module, pass: Pass, expected: &[Expectation<'_>]) -> Result<String, String> {
    let keep_originals =
        expected.iter().any(|e| e.words.contains(&"kept") || e.words.contains(&"keeping"));
    let rewritten = rewrite(module, pass, keep_originals);
    for wanted in expected.iter().filter(|e| e.words[0] == pass.name()) {
        let refuses = wanted.words[1] == "refuses";
        let name = wanted.words[1 + usize::from(refuses)];
        let report = rewritten.reports.iter().find(|report| report.name == name);
        let report = report.ok_or_else(|| format!("no kernel {name}"))?;
        if refuses {
            let line: u32 = wanted.words[4].parse().map_err(|_| "no line".to_owned())?;
            let holds = |r: &partita_ptx::Refusal| {
                r.pos.line == line && r.to_string().contains(&wanted.part)
            };
            if !report.refusals().iter().any(holds) {
                return Err(format!(
                    "{name}: expected {:?} at {line}, found {:?}",
                    wanted.part, report.outcome
                ));
            }
            continue;
        }
        if matches!(
            pass,
            Pass::Output | Pass::Fence | Pass::Contain | Pass::Count | Pass::Slice | Pass::Cancel
        ) {
            if !report.refusals().is_empty() {
                return Err(format!("{name} refused: {}", report.refusals()[0]));
            }
            continue;
        }
        let form = match report.rewritten().map(|form| form.form) {
            Some(KernelForm::Worker) => "worker",
            Some(KernelForm::Ticket) => "ticket",
            None => "original",
        };
        if form != if pass == Pass::Choose { wanted.words[2] } else { pass.name() } {
            return Err(format!("{name} is {form}: {:?}", report.refusals()));
        }
        let Some(form) = report.rewritten() else { continue };
        if wanted.words.contains(&"kept") != form.original.is_some() {
            return Err(format!("{name}: the original is {:?}", form.original));
        }
        let full_rows = wanted.words.contains(&"full-rows");
        if full_rows != (form.blocks == Blocks::FullRows) {
            return Err(format!("{name}: blocks are {:?}", form.blocks));
        }
    }
    check_rewritten(&rewritten, pass)
}

/// Whether `ptxas` takes the text, for every architecture of the list that its target permits; at
/// least for its own.
fn assemble(ptxas: &str, text: &str, list: &[u32]) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = folder.path().join("case.ptx");
    std::fs::write(&file, text).map_err(|error| error.to_string())?;
    let module = parse(text).map_err(|errors| errors.to_string())?;
    let target = module.text(module.target[0]);
    let mut architectures: Vec<String> = Vec::new();
    if target.ends_with(|c: char| c.is_ascii_digit()) {
        let least = module.sm().unwrap_or(0);
        architectures.extend(list.iter().filter(|&&sm| sm >= least).map(|sm| format!("sm_{sm}")));
        if architectures.is_empty() {
            architectures.push(target.to_owned());
        }
    } else {
        architectures.push(target.to_owned());
    }
    for architecture in architectures {
        let output = Command::new(ptxas)
            .arg(format!("-arch={architecture}"))
            .arg(&file)
            .arg("-o")
            .arg(folder.path().join("out.cubin"))
            .output()
            .map_err(|error| format!("{ptxas}: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "{architecture}: {}\n{text}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
    }
    Ok(())
}

/// Partita's own kernels: right, for every architecture that `ptxas` knows of the list.
#[test]
fn device_kernels_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let module = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
        verify(&module).unwrap_or_else(|errors| panic!("{}", errors.with_source(&text)));
        assert!(lower(&module, Version { major: 6, minor: 3 }).is_ok(), "old drivers take them");
        match std::env::var("PARTITA_PTXAS") {
            Ok(ptxas) => {
                assemble(&ptxas, &text, &[75, 80, 90]).unwrap_or_else(|said| panic!("{said}"))
            }
            Err(_) => {
                skip("PARTITA_PTXAS names no ptxas, so no device kernel is assembled");
            }
        }
        count += module.kernels().len();
    }
    assert_eq!(count, 12);
}

/// Says that something is not tested. A passing test's `eprintln!` is kept from the reader.
fn skip(what: &str) {
    let line = format!("SKIPPED: {what}\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes())
        .expect("standard error can be written");
}

#[test]
fn every_case_holds() {
    let ptxas = std::env::var("PARTITA_PTXAS").ok();
    if ptxas.is_none() {
        skip("PARTITA_PTXAS names no ptxas, so no case is assembled");
    }
    let cases = cases();
    assert!(cases.len() >= 200, "only {} cases found", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        let source = std::fs::read_to_string(case).unwrap();
        let result = check_case(&source).and_then(|texts| match (&ptxas, texts) {
            (Some(ptxas), Some(texts)) => texts.assemble(ptxas),
            _ => Ok(()),
        });
        if let Err(message) = result {
            failures.push(format!("{}: {message}", case.display()));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} cases fail:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}
