-- prototypes.lua COUNT: a program with so many functions, in chunks of a hundred, which runs one function all the time.
local count = tonumber((...) or 0)
local kept = {}
for chunk = 1, count / 100 do
  local text = {}
  for index = 1, 100 do
    text[index] = "function own.f" .. index .. "() return " .. index .. " end"
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
io.stdout:write("ready\n")
io.stdout:flush()
while true do
  Busy.work()
end
