-- A workload that allocates at an even pace.
--
--   pace.lua WORK
--
-- It prints `ready` and waits for a line on standard input. Then it takes turns without end: 2000 tables, one after the
-- other, with WORK turns of an empty loop after each. After a turn it prints when it began, in seconds since the
-- epoch, and the CPU time that it took, in seconds.

local work = tonumber(arg[1])
jit.off()

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
while true do
  local began, start = os.time(), os.clock()
  for i = 1, 2000 do
    local _ = { i }
    for _ = 1, work do end
  end
  io.stdout:write(("%d %.6f\n"):format(began, os.clock() - start))
  io.stdout:flush()
end
