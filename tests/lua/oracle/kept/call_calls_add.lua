-- A __call metamethod that calls an __add metamethod: they were shown the wrong way round. By ffi.
local C = dofile("prelude.lua")
local mt = {}
local other = setmetatable({}, mt)
mt.__add = function(a, b)
  local x = 1 / (b + 1.5)
  x = C.c_1(x)
  return x
end
mt.__call = function(o, x)
  x = x * 0.5
  x = x + (other + x)
  x = C.c_2(x)
  return x + (other + 0.5)
end
local object = setmetatable({}, mt)
local function caller(x)
  for q = 1, 2 do
    x = object(x)
  end
  x = C.c_3(x)
  return x
end
local function run(n)
  local x = 0.1
  for i = 1, n do
    x = 1 / (caller(x) + 1.75)
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
