-- Where `#` calls `lj_tab_len`, the interpreter has not set `L->base`: that is of an earlier call, of a vararg function that
-- has returned. By ffi.
local C = dofile("prelude.lua")
local ffi = require("ffi")
local T = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }
local function f2(...) local x, y = ...
  x = C.c_2(x)
  return x * 0.5
end
local function f1(x)
  local s = #T + #T + #T + #T + #T + #T + #T + #T + #T + #T + #T + #T
  s = s + #T + #T + #T + #T + #T + #T + #T + #T + #T + #T + #T + #T
  s = s + #T + #T + #T + #T + #T + #T + #T + #T + #T + #T + #T + #T
  x = C.c_1(x + s * 1e-9)
  return x
end
local function run(n)
  local x = 1.5
  for i = 1, n do
    x = f2(x, 2.5)
    x = f1(x)
  end
  return x
end
print("ready")
io.stdout:flush()
io.read()
if arg[4] == "truth" then
  run(60)
  done()
end
while true do run(200) end
