-- prototypes.lua COUNT [allocating]: a program with so many functions, in chunks of a hundred, which runs one function all the
-- time, or those of its first and its last chunk, which allocate then.
local count, allocating = tonumber((...) or 0), select(2, ...)
local kept = {}
for chunk = 1, count / 100 do
  local text = {}
  local value = allocating and "{ %d }" or "%d"
  for index = 1, 100 do
    text[index] = "function own.f" .. index .. "() return " .. value:format(index) .. " end"
  end
  local source = "local own = {} " .. table.concat(text, "\n") .. " return own"
  kept[chunk] = assert(loadstring(source, "=made" .. chunk))
end
local Busy = {}
function Busy.work()
  local sum = 0
  for index = 1, 1e6 do
    sum = sum + index % 7
  end
  return sum
end
function Busy.allocate(first, last)
  for index = 1, 100 do
    first["f" .. index]()
    last["f" .. index]()
  end
end
io.stdout:write("ready\n")
io.stdout:flush()
if allocating then
  jit.off()
  local first, last = kept[1](), kept[#kept]()
  while true do
    Busy.allocate(first, last)
  end
end
while true do
  Busy.work()
end
