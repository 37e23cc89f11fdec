-- What nginx answers with while it is recorded for long: a page that is put together anew for each request, some of it
-- from a cache whose entries come and go.

local soak = {}

local cache, order, size = {}, {}, 0

local function remember(key, value)
  if size >= 500 then
    cache[table.remove(order, 1)] = nil
    size = size - 1
  end
  cache[key], order[#order + 1] = value, key
  size = size + 1
  return value
end

local function row(number)
  local cells = {}
  for column = 1, 5 do cells[column] = "<td>" .. number * column .. "</td>" end
  return "<tr>" .. table.concat(cells) .. "</tr>"
end

function soak.page()
  local first = math.random(2000)
  local rows = {}
  for number = first, first + 20 do
    rows[#rows + 1] = cache[number] or remember(number, row(number))
  end
  return (("<table>" .. table.concat(rows) .. "</table>\n"):gsub("&", "&amp;"))
end

return soak
