-- A workload whose Lua stacks move all the time: coroutines that recurse until their stacks have grown several times.
--
--   growing.lua SECONDS
--
-- It prints `ready`, waits for a line on standard input, works for SECONDS of CPU time, prints `done`, and waits for
-- another line before it exits.

jit.off()

local function deep(depth)
  if depth == 0 then return 0 end
  return 1 + deep(depth - 1)
end

local function grow()
  for depth = 50, 900, 50 do coroutine.wrap(deep)(depth) end
  collectgarbage("step", 200)
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local stop = os.clock() + (tonumber(arg[1]) or 2)
repeat grow() until os.clock() >= stop
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
