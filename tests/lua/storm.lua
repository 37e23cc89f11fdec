-- A workload that allocates as fast as it can.
--
--   storm.lua [TURNS]
--
-- It prints `ready` and waits for a line on standard input. Then it takes TURNS turns (or turns without end), each
-- with as many allocations, and prints after each of them when it began, in seconds since the epoch, and the
-- CPU time that it took, in seconds. In the end it closes its VM and exits.

local turns = tonumber(arg[1]) or math.huge
jit.off()

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
for _ = 1, turns do
  local began, start = os.time(), os.clock()
  for i = 1, 20000 do
    local _ = { i }
    local _ = "s" .. i
    local _ = pcall(error, { i })
  end
  io.stdout:write(("%d %.6f\n"):format(began, os.clock() - start))
  io.stdout:flush()
end
os.exit(true, true)
