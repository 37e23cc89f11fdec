-- A string's method by a key that is no constant: what is looked into is no table.
-- certain: 5<11
jit.off(true)
local function leaf(x)
  return x * 0.5 + 1
end
local key = "len"
local function run(n)
  local x, text = 0, "abc"
  for i = 1, n do
    x = x * 0.5 + text[key](text) + leaf(x)
    x = x + text[key](text) + leaf(x)
  end
  return x
end
run(200)
print("ready")
io.stdout:flush()
io.read()
