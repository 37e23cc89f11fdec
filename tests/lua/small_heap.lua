-- Allocates as fast as it can and keeps next to nothing: thousands of collection cycles a second.
--
--   small_heap.lua
--
-- It prints `ready`, waits for a line on standard input, and works until it is ended. It is not compiled.

if jit then jit.off() end

local kept = {}

io.stdout:write("ready\n")
io.stdout:flush()
io.read()
for number = 1, 1e12 do
  kept[number % 100] = { number, number }
end
