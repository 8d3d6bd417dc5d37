-- Begins release.lua and decides what it decides most: the token holds, and the companion can stay as it is. See
-- grant_first.lua.

if ARGV[2] == '0' and ARGV[3] == '' and not ARGV[5] then
  local lock, token, waking = KEYS[1], ARGV[1], ARGV[4]
  local value = redis.call('GET', lock)
  if value and string.sub(value, 1, #token + 1) == token .. ' ' then
    redis.call('DEL', lock)
    if waking ~= '' then -- see wake in claim.lua
      local sent = redis.pcall(waking, lock .. ':free', '')
      if waking == 'SPUBLISH' and type(sent) == 'table' then
        redis.pcall('PUBLISH', lock .. ':free', '')
      end
    end
    return 1
  end
end
