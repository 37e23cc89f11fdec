-- The clocks of clock_gettime(2), in seconds: `local clock = dofile("clock.lua")`, `clock.now(clock.THREAD_CPUTIME)`.
-- Telling the time allocates nothing.

local ffi = require("ffi")
-- Both are 64 bits wide, of which the upper half is 0: a field of 64 bits would be an object for each reading.
ffi.cdef([[
  typedef struct { int32_t seconds, above_seconds, nanoseconds, above_nanoseconds; } clock_time;
  int clock_gettime(int clock, clock_time *time);
]])

local time = ffi.new("clock_time")
local function now(clock)
  ffi.C.clock_gettime(clock, time)
  return time.seconds + time.nanoseconds / 1e9
end

return { now = now, MONOTONIC = 1, PROCESS_CPUTIME = 2, THREAD_CPUTIME = 3 }
