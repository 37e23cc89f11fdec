//! Reads samples.

use std::io::Read;

use super::{
    EPILOGUE, EVENT_C, EVENT_LUA, EVENT_TRACE, FRAME_CFUNC, FRAME_FFUNC, FRAME_HOST_LAST, FRAME_LFUNC, FRAME_LUA_LAST,
    LuaFrame, StreamSample, SysprofEvent, TraceSample, VERSION,
};
use crate::bytes::ByteReader;
use crate::{StreamError, VmState, symtab};

/// More frames than any stack has: a Lua stack has less than 65536 slots, and a host stack of this depth would exceed its
/// limit. This bounds the memory that a damaged stream can ask for.
const MAX_FRAMES: usize = 1 << 20;

/// Reads the samples of a stream.
#[derive(Debug)]
pub struct SysprofReader<R> {
    bytes: ByteReader<R>,
    version: u8,
    lua: Vec<LuaFrame>,
    host: Vec<u64>,
    finished: bool,
}

impl<R: Read> SysprofReader<R> {
    pub(crate) fn after_prologue(bytes: ByteReader<R>, version: u8) -> Result<Self, StreamError> {
        if !(1..=VERSION).contains(&version) {
            return Err(StreamError::UnsupportedVersion { part: "the samples (ljp)", found: version, newest: VERSION });
        }
        Ok(Self { bytes, version, lua: Vec::new(), host: Vec::new(), finished: false })
    }

    /// The version of the samples: 1 or 2.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// The number of bytes of the stream that have been read.
    pub fn offset(&self) -> u64 {
        self.bytes.offset()
    }

    /// The next sample or symbol, or `None` after the epilogue.
    ///
    /// # Errors
    /// [`StreamError::Truncated`] if the stream ends without its epilogue: everything before is valid.
    pub fn next_event(&mut self) -> Result<Option<SysprofEvent<'_>>, StreamError> {
        if self.finished {
            return Ok(None);
        }
        let start = self.bytes.offset();
        let header = self.bytes.byte("the samples")?;
        let symbols_allowed = self.version >= 2;
        match header {
            EPILOGUE => {
                self.finished = true;
                Ok(None)
            }
            EVENT_LUA if symbols_allowed => {
                symtab::read_lua(&mut self.bytes).map(|symbol| Some(SysprofEvent::Symbol(symbol)))
            }
            EVENT_C if symbols_allowed => {
                symtab::read_c(&mut self.bytes).map(|symbol| Some(SysprofEvent::Symbol(symbol)))
            }
            EVENT_TRACE if symbols_allowed => {
                symtab::read_trace(&mut self.bytes, false).map(|symbol| Some(SysprofEvent::Symbol(symbol)))
            }
            _ => match VmState::from_number(header) {
                None => Err(StreamError::invalid(start, "an unknown VM state")),
                Some(VmState::Trace) => self.trace_sample().map(|sample| Some(SysprofEvent::Trace(sample))),
                Some(vmstate) => {
                    self.lua.clear();
                    if vmstate.has_lua_stack() {
                        self.read_lua_stack()?;
                    }
                    self.read_host_stack()?;
                    Ok(Some(SysprofEvent::Sample(StreamSample { vmstate, lua: &self.lua, host: &self.host })))
                }
            },
        }
    }

    fn trace_sample(&mut self) -> Result<TraceSample, StreamError> {
        const PART: &str = "a sample on a trace";
        Ok(TraceSample { number: self.bytes.uleb(PART)?, proto: self.bytes.uleb(PART)?, line: self.bytes.uleb(PART)? })
    }

    fn read_lua_stack(&mut self) -> Result<(), StreamError> {
        const PART: &str = "a Lua stack";
        loop {
            let start = self.bytes.offset();
            let frame = match self.bytes.byte(PART)? {
                FRAME_LFUNC => LuaFrame::Lfunc { proto: self.bytes.uleb(PART)?, line: self.bytes.uleb(PART)? },
                FRAME_CFUNC => LuaFrame::Cfunc { addr: self.bytes.uleb(PART)? },
                FRAME_FFUNC => LuaFrame::Ffunc { ffid: self.bytes.uleb(PART)? },
                FRAME_LUA_LAST => return Ok(()),
                _ => return Err(StreamError::invalid(start, "an unknown kind of Lua frame")),
            };
            if self.lua.len() == MAX_FRAMES {
                return Err(StreamError::invalid(start, "a Lua stack without end"));
            }
            self.lua.push(frame);
        }
    }

    fn read_host_stack(&mut self) -> Result<(), StreamError> {
        self.host.clear();
        loop {
            let start = self.bytes.offset();
            let addr = self.bytes.uleb("a host stack")?;
            if addr == FRAME_HOST_LAST {
                return Ok(());
            }
            if self.host.len() == MAX_FRAMES {
                return Err(StreamError::invalid(start, "a host stack without end"));
            }
            self.host.push(addr);
        }
    }
}
