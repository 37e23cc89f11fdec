-- Traces that end right behind a return to a lower frame. Their C functions are seldom called, so that samples hit the end. By ffi.
local C = dofile("prelude.lua")
local seldom = true
local function f3(x) if seldom then x = x * 0.5 + C.c_3(x) end return x * 0.5 end
local function f4(x, d)
  local q = 2 while q > 0 do q = q - 1
    x = x * 0.5 + 0.25
    if seldom then x = C.c_4(x) end
  end if d > 0 then return f4(x, d - 1) end return x
end
local function f2(x)
  x = f4(x, 2)
  x = f3(x)
  return f3(x)
end
local mt1 = {}
mt1.__newindex = function(t, k, v) local x = v
  x = f2(x)
  return
end
local o1 = setmetatable({}, mt1)
local function f0(x)
  o1[x] = x
  return x
end
local function run(n)
  local x = 1.5
  for i = 1, n do
    seldom, x = i == 1, 1.5
    local ok, r = xpcall(f0, print, x) if not ok then error(r) end x = r
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
