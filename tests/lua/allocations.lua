-- The memory benchmark's workload: a fixed number of small allocations, as fast as the interpreter makes them.
--
--   allocations.lua SCALE
--
-- Prints `ready`, waits for a line on standard input (or its end), works, and prints `cpu SECONDS wall SECONDS`:
-- what the work took. One unit of SCALE is 1000 tables, each of them allocated once and freed once.

local scale = tonumber(arg[1]) or 100
jit.off()

local ffi = require("ffi")
ffi.cdef("typedef struct { long seconds, nanoseconds; } bench_time; int clock_gettime(int clock, bench_time *time);")
local time = ffi.new("bench_time")
local MONOTONIC, PROCESS_CPUTIME = 1, 2
local function now(clock)
  ffi.C.clock_gettime(clock, time)
  return tonumber(time.seconds) + tonumber(time.nanoseconds) / 1e9
end

local function unit()
  local last
  for i = 1, 1000 do last = { i } end
  return last
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local wall, cpu = now(MONOTONIC), now(PROCESS_CPUTIME)
for _ = 1, scale do unit() end
collectgarbage()
wall, cpu = now(MONOTONIC) - wall, now(PROCESS_CPUTIME) - cpu
io.stdout:write(("cpu %.6f wall %.6f\n"):format(cpu, wall))
io.stdout:flush()
