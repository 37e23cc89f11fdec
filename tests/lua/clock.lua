-- The clocks of clock_gettime(2), in seconds: `local clock = dofile("clock.lua")`, `clock.now(clock.THREAD_CPUTIME)`.
-- Telling the time allocates nothing.
--
-- LuaJIT without FFI, or in a static program, cannot call clock_gettime: there all clocks are the CPU time of the process.

local clock = { MONOTONIC = 1, PROCESS_CPUTIME = 2, THREAD_CPUTIME = 3 }

local has_ffi, ffi = pcall(require, "ffi")
if has_ffi then
  -- Both are 64 bits wide, of which the upper half is 0: a field of 64 bits would be an object for each reading.
  ffi.cdef([[
    typedef struct { int32_t seconds, above_seconds, nanoseconds, above_nanoseconds; } clock_time;
    int clock_gettime(int clock, clock_time *time);
  ]])
end
if not has_ffi or not pcall(function() return ffi.C.clock_gettime end) then
  clock.now = os.clock
  return clock
end

local time = ffi.new("clock_time")
function clock.now(which)
  ffi.C.clock_gettime(which, time)
  return time.seconds + time.nanoseconds / 1e9
end

return clock
