-- Begins release.lua and decides what it decides most: the token holds, and the companion can stay as it is. See
-- grant_first.lua.

if #ARGV == 1 then
  local lock, token = KEYS[1], ARGV[1]
  local value = redis.call('GET', lock)
  if value and string.sub(value, 1, #token + 1) == token .. ' ' then
    redis.call('DEL', lock)
    local sent = redis.pcall(waking, lock .. ':free', '') -- see wake in claim.lua
    if waking == 'SPUBLISH' and type(sent) == 'table' then
      redis.pcall('PUBLISH', lock .. ':free', '')
    end
    return 1
  end
end
