-- A function that vanishes without a loop around it: an __index among other work. By ffi.
local C = dofile("prelude.lua")
local t = setmetatable({}, {
  __index = function(_, key)
    local x = key * 0.5
    x = x + C.c_1(x)
    return x
  end,
})
local function around(x)
  x = 1 / (x + 1.5)
  x = x + t[2]
  x = x * 0.5 + C.c_2(x)
  x = x + t[3]
  return x
end
local function more(x)
  local y = around(x)
  y = y * 0.5 + C.c_3(y)
  return y + around(y)
end
local function run(n)
  local x = 0.1
  for i = 1, n do
    x = 1 / (more(x) + 1.75)
    x = around(x) * 0.5
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
