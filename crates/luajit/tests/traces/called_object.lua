-- The object that is called is the first argument of its `__call`, the sum behind it the third: it was taken for the
-- second, so the only reading left was that the call itself adds.
-- certain: 8<11
jit.off(true)
local floor = math.floor
local object = setmetatable({}, {
  __call = function(self, x)
    return x + 2
  end })
local function run(x, y)
  return object(
    floor(y),
    x + 2
  ) * 0.5
end
local x, y = 0.5, 1.5
for _ = 1, 300 do
  y = y + 0.25
  x = run(x, y)
end
print("ready")
io.stdout:flush()
io.read()
