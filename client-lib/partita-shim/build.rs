//! Generates the exports that Partita refuses and the tables of names from `api.table`, and sets
//! the library's SONAME.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// One line of the table.
struct Symbol<'a> {
    name: &'a str,
    queries: Vec<Query<'a>>,
    answer: Answer<'a>,
}

/// A query of `cuGetProcAddress` that the symbol answers.
struct Query<'a> {
    name: &'a str,
    version: u32,
    per_thread: bool,
}

/// Why a call is refused, by the word in the table.
const REASONS: [(&str, &str); 11] = [
    ("32-bit", "it is for device pointers of 32 bits, which no toolkit since CUDA 3.2 uses"),
    ("cuda-3", "it was replaced in CUDA 4; use cuLaunchKernel"),
    (
        "references",
        "texture and surface references went with CUDA 12; use texture and surface objects",
    ),
    ("graphics", "Partita shares the GPU for computing, without graphics"),
    ("tools", "debuggers, checkpoints and logs of the driver are not Partita's"),
    (
        "processes",
        "pools, external memory and semaphores are shared with no other process or device",
    ),
    ("devices", "it takes several GPUs that reach each other"),
    ("contexts", "Partita decides which SMs a program has, so programs cannot part the GPU"),
    ("sparse", "arrays are whole: none is sparse, planar or mapped by pages"),
    ("hardware", "attributes of the device say that it has no such unit"),
    ("not-yet", "Partita does not have it yet"),
];

enum Answer<'a> {
    /// The reason for the refusal, in words.
    Refused(&'static str),
    /// The module of the function, and whether the function works without the daemon.
    Here { module: &'a str, local: bool },
}

fn main() {
    println!("cargo:rerun-if-changed=api.table");
    // Found by dlopen("libcuda.so.1") when preloaded; binds to its own functions even if a real
    // libcuda is loaded first; stays loaded after dlclose, because threads and fork handlers refer
    // to it.
    for argument in ["-soname,libcuda.so.1", "-Bsymbolic", "-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    let table = fs::read_to_string("api.table").expect("api.table lies beside build.rs");
    let symbols: Vec<Symbol<'_>> =
        table.lines().zip(1..).filter_map(|(line, at)| parse(line, at)).collect();
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let write = |name: &str, text: String| {
        fs::write(Path::new(&out).join(name), text).expect("cargo's OUT_DIR can be written to");
    };
    write("refused.rs", refused(&symbols));
    write("names.rs", names(&symbols));
}

fn parse(line: &str, at: usize) -> Option<Symbol<'_>> {
    let line = line.split('#').next().unwrap_or_default();
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [name, queries, answer] = fields[..] else {
        assert!(
            fields.is_empty(),
            "api.table:{at}: a line has a symbol, its queries and its answer"
        );
        return None;
    };
    let queries = match queries {
        "-" => Vec::new(),
        list => list.split(',').map(|query| parse_query(query, at)).collect(),
    };
    let answer = match answer.split_once(':') {
        Some(("refused", word)) => {
            let known = REASONS.into_iter().find(|(reason, _)| *reason == word);
            Answer::Refused(
                known
                    .unwrap_or_else(|| panic!("api.table:{at}: nobody knows the reason `{word}`"))
                    .1,
            )
        }
        Some(("local", module)) => Answer::Here { module, local: true },
        Some(("daemon", module)) => Answer::Here { module, local: false },
        _ => {
            panic!("api.table:{at}: `{answer}` is none of refused:WHY, local:MODULE, daemon:MODULE")
        }
    };
    Some(Symbol { name, queries, answer })
}

fn parse_query(query: &str, at: usize) -> Query<'_> {
    let (name, version) =
        query.split_once('@').unwrap_or_else(|| panic!("api.table:{at}: `{query}` has no @"));
    let (version, flavour) = version.split_once('/').unwrap_or((version, ""));
    let version =
        version.parse().unwrap_or_else(|_| panic!("api.table:{at}: `{version}` is no version"));
    Query { name, version, per_thread: !flavour.is_empty() }
}

/// Functions that refuse. They take no parameters, because the caller cleans up in every calling
/// convention of CUDA's hosts.
fn refused(symbols: &[Symbol<'_>]) -> String {
    let mut text = String::from("exports_refused! {\n");
    for symbol in symbols {
        if let Answer::Refused(reason) = symbol.answer {
            writeln!(text, "    {} {reason:?}", symbol.name)
                .expect("writing to a String cannot fail");
        }
    }
    text + "}\n"
}

fn names(symbols: &[Symbol<'_>]) -> String {
    let mut text = String::from("/// Every export, by name.\npub static SYMBOLS: &[Symbol] = &[\n");
    let mut queries = BTreeMap::new();
    for (index, symbol) in symbols.iter().enumerate() {
        let (module, answer) = match symbol.answer {
            Answer::Refused(_) => ("refused", "Refused"),
            Answer::Here { module, local: true } => (module, "Local"),
            Answer::Here { module, local: false } => (module, "Daemon"),
        };
        let name = symbol.name;
        writeln!(
            text,
            "    Symbol {{ name: \"{name}\", answer: Answer::{answer}, \
             address: Address(crate::{module}::{name} as *const c_void) }},"
        )
        .expect("writing to a String cannot fail");
        for query in &symbol.queries {
            queries.insert((query.name, query.per_thread, query.version), index);
        }
    }
    text += "];\n/// Every name and version that `cuGetProcAddress` knows, sorted.\npub static \
        QUERIES: &[Query] = &[\n";
    for ((name, per_thread, version), symbol) in queries {
        writeln!(
            text,
            "    Query {{ name: \"{name}\", per_thread: {per_thread}, version: {version}, symbol: \
             {symbol} }},"
        )
        .expect("writing to a String cannot fail");
    }
    text + "];\n"
}
