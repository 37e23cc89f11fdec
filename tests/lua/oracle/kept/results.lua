-- A C function's results, stored by a loop that is unrolled. By ffi.
local C = dofile("prelude.lua")
local a, b, out = { 1.5, 2.5, 3.5 }, { 4.5, 5.5, 6.5 }, {}
local function div(x, y)
  return x / y + C.c_1(x)
end
local function all()
  for k = 1, 3 do
    out[k] = div(a[k], b[k])
  end
end
local function run(n)
  for i = 1, n do
    all()
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
