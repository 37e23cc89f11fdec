-- The memory benchmark's workload: a fixed number of small allocations, as fast as the interpreter makes them.
--
--   allocations.lua SCALE
--
-- Prints `ready`, waits for a line on standard input (or its end), works, and prints `cpu SECONDS wall SECONDS`:
-- what the work took. One unit of SCALE is 1000 tables, each of them allocated once and freed once.

local scale = tonumber(arg[1]) or 100
jit.off()

local clock = dofile("clock.lua")
local now, MONOTONIC, PROCESS_CPUTIME = clock.now, clock.MONOTONIC, clock.PROCESS_CPUTIME

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
