-- Functions with any number of arguments, and what they call. By ffi.
local C = dofile("prelude.lua")
local function inner(x, ...)
  x = C.c_1(x)
  return x + select("#", ...)
end
local function outer(...)
  local x = inner(...)
  x = x * 0.5 + C.c_2(x)
  return inner(x, ...) * 0.25
end
local function run(n)
  local x = 0.1
  for i = 1, n do
    x = outer(1 / (x + 1.75), i, 2)
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
