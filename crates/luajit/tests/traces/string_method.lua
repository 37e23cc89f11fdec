-- A method of a string is looked up in the metatable of all strings, and the second time nothing is left of that.
-- certain: 8<14 5<14
jit.off(true)
local function leaf(x)
  return x * 0.5 + 1
end
local function measure(x)
  return ("abc"):len() + x
end
local function run(n)
  local x = 0
  for i = 1, n do
    x = measure(x) * 0.5
    x = leaf(x) + measure(x)
  end
  return x
end
run(200)
print("ready")
io.stdout:flush()
io.read()
