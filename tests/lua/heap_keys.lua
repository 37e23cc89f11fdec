-- A table whose keys are objects of the FFI, and a list: what a walk over a heap takes long for in one step, or in many.
--
--   heap_keys.lua KEYS [NODES [MEGABYTES]]
--
-- With MEGABYTES, the program has so much memory that is not Lua's.
--
-- It prints `ready` when its heap is that large, waits for a line on standard input, prints `done`, and waits for
-- another line before it exits.

local ffi = require("ffi")
local keys, nodes = tonumber(arg[1]) or 1000, tonumber(arg[2]) or 0

by_number = {}
for number = 1, keys do by_number[ffi.new("uint64_t", number)] = number end

for number = 1, nodes do list = { next = list, number = number } end

local others = (tonumber(arg[3]) or 0) * 2 ^ 20
if others > 0 then
  ffi.cdef("void *malloc(size_t size);")
  block = ffi.C.malloc(others)
  ffi.fill(block, others, 1)
end

collectgarbage()
collectgarbage()
io.stdout:write("ready\n")
io.stdout:flush()
io.read()
io.stdout:write("done\n")
io.stdout:flush()
io.read()
