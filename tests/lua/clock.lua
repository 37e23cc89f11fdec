-- The clocks of clock_gettime(2), in seconds: `local clock = dofile("clock.lua")`, `clock.now(clock.THREAD_CPUTIME)`.

local ffi = require("ffi")
ffi.cdef("typedef struct { long seconds, nanoseconds; } clock_time; int clock_gettime(int clock, clock_time *time);")

local time = ffi.new("clock_time")
local function now(clock)
  ffi.C.clock_gettime(clock, time)
  return tonumber(time.seconds) + tonumber(time.nanoseconds) / 1e9
end

return { now = now, MONOTONIC = 1, PROCESS_CPUTIME = 2, THREAD_CPUTIME = 3 }
