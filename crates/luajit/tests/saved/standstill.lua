-- Stands still in a known state: what is read of its VM's memory is compared with what is written here.
local function innermost(depth)
  local sum = 0
  for i = 1, 300 do sum = sum + i % 7 * depth end
  local got = coroutine.yield(sum)
  return got
end

local function outer(...)
  local result = innermost(...)
  return result
end

local object = {}
function object.wait()
  io.write("ready\n")
  io.flush()
  local line = io.read()
  return line
end

collectgarbage()
collectgarbage("stop")
suspended = coroutine.create(outer)
coroutine.resume(suspended, 3)
fresh = coroutine.create(outer)
local line = object.wait()
return line
