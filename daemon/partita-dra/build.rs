//! Compiles the kubelet's services from `proto/`, without `protoc`.

const FILES: [&str; 4] = [
    "proto/registration.proto",
    "proto/dra_v1.proto",
    "proto/health_v1.proto",
    "proto/health_v1alpha1.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Each file by itself: both versions of the health service use the same names.
    for file in FILES {
        let descriptors = protox::compile([file], ["."])?;
        tonic_prost_build::configure().compile_fds(descriptors)?;
    }
    Ok(())
}
