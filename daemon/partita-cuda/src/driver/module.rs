//! From PTX to kernels: the driver's compiler, modules, functions.

use super::table::Handle;
use super::{Context, Failure, call};
use std::ffi::{CString, c_int};
use std::sync::Arc;

/// Options of the compiler (`CUjit_option`).
const INFO_LOG_BUFFER: u32 = 3;
const INFO_LOG_BYTES: u32 = 4;
const ERROR_LOG_BUFFER: u32 = 5;
const ERROR_LOG_BYTES: u32 = 6;
/// `CU_JIT_INPUT_PTX`
const INPUT_PTX: u32 = 1;

const LOG_BYTES: usize = 8 << 10;

/// A text that the driver's compiler did not take.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{failure}{}{log}", if .log.is_empty() { "" } else { ": " })]
pub struct LinkError {
    /// The compiler's failure code.
    pub failure: Failure,
    /// The compiler's log.
    pub log: String,
}

impl Context {
    /// Compiles PTX to machine code for this GPU. Slow; it touches nothing on the device.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn compile(&self, ptx: &str) -> Result<Vec<u8>, LinkError> {
        let mut errors = vec![0_u8; LOG_BYTES];
        let mut infos = vec![0_u8; LOG_BYTES];
        let mut options = [INFO_LOG_BUFFER, INFO_LOG_BYTES, ERROR_LOG_BUFFER, ERROR_LOG_BYTES];
        let mut values =
            [infos.as_mut_ptr().addr(), LOG_BYTES, errors.as_mut_ptr().addr(), LOG_BYTES];
        // The driver takes the addresses as numbers.
        let _ = (infos.as_mut_ptr().expose_provenance(), errors.as_mut_ptr().expose_provenance());
        let mut link = 0;
        let made = call!(
            self.driver,
            cuLinkCreate_v2(4, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut link)
        );
        made.map_err(|failure| LinkError { failure, log: String::new() })?;
        let result = self.link(link, ptx);
        let destroyed = call!(self.driver, cuLinkDestroy(link));
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
        };
        result.and_then(|image| destroyed.map(|()| image)).map_err(|failure| {
            let log = text(&errors);
            LinkError { failure, log: if log.is_empty() { text(&infos) } else { log } }
        })
    }

    fn link(&self, link: Handle, ptx: &str) -> Result<Vec<u8>, Failure> {
        // The compiler requires the zero byte after the text, and counts it in the size.
        let text = CString::new(ptx.trim_end_matches('\0')).unwrap_or_default();
        let bytes = text.as_bytes_with_nul();
        call!(
            self.driver,
            cuLinkAddData_v2(
                link,
                INPUT_PTX,
                bytes.as_ptr().cast(),
                bytes.len(),
                c"module.ptx".as_ptr(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        )?;
        let (mut image, mut size) = (std::ptr::null(), 0);
        call!(self.driver, cuLinkComplete(link, &raw mut image, &raw mut size))?;
        // SAFETY: the driver's image, of the size that it says, lives as long as the link.
        Ok(unsafe { std::slice::from_raw_parts(image, size) }.to_vec())
    }
}

/// A loaded module. It stays until [`Module::unload`].
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: Handle,
}

impl Module {
    /// Loads machine code. May wait for every grid on the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Result<Module, Failure> {
        // A text image must end with a zero. A zero after machine code has no effect.
        let image = [image, &[0]].concat();
        let mut raw = 0;
        let none = std::ptr::null_mut();
        call!(
            context.driver,
            cuModuleLoadDataEx(&raw mut raw, image.as_ptr(), 0, none, std::ptr::null_mut())
        )?;
        Ok(Module { context: Arc::clone(context), raw })
    }

    /// Ends it. May wait for every grid on the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn unload(self) -> Result<(), Failure> {
        call!(self.context.driver, cuModuleUnload(self.raw))
    }

    /// A kernel of it.
    ///
    /// # Errors
    /// The driver's.
    pub fn function(&self, name: &str) -> Result<Function, Failure> {
        let name = CString::new(name).unwrap_or_default();
        let mut raw = 0;
        call!(self.context.driver, cuModuleGetFunction(&raw mut raw, self.raw, name.as_ptr()))?;
        Ok(Function(raw))
    }

    /// Address and size of a variable.
    ///
    /// # Errors
    /// The driver's.
    pub fn variable(&self, name: &str) -> Result<(u64, u64), Failure> {
        let name = CString::new(name).unwrap_or_default();
        let (mut address, mut size) = (0, 0);
        let driver = &self.context.driver;
        call!(
            driver,
            cuModuleGetGlobal_v2(&raw mut address, &raw mut size, self.raw, name.as_ptr())
        )?;
        Ok((address, size as u64))
    }

    /// The driver's facts about a function of the module.
    ///
    /// # Errors
    /// The driver's.
    pub fn attribute(
        &self,
        function: Function,
        attribute: FunctionAttribute,
    ) -> Result<u32, Failure> {
        let mut value = 0;
        let driver = &self.context.driver;
        call!(driver, cuFuncGetAttribute(&raw mut value, attribute as u32, function.0))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Lets a function be launched with so many bytes of dynamic shared memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn allow_shared(&self, function: Function, bytes: u32) -> Result<(), Failure> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call!(self.context.driver, cuFuncSetAttribute(function.0, 8, bytes))
    }

    /// Lets a function be launched with clusters that not every GPU takes.
    ///
    /// # Errors
    /// The driver's.
    pub fn allow_large_clusters(&self, function: Function) -> Result<(), Failure> {
        call!(self.context.driver, cuFuncSetAttribute(function.0, LARGE_CLUSTERS, 1))
    }
}

/// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`
pub(super) const LARGE_CLUSTERS: u32 = 14;

/// A kernel of a loaded module or library: launches take either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function(Handle);

impl Function {
    pub(super) fn of(raw: Handle) -> Function {
        Function(raw)
    }

    pub(super) fn raw(self) -> Handle {
        self.0
    }
}

/// A function attribute (`CUfunction_attribute`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[expect(missing_docs, reason = "each is `CU_FUNC_ATTRIBUTE_…` of that name")]
pub enum FunctionAttribute {
    MaxThreadsPerBlock = 0,
    SharedSizeBytes = 1,
    LocalSizeBytes = 3,
    NumRegs = 4,
    RequiredClusterWidth = 11,
    RequiredClusterHeight = 12,
    RequiredClusterDepth = 13,
}
