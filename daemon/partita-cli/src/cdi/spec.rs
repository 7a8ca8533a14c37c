//! The specification in the words of the Container Device Interface.
//!
//! Version 0.3.0 of the interface suffices, which every runtime with CDI reads.
//!
//! | device | what a container gets |
//! | --- | --- |
//! | `shared` | the socket for programs, the shim, the command `partita`, settings of frameworks |
//! | `api` | the socket of the API, beside `shared` |
//!
//! Invariants: a container gets single files, never a folder of sockets, and it gets them
//! read-only. A connection to a socket needs the socket's own permissions, which a read-only mount
//! leaves as they are: so the container's root cannot change them, and nobody gets a right inside
//! that the same uid lacks outside. The API is a device of its own, because root of a container
//! that is not in a user namespace is the host's root to the daemon.

use serde_json::{Value, json};

const KIND: &str = "partita.dev/gpu";
/// The device of programs.
pub const SHARED: &str = "shared";
/// The device of those who ask and steer.
pub const API: &str = "api";

/// The shim's place in a container.
pub const SHIM_INSIDE: &str = "/usr/lib/partita/libpartita_cuda.so";
const SOCKETS_INSIDE: &str = "/run/partita";
const COMMAND_INSIDE: &str = "/usr/bin/partita";
/// The folder with the names that Triton looks for.
const LINKS_INSIDE: &str = "/usr/lib/partita/cuda";
/// Where the dynamic linkers of Debian's and of Red Hat's families find the driver without a cache.
const DRIVER_INSIDE: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/partita/cuda/libcuda.so.1",
];

/// The files of this machine that containers get.
#[derive(Debug)]
pub struct Parts {
    /// `libpartita_cuda.so`.
    pub shim: String,
    /// The command `partita`.
    pub command: String,
    /// The socket for programs.
    pub socket: String,
    /// The socket of the API.
    pub api_socket: String,
    /// The list of preloaded libraries.
    pub preload_list: String,
}

/// The full name of a device, as `--device` takes it.
pub fn name(device: &str) -> String {
    format!("{KIND}={device}")
}

/// The specification.
pub fn of(parts: &Parts) -> Value {
    json!({
        "cdiVersion": "0.3.0",
        "kind": KIND,
        "devices": [
            {"name": SHARED, "containerEdits": {"env": env(), "mounts": shared(parts)}},
            {"name": API, "containerEdits": {
                "mounts": [mount(&parts.api_socket, &format!("{SOCKETS_INSIDE}/api.sock"))],
            }},
        ],
    })
}

fn env() -> Vec<String> {
    let ptxas = format!("{LINKS_INSIDE}/ptxas");
    let variables = [
        ("PARTITA_SOCKET_DIR", SOCKETS_INSIDE),
        ("CUPY_COMPILE_WITH_PTX", "1"),
        ("CUPY_ACCELERATORS", ""),
        ("TRITON_LIBCUDA_PATH", LINKS_INSIDE),
        ("TRITON_PTXAS_PATH", &ptxas),
        ("TRITON_PTXAS_BLACKWELL_PATH", &ptxas),
    ];
    variables.map(|(name, value)| format!("{name}={value}")).into()
}

fn shared(parts: &Parts) -> Vec<Value> {
    let ptxas = format!("{LINKS_INSIDE}/ptxas");
    let socket = format!("{SOCKETS_INSIDE}/partitad.sock");
    let mut mounts = vec![
        mount(&parts.socket, &socket),
        mount(&parts.shim, SHIM_INSIDE),
        mount(&parts.command, COMMAND_INSIDE),
        mount(&parts.command, &ptxas),
        // An entry point may set LD_PRELOAD anew, and this list stays. An image may bring a
        // `libcuda.so.1` of its own in LD_LIBRARY_PATH, and the list goes first.
        mount(&parts.preload_list, "/etc/ld.so.preload"),
    ];
    // The linker loads a file once, however many names lead to it.
    mounts.extend(DRIVER_INSIDE.map(|place| mount(&parts.shim, place)));
    mounts
}

fn mount(outside: &str, inside: &str) -> Value {
    json!({
        "hostPath": outside,
        "containerPath": inside,
        "options": ["ro", "nosuid", "nodev", "bind"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Value {
        of(&Parts {
            shim: "/l/libpartita_cuda.so".into(),
            command: "/b/partita".into(),
            socket: "/s/partitad.sock".into(),
            api_socket: "/s/api.sock".into(),
            preload_list: "/etc/cdi/partita.ld.so.preload".into(),
        })
    }

    fn mounts(device: &Value) -> Vec<(&str, &str)> {
        let all = device["containerEdits"]["mounts"].as_array().unwrap();
        let text = |one: &'_ Value| one.as_str().map(str::to_owned).unwrap();
        for one in all {
            let options: Vec<String> =
                one["options"].as_array().unwrap().iter().map(text).collect();
            assert_eq!(options, ["ro", "nosuid", "nodev", "bind"], "{one}");
        }
        all.iter()
            .map(|one| (one["hostPath"].as_str().unwrap(), one["containerPath"].as_str().unwrap()))
            .collect()
    }

    #[test]
    fn programs_get_one_socket_and_the_api_is_a_device_of_its_own() {
        let found = found();
        let [shared, api] = found["devices"].as_array().unwrap().as_slice() else { panic!() };
        let inside = mounts(shared);
        assert!(inside.contains(&("/s/partitad.sock", "/run/partita/partitad.sock")), "{inside:?}");
        assert!(!inside.iter().any(|(outside, _)| outside.ends_with("api.sock")), "{inside:?}");
        assert_eq!(mounts(api), [("/s/api.sock", "/run/partita/api.sock")]);
        // No folder, so nothing that comes into one later.
        assert!(
            inside.iter().all(|(outside, _)| outside.contains('.') || *outside == "/b/partita")
        );
    }

    #[test]
    fn every_way_to_the_driver_ends_at_the_shim() {
        let found = found();
        let inside = mounts(&found["devices"][0]);
        let driver = inside.iter().filter(|(_, place)| place.ends_with("/libcuda.so.1"));
        assert_eq!(driver.filter(|(from, _)| *from == "/l/libpartita_cuda.so").count(), 3);
        assert!(inside.contains(&("/etc/cdi/partita.ld.so.preload", "/etc/ld.so.preload")));
        let env = found["devices"][0]["containerEdits"]["env"].to_string();
        assert!(env.contains("PARTITA_SOCKET_DIR=/run/partita"), "{env}");
        assert!(env.contains("TRITON_PTXAS_PATH=/usr/lib/partita/cuda/ptxas"), "{env}");
        // What the interface asks of names.
        assert_eq!(name(SHARED), "partita.dev/gpu=shared");
        assert_eq!(found["kind"], "partita.dev/gpu");
    }
}
