//! This command as Triton's `ptxas`: what it is given as PTX it gives on as PTX, because a
//! partition needs that.
//!
//! Triton asks for the version first, to know which PTX it may write, and takes what comes out for
//! a module to load. Other options say how machine code is to be made, and there is none.

use crate::failure::Failure;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

/// Of CUDA 13.0, whose PTX ISA is 9.0. Its form is what Triton looks for.
const VERSION: &str = "\
partita: PTX stays PTX
Cuda compilation tools, release 13.0, V13.0.0
";
/// What Triton takes for an error in its own PTX.
const BAD_PTX: u8 = 255;

/// `ptxas --version`, or `ptxas [OPTION…] INPUT -o OUTPUT`.
pub fn execute(args: impl IntoIterator<Item = OsString>) -> Result<Vec<u8>, Failure> {
    let (mut input, mut output) = (None, None);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--version" | "-V") => return Ok(VERSION.into()),
            Some("-o" | "--output-file") => output = args.next().map(PathBuf::from),
            // Values of options are words of their own; Triton names the input behind them.
            Some(option) if option.starts_with('-') => {}
            _ => input = Some(PathBuf::from(arg)),
        }
    }
    let (Some(input), Some(output)) = (input, output) else {
        return Err(
            Failure::new("usage: ptxas [OPTION…] INPUT -o OUTPUT, as Triton calls it").with_code(2)
        );
    };
    let named = |path: &PathBuf, error: std::io::Error| {
        Failure::new(format!("{}: {error}", path.display()))
    };
    let text = fs::read_to_string(&input).map_err(|error| named(&input, error))?;
    super::check(&input, &text).map_err(|failure| failure.with_code(BAD_PTX))?;
    fs::write(&output, text).map_err(|error| named(&output, error))?;
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> Result<String, Failure> {
        execute(args.iter().map(OsString::from)).map(|output| String::from_utf8(output).unwrap())
    }

    #[test]
    fn ptx_comes_out_as_it_went_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { ret; }\n";
        fs::write(path("in.ptx"), text).unwrap();
        let options =
            ["-lineinfo", "-v", "--regAllocOptLevel=2", "--opt-level", "0", "--gpu-name=sm_80"];
        let call = |input: &str| {
            let (input, output) = (path(input), path("out"));
            run(&[&options[..], &[&input, "-o", &output]].concat())
        };
        assert_eq!(call("in.ptx").unwrap(), "");
        assert_eq!(fs::read_to_string(path("out")).unwrap(), text);
        assert!(run(&["--version"]).unwrap().contains("release 13.0"));
        fs::write(path("bad.ptx"), text.replace("ret", "bra NOWHERE")).unwrap();
        assert!(call("bad.ptx").unwrap_err().text().contains("NOWHERE"));
        assert!(call("none.ptx").unwrap_err().text().contains("none.ptx"));
        assert!(run(&["-v"]).unwrap_err().text().contains("usage"));
    }
}
