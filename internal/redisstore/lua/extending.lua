-- What extend.lua and extend_all.lua share: it extends the claim at the lock's key for token, and returns 1, 0 or FOREIGN.

local function extend(token, expiry, life, now)
  local held = recorded()
  local past = remembered(now)
  if held == FOREIGN or past == FOREIGN then
    return FOREIGN
  end
  if not held or held.token ~= token then
    return refuse(0)
  end
  local sooner = tonumber(expiry) < redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, expiry)
  if companion then
    redis.call('PEXPIRE', companion, lifetime(past, now, life))
  end
  if sooner then
    wake()
  end
  return 1
end
