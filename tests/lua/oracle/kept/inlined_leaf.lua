-- A leaf that vanishes: it is inlined through a loop that is unrolled into the trace around it. By ffi.
local C = dofile("prelude.lua")
local function leaf(x)
  x = 1 / (x + 1.5) x = 1 / (x + 1.25) x = 1 / (x + 1.125) x = 1 / (x + 1.5)
  x = C.c_1(x)
  x = 1 / (x + 1.25) x = 1 / (x + 1.125) x = 1 / (x + 1.5) x = 1 / (x + 1.25)
  return x
end
local function caller(x)
  for q = 1, 2 do
    x = leaf(x)
  end
  return x
end
local function run(n)
  local x = 0.1
  for i = 1, n do
    x = 1 / (x + 1.75)
    x = caller(x) + x * 0
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
