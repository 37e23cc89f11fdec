-- A story: the pages of a shop, which nginx makes. `slow` is what somebody wrote, `fixed` what the profile led to.

local shop = {}

local goods = {}
for number = 1, 400 do
  goods[number] = { name = "Lamp <" .. number .. "> & shade", price = number * 7 % 100 }
end

local entities = { ["<"] = "&lt;", [">"] = "&gt;", ["&"] = "&amp;" }

local function escape(text)
  return (text:gsub("[<>&]", entities))
end

local function row(item)
  return "<tr><td>" .. escape(item.name) .. "</td><td>" .. item.price .. "</td></tr>\n"
end

-- Each turn copies all rows so far: the work grows with the square of their number.
local function append_rows(page)
  for _, item in ipairs(goods) do
    page = page .. row(item)
  end
  return page
end

local function join_rows(page)
  local rows = { page }
  for index, item in ipairs(goods) do
    rows[index + 1] = row(item)
  end
  return table.concat(rows)
end

function shop.slow() return append_rows("<table>\n") .. "</table>\n" end

function shop.fixed() return join_rows("<table>\n") .. "</table>\n" end

return shop
