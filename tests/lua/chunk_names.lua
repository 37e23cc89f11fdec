-- Functions that say they are from files of anybody's choice: each argument is the name of a chunk, in which all work is
-- done at line 1.

local CODE = "local turns, n = ..., 0 for i = 1, turns do n = (n + i * 7) % 1000003 end return n"

local chunks = {}
for index, name in ipairs(arg) do
  chunks[index] = assert(loadstring(CODE, name))
end

io.stdout:write("ready\n")
io.stdout:flush()
while true do
  for _, chunk in ipairs(chunks) do
    chunk(100000)
  end
end
