//! A hostile client that speaks through [`partita_client`].

use super::{Attack, Outcome};
use partita_client::{Launch, LoadedModule, Session, StreamHandle, image};
use partita_model::{DeviceAddress, Dim3};

/// Kernels of most acts.
const PTX: &str = include_str!("kernels.ptx");
/// Bytes of the client's memory.
pub const BYTES: u64 = 4096;

/// A session with a module and a little memory.
pub struct Client {
    pub session: Session,
    pub module: LoadedModule,
    pub data: DeviceAddress,
}

/// A launch in few words.
#[derive(Clone, Copy)]
pub struct Shape {
    pub grid: Dim3,
    pub threads: u32,
    pub stream: StreamHandle,
}

impl Shape {
    /// So many CTAs of 64 threads in the default stream.
    pub fn of(ctas: u32) -> Shape {
        Shape { grid: Dim3::linear(ctas), threads: 64, stream: StreamHandle::LEGACY }
    }
}

impl Client {
    /// Connects and loads the acts' kernels.
    pub fn connect(attack: &mut Attack) -> Outcome<Client> {
        let session = attack.session()?;
        let module = load(attack, &session, PTX)?;
        let data = attack.tally.count(session.mem_alloc(BYTES))?;
        attack.tally.count(session.fill(StreamHandle::LEGACY, data, 0, 1, BYTES))?;
        Ok(Client { session, module, data })
    }

    /// Launches a kernel on `address`; further parameters follow.
    pub fn launch(
        &self,
        kernel: &str,
        shape: &Shape,
        address: DeviceAddress,
        more: &[u32],
    ) -> Outcome {
        let kernels = &self.module.contents.kernels;
        let index = kernels.iter().position(|known| known.name == kernel);
        let index = index.expect("the module has its kernels");
        let mut params = address.0.to_le_bytes().to_vec();
        more.iter().for_each(|word| params.extend(word.to_le_bytes()));
        Ok(self.session.launch(Launch {
            module: self.module.module,
            kernel: u32::try_from(index).expect("few kernels"),
            grid: shape.grid,
            block: Dim3::linear(shape.threads),
            dynamic_shared: 0,
            stream: shape.stream,
            cooperative: false,
            cluster: Dim3::linear(1),
            params: &params,
        })?)
    }
}

impl Attack {
    /// A session.
    pub fn session(&mut self) -> Outcome<Session> {
        self.tally.count(Session::connect(&self.sockets))
    }
}

/// Loads PTX.
pub fn load(attack: &mut Attack, session: &Session, text: &str) -> Outcome<LoadedModule> {
    let image = image::select(text.as_bytes(), session.facts().compute_capability)?;
    attack.tally.count(session.load_module(&image))
}
