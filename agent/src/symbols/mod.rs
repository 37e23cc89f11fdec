//! tmp
use crate::target::Process;
use std::sync::Arc;
/// tmp
pub struct Symbolizer;
/// tmp
pub struct NativeSymbol {
    /// x
    pub name: Option<Arc<str>>,
    /// x
    pub module: Option<Arc<str>>,
    /// x
    pub address: u64,
    /// x
    pub size: u64,
}
impl NativeSymbol {
    /// x
    pub fn display_name(&self) -> Arc<str> {
        format!("{:x}", self.address).into()
    }
}
impl Symbolizer {
    /// x
    pub fn new(_: Process) -> Self {
        Self
    }
    /// x
    pub fn symbolize(&mut self, pc: u64) -> NativeSymbol {
        NativeSymbol { name: None, module: None, address: pc, size: 1 }
    }
}
