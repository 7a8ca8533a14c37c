//! Texture objects of several programs in the one context of the real backend, over the driver that
//! executes. Kernels name objects by numbers, so one program could name those of another.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use partita_client::{CallError, Launch, Session, StreamHandle, image};
use partita_e2e::daemon::Daemon;
use partita_model::texture::{ChannelType, Sampler, TexelFormat, TexelSource, TextureSpec};
use partita_model::{DeviceAddress, Dim3};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const SWITCHES: &str = "timing=off,cuda=13050,sticky-faults=on";
const POLICY: &str = "[policy]\npartitioner = \"even\"\n";
/// Another user than the daemon's, who may run no kernel without a fence.
const STRANGER: u32 = 65_534;
const INVALID_HANDLE: i32 = 400;
const ILLEGAL_ADDRESS: i32 = 700;

/// Stores the first texel of an object.
const FETCH: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .entry fetch(.param .u64 to, .param .u64 object)
{
	.reg .b32 %r<6>;
	.reg .b64 %d<3>;
	ld.param.u64 %d1, [to];
	ld.param.u64 %d2, [object];
	mov.u32 %r5, 0;
	tex.1d.v4.u32.s32 {%r1, %r2, %r3, %r4}, [%d2, {%r5}];
	st.global.u32 [%d1], %r1;
	ret;
}
";

struct Program {
    session: Session,
    /// Where its texels and results lie.
    data: DeviceAddress,
    object: u64,
}

impl Program {
    /// A program with an object whose texels are this number.
    fn new(sockets: &Path, texel: u32) -> Program {
        let session = Session::connect(sockets).unwrap();
        let data = session.mem_alloc(512).unwrap();
        session.fill(StreamHandle::LEGACY, data, texel, 4, 64).unwrap();
        let format = TexelFormat::new(ChannelType::U32, 1).unwrap();
        let source = TexelSource::Linear { address: data, format, width: 64 };
        let sampler = Sampler { integers: true, ..Sampler::default() };
        let object = session.create_texture(&TextureSpec { source, sampler: Some(sampler) });
        Program { object: object.unwrap(), session, data }
    }

    /// The first texel of an object, as a kernel reads it.
    fn fetch(&self, object: u64) -> Result<u32, CallError> {
        let capability = self.session.facts().compute_capability;
        let module =
            self.session.load_module(&image::select(FETCH.as_bytes(), capability).unwrap());
        let to = DeviceAddress(self.data.0 + 256);
        let params = [to.0, object].map(u64::to_le_bytes).concat();
        self.session.launch(Launch {
            module: module?.module,
            kernel: 0,
            grid: Dim3::linear(1),
            block: Dim3::linear(1),
            dynamic_shared: 0,
            stream: StreamHandle::LEGACY,
            cooperative: false,
            cluster: Dim3::linear(1),
            params: params.as_slice(),
        })?;
        self.session.synchronize(None)?;
        let mut bytes = [0; 4];
        self.session.copy_to_host(StreamHandle::LEGACY, &mut bytes, to)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// A daemon that other users reach.
fn daemon() -> Daemon {
    let daemon = Daemon::with_emulated_driver(&["cuda,guards=strict"], SWITCHES, POLICY);
    let sockets = daemon.socket_dir();
    std::fs::set_permissions(sockets.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    daemon
}

/// What a program without a right is told of another program's object, and of none.
fn strange(sockets: PathBuf, foreign: u64) {
    let stranger = Uid::from_raw(STRANGER);
    set_thread_res_uid(stranger, stranger, stranger).unwrap();
    let program = Program::new(&sockets, 5);
    assert_ne!(program.object, foreign, "one context numbers its objects");
    assert_eq!(program.fetch(program.object).unwrap(), 5);
    let error = program.fetch(foreign).unwrap_err();
    assert_eq!(error.code, INVALID_HANDLE, "{error}");
    assert!(error.to_string().contains("no texture or surface object of this program"), "{error}");
    // A program may pass 0 for an object that its kernel does not use.
    let error = Program::new(&sockets, 6).fetch(0).unwrap_err();
    assert_eq!(error.code, ILLEGAL_ADDRESS, "{error}");
}

#[test]
fn a_kernel_reads_objects_of_its_own_program() {
    if !geteuid().is_root() {
        println!("skipped: only root can be two users, of whom one has no right");
        return;
    }
    let daemon = daemon();
    let owner = Program::new(&daemon.socket_dir(), 7);
    let (sockets, foreign) = (daemon.socket_dir(), owner.object);
    std::thread::spawn(move || strange(sockets, foreign)).join().unwrap();
    // The faults have ended their own launches only.
    assert_eq!(owner.fetch(owner.object).unwrap(), 7, "{}", daemon.log());
}
