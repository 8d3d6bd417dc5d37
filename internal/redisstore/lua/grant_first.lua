-- Begins grant.lua and decides what it decides most: the lock is free and its companion has no released token, or another
-- token holds. It takes nothing apart and defines no function, which is half of what grant.lua costs, and leaves every
-- other case to it.
--
-- ARGV, Result, and why it is atomic: see grant.lua, of which it is a part. It returns, or it has written nothing.

if KEYS[2] then
  local lock, companion = KEYS[1], KEYS[2]
  local token, expiry, holder, life, floor, supersedes = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  local value, past, time = redis.call('GET', lock), redis.call('GET', companion), redis.call('TIME')
  local digits = time[1] .. string.sub('00000' .. time[2], -6) -- the clock in us
  local micros = tonumber(digits)
  if not value then
    if not past or string.find(past, '^%d+$') and tonumber(past) < micros then
      if tonumber(floor or 0) <= micros then
        redis.call('SET', lock, token .. ' ' .. digits .. ' ' .. string.sub(digits, 1, -4) .. ' ' .. holder, 'PX', expiry)
        redis.call('SET', companion, digits, 'PX', life)
        return micros
      end
    end
  elseif (supersedes or '') == '' and string.sub(value, 1, #token) ~= token then
    local left = redis.call('PTTL', lock)
    redis.call('GETEX', lock) -- see refuse in claim.lua
    return {value, past or '', left, micros}
  end
end
