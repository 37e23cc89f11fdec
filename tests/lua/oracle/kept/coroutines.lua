-- Coroutines that are switched to all the time. By ffi.
local C = dofile("prelude.lua")
local generators = {}
for k = 1, 50 do
  generators[k] = coroutine.wrap(function()
    local i = 0
    while true do
      i = i + 1
      if i % 8 == 0 then
        C.c_1(i)
      end
      coroutine.yield(i)
    end
  end)
end
local function consume()
  local s = 0
  for k = 1, 50 do
    s = s + generators[k]()
  end
  C.c_2(s)
  return s
end
local function run(n)
  for i = 1, n do
    consume()
  end
end
print("ready")
io.stdout:flush()
io.read()
if arg[4] == "truth" then
  run(60)
  done()
end
while true do run(200) end
