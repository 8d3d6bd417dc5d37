-- Begins extend.lua and decides what it decides most: the token holds, its expiry becomes no shorter, and the companion has
-- no released token. See grant_first.lua.

if KEYS[2] then
  local lock, companion = KEYS[1], KEYS[2]
  local token, expiry, life = ARGV[1], ARGV[2], ARGV[3]
  local value, past = redis.call('GET', lock), redis.call('GET', companion)
  if value and string.sub(value, 1, #token + 1) == token .. ' ' and past and string.find(past, '^%d+$')
    and redis.call('PTTL', lock) <= tonumber(expiry) then
    redis.call('PEXPIRE', lock, expiry)
    redis.call('PEXPIRE', companion, life)
    return 1
  end
end
