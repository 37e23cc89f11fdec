-- Traces that are left, again and again, by exits deep in what is inlined: their frames are being put onto the stack then. By ffi.
local C = dofile("prelude.lua")
jit.opt.start("hotexit=65535", "tryside=1")
local odd, deep = 0, true
local function f5(x) local y, z, u, v, w = x + 1, x + 2, x + 3, x + 4, x + 5
  if odd == 1 then x = x * 0.5 + (y + z + u + v + w) * 0.01 end
  if not deep then x = C.c_5(x) end
  return x * 0.25
end
local function f4(x, a, b, c) local y = x * 0.5 + f5(x + a) return y + (a + b + c) * 0.125 end
local function f3(x) local ok, y = pcall(f4, x, 1, 2, 3) if not ok then error(y) end return y * 0.5 end
local o2 = setmetatable({}, {__index = function(t, k) local a, b = k + 1, k * 2
  local y = f3(k)
  return y + (a + b) * 0.001
end})
local function f1(x) local y = o2[x] return y + x * 0.001 end
local function f0(x) return 0.5 * f1(x) + 0.1 end
local function run(n)
  local x = 1.5
  for i = 1, n do
    deep = i > 1
    odd = i % 2
    x = f0(x)
  end
end
print("ready")
io.stdout:flush()
io.read()
if arg[4] == "truth" then
  run(30)
  done()
end
while true do run(2000) end
