-- What a table has that the trace made itself is known without a load: it is not what was loaded by that name before.
-- certain: 8<15 11<14
jit.off(true)
local loaded = { a = 0.5 }
local function made(x)
  local own = { a = 1.5 }
  -- The constant is the table's.
  return own.a + x
end
local function plain(x)
  return x + 1.5
end
local function run(x)
  x = loaded.a + plain(x)
  x = made(x) * 0.25
  return x
end
local x = 0.5
for _ = 1, 300 do
  x = run(x)
end
print("ready")
io.stdout:flush()
io.read()
