-- Naps at the bottom of stacks of different depth: what `lj-trace dump` sees of it is over soon.
--
--   napping.lua MILLISECONDS
--
-- It prints `ready`, then naps for so long each time, until it is ended.

jit.off()
local ffi = require("ffi")
ffi.cdef("int poll(void *fds, unsigned long count, int timeout);")

local function nap(depth, deepest)
  if depth == 0 then
    local answered = ffi.C.poll(nil, 0, tonumber(arg[1]))
    return answered
  end
  return (nap(depth - 1, deepest))
end

io.stdout:write("ready\n")
io.stdout:flush()
while true do
  for deepest = 0, 20 do nap(deepest, deepest) end
end
