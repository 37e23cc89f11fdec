-- Library functions that call Lua: their own frames stand right below them, never above the main chunk. By ffi.
local C = dofile("prelude.lua")
local count = 0
local function cmp(a, b)
  count = count + 1
  if count % 8 == 0 then
    C.c_1(a)
  end
  return a < b
end
local function work()
  local t = {}
  for i = 1, 400 do
    t[i] = (i * 7919) % 401
  end
  table.sort(t, cmp)
  C.c_2(1)
  return #t
end
local function replace(w)
  count = count + 1
  if count % 8 == 0 then
    C.c_3(1)
  end
  return w .. "!"
end
local function substitute()
  local s = ("abc "):rep(150):gsub("%a+", replace)
  C.c_4(1)
  return s
end
local function protected()
  for i = 1, 100 do
    pcall(cmp, i, 2)
  end
  C.c_5(1)
end
local function run(n)
  for i = 1, n do
    work()
    substitute()
    protected()
  end
end
print("ready")
io.stdout:flush()
io.read()
if arg[4] == "truth" then
  run(60)
  done()
end
while true do run(20) end
