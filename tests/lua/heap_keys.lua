-- A table whose keys are objects of the FFI, and a list: what a walk over a heap takes long for in one step, or in many.
--
--   heap_keys.lua KEYS [NODES]
--
-- It prints `ready` when its heap is that large, waits for a line on standard input, prints `done`, and waits for
-- another line before it exits.

local ffi = require("ffi")
local keys, nodes = tonumber(arg[1]) or 1000, tonumber(arg[2]) or 0

by_number = {}
for number = 1, keys do by_number[ffi.new("uint64_t", number)] = number end

for number = 1, nodes do list = { next = list, number = number } end

collectgarbage()
collectgarbage()
io.stdout:write("ready\n")
io.stdout:flush()
io.read()
io.stdout:write("done\n")
io.stdout:flush()
io.read()
