-- What nginx answers with while it leaks: it notes every visit, some 100 bytes, and forgets none. The marks after `--@` name
-- lines for the tests.

local leaking = {}

local visits = {}

local function greeting(name)
  local words = {}
  for word in ("welcome back to the shop, dear " .. name):gmatch("%a+") do
    words[#words + 1] = "<b>" .. word .. "</b>"
  end
  return table.concat(words, " ")
end

function leaking.page()
  local visit = #visits + 1
  visits[visit] = { at = ngx.now(), number = visit } --@ leak
  local page = { "<html>", greeting("visitor " .. visit % 1000), "</html>\n" }
  return table.concat(page)
end

return leaking
