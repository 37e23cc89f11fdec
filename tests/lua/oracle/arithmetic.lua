-- More than nine tenths of the time go by in `leaf`: pure arithmetic, inlined through a loop that is unrolled. By ffi.
local C = dofile("prelude.lua")
local truth = arg[4] == "truth"
local function leaf(x)
  if truth then C.c_1(x) end
  x = 1 / (x + 1.5) x = 1 / (x + 1.25) x = 1 / (x + 1.125) x = 1 / (x + 1.5)
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
if truth then
  run(60)
  done()
end
while true do run(3e6) end
