//! Prints the folder of the CUDA toolkit, installed first if it is not there.

fn main() {
    println!("{}", partita_e2e::toolchain::toolkit().display());
}
