-- A function that is guarded by its prototype may be any closure of it, not the one that is a constant.
-- certain: 9<14 9<15
jit.off(true)
local function make(a)
  return function(z)
    if a > 9 then z = 0 end
    z = z * 3
    -- The upvalue was loaded above.
    return z + a
  end
end
local constant, any = make(0.5), { make(1.5), make(2.5), make(3.5), make(4.5) }
local function run(x)
  x = constant(x) * 0.01
  x = any[1](x) * 0.01
  return x
end
local x = 0.5
for _ = 1, 300 do
  x = run(x)
end
print("ready")
io.stdout:flush()
io.read()
